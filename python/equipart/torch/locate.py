"""Where a split program goes wrong: the first tensor that differs, found backwards from a result that does.

A tensor of the split program is right if the unsplit program computes all its elements somewhere, and is a partial sum if
the sum over ranks is right. From a wrong result the search goes to the operator that wrote it, and from there to those
that wrote its wrong operands, until all operands of an operator are right or partial.
"""

import threading
from dataclasses import dataclass

import torch
from torch.utils._pytree import tree_leaves

from .compare import scales, sum_of
from .field import P, FieldTensor
from .running import line


@dataclass
class Note:
    """An operator that ran, and what it wrote."""

    rank: int
    number: int  # of this rank
    operator: str
    module: str
    line: str
    backward: bool
    operands: list  # the memories read, each with its elements
    result: torch.Tensor
    memory: int
    collectives: tuple  # how many came before on this rank, and the last

    def __str__(self):
        module = f" of {self.module}" if self.module else ""
        backward = f" in the backward{module}" if self.backward else module and f" in{module[3:]}"
        return f"{self.operator}{backward}{f', at {self.line}' if self.line else ''}"


class Notes:
    """Takes note of all operators of a run, of all its ranks. `values` takes all elements that are computed, also within
    operators, where they are asked for: those of the unsplit program."""

    def __init__(self, run, values=None):
        self.run, self.here, self.values = run, threading.local(), values
        self.every, self.kept = [], []
        self.ranks, self.counts, self.collectives, self.groups = 1, {}, {}, set()
        run.notes = self

    def begins(self, rank, ranks, module):
        """Begins a rank's notes. Its modules' names are known from here on."""
        self.here.rank, self.here.stack, self.here.forward = rank, [], {}
        self.here.names = {id(part): name for name, part in module.named_modules()}
        self.ranks, self.counts[rank], self.collectives[rank] = ranks, 0, (0, "")
        self.groups |= {tuple(range(ranks))} if ranks > 1 else set()

    def ends(self):
        """Ends a rank's notes: what follows compares its results."""
        del self.here.rank

    def enters(self, module, _):
        if hasattr(self.here, "stack"):
            self.here.stack.append(self.here.names.get(id(module), type(module).__name__))

    def leaves(self, module, *_):
        if getattr(self.here, "stack", None):
            self.here.stack.pop()

    def watching(self):
        """The hooks by which modules are known; each has `remove`."""
        hooks = torch.nn.modules.module
        return [
            hooks.register_module_forward_pre_hook(self.enters),
            hooks.register_module_forward_hook(self.leaves, always_call=True),
        ]

    def meets(self, what, group):
        """Takes note of a collective."""
        if hasattr(self.here, "rank"):
            self.groups.add(group)
            count, _ = self.collectives[self.here.rank]
            call = f"{what} among ranks {', '.join(map(str, group))}{self.run.place()}"
            self.collectives[self.here.rank] = count + 1, call

    def __call__(self, func, args, out):
        here = self.here
        if not hasattr(here, "rank") or func.is_view:
            return
        operands = [x for x in tree_leaves(args) if isinstance(x, FieldTensor)]
        results = [x for x in tree_leaves(out) if isinstance(x, FieldTensor)]
        if not func._schema.is_mutable:
            results = [x for x in results if all(x is not operand for operand in operands)]
        module, place, backward = self.place()
        for x in results:
            self.counts[here.rank] += 1
            self.kept.append(x.residues)  # its memory is not used again
            self.every.append(
                Note(
                    here.rank,
                    self.counts[here.rank],
                    func.overloadpacket.__name__,
                    module,
                    place,
                    backward,
                    [(memory(y.residues), y.residues.clone()) for y in operands if y is not x],
                    x.residues.clone(),
                    memory(x.residues),
                    self.collectives[here.rank],
                )
            )
            self.kept.extend(y.residues for y in operands)

    def place(self):
        """The module and the line of the operator that runs; in backward those of the forward operator."""
        node = torch._C._current_autograd_node()
        if node is None:
            module, place = (self.here.stack or [""])[-1], line()
            self.here.forward[torch.autograd._get_sequence_nr() - 1] = module, place
            return module, place, False
        module, place = self.here.forward.get(node._sequence_nr(), ("", ""))
        own = isinstance(node, torch.autograd.function.BackwardCFunction)
        return module, line() if own else place, True


