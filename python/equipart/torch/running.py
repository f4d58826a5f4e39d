"""A run of a program in the field: its key, and what is counted and noted on the way."""

import multiprocessing
import os
import sys
from pathlib import Path

import torch

from equipart import _field

from .field import SEEN
from .private import current_node, next_number, number

OURS, TORCH, PROCESSES = (f"{Path(of).parent}{os.sep}" for of in (__file__, torch.__file__, multiprocessing.__file__))


class Run:
    """What the ranks of the unsplit and of the split program have in common under one key."""

    def __init__(self, key):
        self.functions = _field.Functions(key)
        self.logarithms, self.roots = 0.0, 0.0  # the largest degrees of what logarithms and roots are taken of
        self.operators, self.collectives, self.assumptions = set(), 0, set()
        self.steps = False  # while an optimizer steps
        self.apart, self.stepped = 0.0, 0.0  # the largest degree of a function's argument there, and of all inverses
        self.others = {}  # what other ranks have said that they inverted
        self.choices, self.met = set(), {}  # lines that choose by order; by operator and number of rows, those taken
        self.lines = {}  # of operators, by the numbers that autograd gives them
        self.dropped = {}  # by element, the states of random numbers with which it met dropout
        self.bits = set()  # elements of masks that have become floats
        self.notes = None  # of a run that is watched: takes each operator

    def enter(self):
        """Makes this the run of this process."""
        SEEN.run = self

    def inverted(self):
        """The sum of the degrees of all elements that are inverted, here or on ranks that gave something."""
        return self.functions.inverted() + self.stepped + sum(self.others.values())

    def bounds(self):
        """What a rank must know of this one to bound the degrees of what it gives."""
        return self.functions.inverted() + self.stepped, self.logarithms, self.roots

    def hears(self, rank, inverted, logarithms, roots):
        """Takes the bounds of another rank."""
        self.others[rank] = inverted
        self.logarithms, self.roots = max(self.logarithms, logarithms), max(self.roots, roots)

    def tally(self):
        """What a rank counted, for the parent."""
        return self.operators, self.collectives, self.assumptions, self.choices, self.apart, self.functions.counted()

    def adds(self, operators, collectives, assumptions, choices, apart, counted):
        """Adds what a rank counted."""
        self.choices |= choices
        self.operators |= operators
        self.collectives += collectives
        self.assumptions |= assumptions
        self.apart = max(self.apart, apart)
        self.functions.add_counted(counted)

    def before(self, func, args):
        """Takes note of an operator that will run. Returns what it reads and will overwrite, if that is watched."""
        self.operators.add(str(func.overloadpacket))
        if current_node() is None and torch.is_grad_enabled():
            self.lines[next_number() - 1] = line()
        return self.notes.overwritten(func, args) if self.notes is not None else {}

    def after(self, func, args, out, before):
        if self.notes is not None:
            self.notes(func, args, out, before)

    def meets(self, what, group, first):
        """Takes note of a collective, which counts once, for the first rank of its group."""
        self.collectives += first and SEEN.computes
        if self.notes is not None:
            self.notes.meets(what, group)

    def drops(self, elements, state):
        """Takes note of elements that dropout takes with a state of random numbers. Returns with how many others before."""
        states = [self.dropped.setdefault(x, []) for x in elements.reshape(-1).tolist()]
        [of.append(state) for of in states if state not in of]
        return torch.tensor([of.index(state) for of in states]).view(elements.shape)

    def takes(self, name, rows, index):
        """Takes note of rows that an operator takes by integers."""
        self.met.setdefault((name, rows), set()).update(index.reshape(-1).tolist())

    def assumes(self, what):
        self.assumptions.add(what)

    def place(self):
        """Where the program is, to end a sentence with."""
        found, is_backward = self.line()
        return f", in the backward of {found}" if found and is_backward else f", at {found}" if found else ""

    def line(self):
        """The line that runs, and whether it runs backward: then it is the forward operator's, unless the program has a
        backward of its own."""
        node = current_node()
        if node is None or isinstance(node, torch.autograd.function.BackwardCFunction):
            return line(), False
        return self.lines.get(number(node), ""), True


def is_users(path):
    """True for a file, or a line of one, that is neither torch's nor of this package."""
    return not path.startswith((OURS, TORCH, PROCESSES, "<"))


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
