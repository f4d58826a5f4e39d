"""Rules of operators, one file for each kind."""

from ..field import EXACT, RULES
from . import (  # noqa: F401
    arithmetic, attention, batches, choices, convolution, dropout, flex, functions, moves, pairs, refused, sharded, steps,
)  # fmt: skip

EXACT.update(of for of, function in RULES.items() if function.__module__ in (choices.__name__, functions.__name__))
