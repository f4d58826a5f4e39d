"""Rules of operators, one file for each kind."""

from . import arithmetic, attention, choices, functions, moves, refused  # noqa: F401
