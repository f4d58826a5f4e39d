"""Rules of operators, one file for each kind."""

from ..field import EXACT, RULES
from . import arithmetic, attention, choices, convolution, dropout, functions, moves, pairs, refused  # noqa: F401

EXACT.update(of for of, function in RULES.items() if function.__module__ in (choices.__name__, functions.__name__))
