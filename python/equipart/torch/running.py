"""A run of a program in the field: its key, and what is counted and noted on the way."""

import sys
from pathlib import Path

import torch

from equipart import _field

from .field import SEEN

OURS = str(Path(__file__).parent)
TORCH = str(Path(torch.__file__).parent)


class Run:
    """What the ranks of the unsplit and of the split program have in common under one key."""

    def __init__(self, key):
        self.functions = _field.Functions(key)
        self.logarithms, self.roots = 0.0, 0.0  # the largest degrees of what logarithms and roots are taken of
        self.operators, self.collectives, self.assumptions = set(), 0, set()
        self.steps = False  # while an optimizer steps
        self.apart = 0.0  # the largest degree of a function's argument there
        self.notes = None  # of a run that is watched: takes each operator

    def enter(self):
        """Makes this the thread's run."""
        SEEN.run = self

    def before(self, func, args):
        self.operators.add(str(func.overloadpacket))

    def after(self, func, args, out):
        if self.notes is not None:
            self.notes(func, args, out)

    def meets(self, what, group, first):
        """Takes note of a collective, which counts once, for the first rank of its group."""
        self.collectives += first and getattr(SEEN, "computes", False)
        if self.notes is not None:
            self.notes.meets(what, group)

    def assumes(self, what):
        self.assumptions.add(what)

    def place(self):
        """Where the program is, to end a sentence with."""
        found = line()
        return f", at {found}" if found else ""


def is_users(path):
    """True for a file, or a line of one, that is neither torch's nor of this package."""
    return not path.startswith((OURS, TORCH, "<")) and "threading.py" not in path


def line():
    """The file and line of the program that is running: the innermost that is neither torch's nor of this package."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if is_users(name):
            path = Path(name)
            path = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
            return f"{path}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
