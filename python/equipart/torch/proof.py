"""The proof: both programs are run on the same elements, and what they compute is compared."""

import math
import random
import sys
from dataclasses import dataclass

import torch

from .compare import Different, unmet, unseen
from .field import Refused
from .program import Program

CHOICES = 4  # keys at least, where a program chooses by the order of values

OPTIMIZERS = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.5, momentum=0.5, weight_decay=0.25, foreach=False),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.5, foreach=False),
}


@dataclass
class Proof:
    """What was proven."""

    tensors: dict  # how many of each kind were compared
    ranks: int
    operators: set
    collectives: int
    keys: int
    log2_error: float  # of the probability that a wrong program passes; 0 where there is no bound
    assumptions: set
    unseen: list  # what was not compared
    unmet: list  # rows that no number of an input has met
    choices: set  # lines that choose by the order of values

    def __str__(self):
        compared = ", ".join(f"{count} {kind}" for kind, count in self.tensors.items())
        numbers = {"operator": len(self.operators), "collective": self.collectives, "key": self.keys}
        counts = [f"{count} {what}{'s' * (count != 1)}" for what, count in numbers.items()]
        passes = "a wrong program passes with a probability of at most"
        lines = [
            f"{'proven' if self.log2_error else 'equal'}: on {self.ranks} ranks the split program computes what the unsplit one computes",
            f"  compared bit for bit: {compared}",
            f"  {counts[0]}, {counts[1]}; {counts[2]}: "
            + (f"{passes} 2^{self.log2_error:.0f}" if self.log2_error else "it is too deep for a bound on the probability of error"),
        ]
        lines += [f"  not compared: {what}" for what in self.unseen]
        lines += [f"  not met: {what}; `ids=\"all\"` draws them" for what in self.unmet]
        if self.choices:
            lines.append(
                f"  choices by order, at {', '.join(sorted(self.choices))}, fell as {self.keys} keys drew them: what is wrong "
                f"for a part p of all choices passes with (1 - p)^{self.keys}"
            )
        return "\n".join(lines + [f"  assumed: {what}" for what in sorted(self.assumptions)])


def prove(
    unsplit, split, ranks=2, *, inputs=(), loss=None, outputs="equal", optimizers=OPTIMIZERS, log2_error=-60, keys=None,
    ids="given", seed=None, timeout=600
):
    """Proves that a split program computes what the unsplit one computes, or raises.

    `unsplit()` builds the module. `split(module)` takes one that was built so, and returns it split, or another module
    that holds its parameters or parts of them; `split()` builds its own, with the same names. It runs on each rank, in a
    process group of `ranks` ranks. Of several splits, or numbers of ranks, in a list, each is proven beside one run of the
    unsplit program. `loss(module, *inputs)` is called for both, and returns a loss or tensors; without it the module is
    called. It may call backward, and step an optimizer. Floats of `inputs` are drawn; integers stay, or, by `ids="all"`, are
    drawn so that those that choose rows meet the first and the last row of each rank's part.

    `outputs` says how those of all ranks make up the unsplit ones: "equal" (or a part along one dimension), "mean" or
    "sum" over ranks. `optimizers` are made by a function of the parameters; each makes two steps, unless `loss` does, which
    is then called twice. Runs are repeated under so many `keys`, or until a wrong program passes with a probability of at
    most 2^`log2_error`; by None, a program that is too deep for a bound is only compared. A rank may compute for `timeout`
    seconds without a call.

    Returns a `Proof`, or a list. Raises `Different` with the first tensor that differs, and `Refused` for what cannot be
    proven.
    """
    __tracebackhide__ = True  # of pytest
    if log2_error is not None and log2_error >= 0:
        raise ValueError(f"log2_error is {log2_error}; wanted a number below 0, or None")
    if keys is not None and (not isinstance(keys, int) or keys < 1):
        raise ValueError(f"keys is {keys!r}; wanted a number of 1 or more")
    keys = keys or CHOICES if log2_error is None else keys
    seed = random.getrandbits(63) if seed is None else seed
    several = [x for x in (split, ranks) if isinstance(x, (list, tuple))]
    count = len(several[0]) if several else 1
    splits, numbers = (list(x) if isinstance(x, (list, tuple)) else [x] * count for x in (split, ranks))
    if len(splits) != len(numbers):
        raise ValueError(f"there are {len(splits)} splits and {len(numbers)} numbers of ranks; wanted as many")
    if ids not in ("given", "all"):
        raise ValueError(f'ids is {ids!r}; wanted "given" or "all"')
    wholes = {}
    programs = [
        Program(unsplit, *each, inputs, loss, outputs, optimizers, timeout, wholes) for each in zip(splits, numbers)
    ]
    try:
        proofs = [proof_of(program, seed, keys, log2_error, ids) for program in programs]
    except (Different, Refused) as error:
        raise error.with_traceback(None) from None
    return proofs if several else proofs[0]


def proof_of(program, seed, keys, log2_error, ids):
    """Proves under so many keys, or until the probability of error is as small as this power of two."""
    error, count, choices, met, sizes = 0.0, 0, set(), {}, {}
    try:
        if ids == "all":
            program.spreads(seed, max(program.ranks, 2))
        while count < (keys or CHOICES * bool(choices)) or keys is None and error > log2_error:
            progress(f"key {count + 1}, {program.ranks} ranks")
            tensors, run, whole, parts = program.proven(seed + count)
            error, count = error + math.log2(min(run.bound, 1.0)), count + 1
            if run.bound > 2**-4 and log2_error is not None:
                raise Refused(
                    "the program is too deep for a bound on the probability of error; give it fewer layers, let `optimizers` step "
                    "it if it steps itself, or compare it without a bound by `log2_error=None`"
                )
            choices |= run.choices
            for at, rows in whole.met.items():
                met.setdefault(at, set()).update(rows)
            [sizes.setdefault(name, set()).add(size) for part in parts for name, size in part.met]
    finally:
        progress("")
    rows = unmet(met, sizes)
    return Proof(
        tensors, program.ranks, run.operators, run.collectives, count, error, run.assumptions, unseen(whole, parts), rows, choices
    )  # fmt: skip


def progress(what):
    """Shows on a terminal what is done; nothing is left of it in the end."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{what}", end="", file=sys.stderr, flush=True)