def memory(x):
    return x.untyped_storage().data_ptr()


class Search:
    """The search from a wrong result to the first tensor that differs."""

    def __init__(self, unsplit, split):
        self.split, self.written, self.same = split, {}, {}
        for at, note in enumerate(split.every):
            self.written.setdefault(note.memory, []).append(at)
            self.same.setdefault((note.number, note.operator, note.result.shape), []).append(note)
        values = [x.reshape(-1) for x in unsplit.values]
        self.sorted = torch.cat(values + [torch.zeros(1, dtype=torch.int64)]).unique()

    def right(self, x):
        """True if the unsplit program computes all these elements."""
        x = x.reshape(-1)
        at = torch.searchsorted(self.sorted, x).clamp(max=len(self.sorted) - 1)
        return bool((self.sorted[at] == x).all())

    def partial(self, note):
        """True if the sum over a group of ranks is right."""
        every = {other.rank: other for other in self.same[note.number, note.operator, note.result.shape]}
        for group in self.split.groups:
            if note.rank in group and all(rank in every for rank in group):
                if self.right(torch.tensor(sum_of([every[rank].result for rank in group]))):
                    return True
        return False

    def writer(self, where, x, before):
        """The note of what wrote these elements to a memory."""
        for at in reversed(self.written.get(where, ())):
            if at < before:
                return at
        return None

    def first(self, results):
        """The first note, in the order of the program, that has a wrong result and no wrong operand."""
        seen, found = set(), []
        todo = [at for where, x in results if (at := self.writer(where, x, len(self.split.every))) is not None]
        while todo:
            at = todo.pop()
            if at in seen:
                continue
            seen.add(at)
            note = self.split.every[at]
            wrong, partial = [], []
            for where, x in note.operands:
                by = None if self.right(x) else self.writer(where, x, at)
                if by is not None:
                    (partial if self.partial(self.split.every[by]) else wrong).append(by)
            todo += wrong
            if not wrong and not (self.right(note.result) and not partial):
                found.append((note.number, note.rank, note, [self.split.every[by] for by in partial]))
        return min(found, key=lambda each: each[:2])[2:] if found else None

    def guess(self, note, partial):
        """What the tensor is instead, where that is plain."""
        ranks = self.split.ranks
        for it, of in [(f"it takes {other}, which is", other) for other in partial] or [("it is", note)]:
            every = self.same[of.number, of.operator, of.result.shape]
            alike = all(torch.equal(other.result, of.result) for other in every)
            for factor, times, what in scales(ranks) if alike else ():
                if self.right(torch.tensor([x * factor % P for x in of.result.reshape(-1).tolist()])):
                    return f"{it} {times} what the unsplit program computes: {what}"
            if partial or self.partial(note):
                return f"{it} a partial sum that nobody summed: the sum over ranks would be right"
        return ""


def located(unsplit, split, results):
    """Sentences about the first tensor that differs."""
    search = Search(unsplit, split)
    found = search.first(results)
    if found is None:
        return "\n  all its elements are ones that the unsplit program computes elsewhere: another rank's part, or another order"
    note, partial = found
    guess = search.guess(note, partial)
    count, last = note.collectives
    collectives = f"\n  collectives before it: {count}, the last: {last}" if count else "\n  no collective before it"
    return (
        f"\n  the first tensor that differs, on rank {note.rank}: {note}"
        + (f"\n  {guess}" if guess else "")
        + collectives
    )
