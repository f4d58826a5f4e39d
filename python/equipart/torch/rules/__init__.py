"""Rules of operators, one file for each kind."""

from . import arithmetic, attention, choices, dropout, functions, moves, pairs, refused  # noqa: F401
