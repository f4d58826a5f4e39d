"""Where a split program goes wrong: the first tensor that differs, found backwards from a result that does.

A tensor of the split program is right if the unsplit program computes all its elements somewhere, and is a partial sum if
the sum over ranks is right. From a wrong result the search goes to the operator that wrote it, and from there to those
that wrote its wrong operands, until all operands of an operator are right or partial.
"""

from dataclasses import dataclass

import torch

from .compare import scales, sum_of
from .field import P, FieldTensor
from .private import current_node, next_number, number, tree_leaves
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
    operands: list  # the memories read, each with the number of operators before, and its elements
    result: torch.Tensor
    memory: tuple
    collectives: tuple  # how many came before on this rank, and the last

    def __str__(self):
        module = f" of {self.module}" if self.module else ""
        backward = f" in the backward{module}" if self.backward else module and f" in{module[3:]}"
        return f"{self.operator}{backward}{f', at {self.line}' if self.line else ''}"


class Notes:
    """Takes note of all operators of a rank's run. `values`, of the unsplit program, takes all elements that are computed,
    also within operators."""

    def __init__(self, run, rank, ranks, module):
        self.run, self.rank, self.ranks, self.values = run, rank, ranks, [] if ranks == 1 else None
        self.every, self.kept, self.stack, self.forward, self.received = [], [], [], {}, {}
        self.collectives, self.groups = (0, ""), {tuple(range(ranks))} if ranks > 1 else set()
        self.names = {id(part): name for name, part in module.named_modules()}
        hooks = torch.nn.modules.module
        hooks.register_module_forward_pre_hook(self.enters)
        hooks.register_module_forward_hook(self.leaves, always_call=True)
        run.notes = self

    def ends(self):
        """Ends the notes: what follows compares results."""
        self.run.notes = None

    def __getstate__(self):
        values = None if self.values is None else torch.cat([x.reshape(-1) for x in self.values]).unique()
        return dict(every=self.every, received=self.received, ranks=self.ranks, groups=self.groups, values=values)

    def enters(self, module, _):
        self.stack.append(self.names.get(id(module), type(module).__name__))

    def leaves(self, module, *_):
        self.stack.pop()

    def meets(self, what, group):
        """Takes note of a collective."""
        self.groups.add(group)
        call = f"{what} among ranks {', '.join(map(str, group))}{self.run.place()}"
        self.collectives = self.collectives[0] + 1, call

    def written(self, x):
        """The memory of a tensor on this rank, and how many operators have run."""
        return (self.rank, x.untyped_storage().data_ptr()), len(self.every)

    def receives(self, x, written):
        """Takes note of a tensor that another rank has written."""
        self.kept.append(x)
        self.received[self.written(x)[0]] = written

    def __call__(self, func, args, out):
        if func.is_view:
            return
        operands = [x for x in tree_leaves(args) if isinstance(x, FieldTensor)]
        results = [x for x in tree_leaves(out) if isinstance(x, FieldTensor)]
        if not func._schema.is_mutable:
            results = [x for x in results if all(x is not operand for operand in operands)]
        module, place, backward = self.place()
        for x in results:
            self.kept.append(x.residues)  # its memory is not used again
            self.every.append(
                Note(
                    self.rank,
                    len(self.every) + 1,
                    func.overloadpacket.__name__,
                    module,
                    place,
                    backward,
                    [(*self.written(y.residues), y.residues.clone()) for y in operands if y is not x],
                    x.residues.clone(),
                    self.written(x.residues)[0],
                    self.collectives,
                )
            )
            self.kept.extend(y.residues for y in operands)

    def place(self):
        """The module and the line of the operator that runs; in backward those of the forward operator."""
        node = current_node()
        if node is None:
            module, place = (self.stack or [""])[-1], line()
            self.forward[next_number() - 1] = module, place
            return module, place, False
        module, place = self.forward.get(number(node), ("", ""))
        own = isinstance(node, torch.autograd.function.BackwardCFunction)
        return module, line() if own else place, True


class Search:
    """The search from a wrong result to the first tensor that differs."""

    def __init__(self, unsplit, parts):
        self.every = sorted((note for part in parts for note in part.every), key=lambda note: note.number)
        self.groups = set().union(*(part.groups for part in parts))
        self.ranks, self.written, self.same = len(parts), {}, {}
        self.received = {where: written for part in parts for where, written in part.received.items()}
        for at, note in enumerate(self.every):
            self.written.setdefault(note.memory, []).append(at)
            self.same.setdefault((note.number, note.operator, note.result.shape), []).append(note)
        self.sorted = torch.cat([unsplit.values, torch.zeros(1, dtype=torch.int64)]).unique()

    def right(self, x):
        """True if the unsplit program computes all these elements."""
        x = x.reshape(-1)
        at = torch.searchsorted(self.sorted, x).clamp(max=len(self.sorted) - 1)
        return bool((self.sorted[at] == x).all())

    def partial(self, note):
        """True if the sum over a group of ranks is right."""
        every = {other.rank: other for other in self.same[note.number, note.operator, note.result.shape]}
        for group in self.groups:
            if note.rank in group and all(rank in every for rank in group):
                if self.right(torch.tensor(sum_of([every[rank].result for rank in group]))):
                    return True
        return False

    def writer(self, where, before):
        """The note of what wrote these elements to a memory, perhaps on another rank, within so many operators."""
        for at in reversed(self.written.get(where, ())):
            if self.every[at].number <= before:
                return at
        return self.writer(*self.received[where]) if where in self.received else None

    def first(self, results):
        """The first note, in the order of the program, that has a wrong result and no wrong operand."""
        seen, found = set(), []
        todo = [at for where, before, _ in results if (at := self.writer(where, before)) is not None]
        while todo:
            at = todo.pop()
            if at in seen:
                continue
            seen.add(at)
            note = self.every[at]
            wrong, partial = [], []
            for where, before, x in note.operands:
                by = None if self.right(x) else self.writer(where, before)
                if by is not None:
                    (partial if self.partial(self.every[by]) else wrong).append(by)
            todo += wrong
            if not wrong and not (self.right(note.result) and not partial):
                found.append((note.number, note.rank, note, [self.every[by] for by in partial]))
        return min(found, key=lambda each: each[:2])[2:] if found else None

    def guess(self, note, partial):
        """What the tensor is instead, where that is plain."""
        ranks = self.ranks
        for it, of in [(f"it takes {other}, which is", other) for other in partial] or [("it is", note)]:
            every = self.same[of.number, of.operator, of.result.shape]
            alike = all(torch.equal(other.result, of.result) for other in every)
            for factor, times, what in scales(ranks) if alike else ():
                if self.right(torch.tensor([x * factor % P for x in of.result.reshape(-1).tolist()])):
                    return f"{it} {times} what the unsplit program computes: {what}"
            if partial or self.partial(note):
                return f"{it} a partial sum that nobody summed: the sum over ranks would be right"
        return ""


def located(unsplit, parts, results):
    """Sentences about the first tensor that differs."""
    search = Search(unsplit, parts)
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
