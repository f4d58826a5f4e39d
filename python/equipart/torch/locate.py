"""Where a split program goes wrong: the first tensor that differs, found backwards from a result that does.

A tensor of the split program is right if the unsplit program computes all its elements somewhere, and is a partial sum if
the sum over ranks is right. From a wrong result the search goes to the operator that wrote it, and from there to those
that wrote its wrong operands, until all operands of an operator are right or partial.
"""

from dataclasses import dataclass

import torch

from .compare import scales, sum_of
from .field import P, FieldTensor
from .private import current_node, is_mutable, next_number, number, tree_leaves


SETS = ("copy_", "zero_", "fill_", "bernoulli_")  # operators in place that do not read what they overwrite
HASHES = {"exp", "rsqrt", "pow", "relu", "where", "clamp", "amax", "maximum", "threshold_backward", "silu", "gelu"}
UNKNOWN = (
    "\n  not known here: that relu(c·x) is c·relu(x), (1/√x)² is 1/x, and e^(a+b) is e^a·e^b; if the programs are equal by "
    "one of these, write both in one way"
)


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

    def overwritten(self, func, args):
        """What an operator in place reads of the tensor that it writes: its memory, and its elements."""
        if func.is_view or not args or func.overloadpacket.__name__ in SETS or not func.overloadpacket.__name__.endswith("_"):
            return {}
        return {id(x): (*self.written(x.residues), x.residues.clone()) for x in args[:1] if isinstance(x, FieldTensor)}

    def __call__(self, func, args, out, before):
        if func.is_view:
            return
        operands = [x for x in tree_leaves(args) if isinstance(x, FieldTensor)]
        results = [x for x in tree_leaves(out) if isinstance(x, FieldTensor)]
        if not is_mutable(func):
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
                    [
                        before[id(y)] if id(y) in before else (*self.written(y.residues), y.residues.clone())
                        for y in operands
                        if y is not x or id(y) in before
                    ],
                    x.residues.clone(),
                    self.written(x.residues)[0],
                    self.collectives,
                )
            )
            self.kept.extend(y.residues for y in operands)

    def place(self):
        """The module and the line of the operator that runs; in backward those of the forward operator."""
        node, (place, _) = current_node(), self.run.line()
        if node is None:
            module = (self.stack or [""])[-1]
            self.forward[next_number() - 1] = module
            return module, place, False
        return self.forward.get(number(node), ""), place, True


class Search:
    """The search from a wrong result to the first tensor that differs."""

    def __init__(self, unsplit, parts, is_mean):
        self.factors = (1, pow(len(parts), P - 2, P)) if is_mean else (1,)
        self.every = sorted((note for part in parts for note in part.every), key=lambda note: note.number)
        self.groups = set().union(*(part.groups for part in parts))
        self.ranks, self.written, self.same, self.on_the_way = len(parts), {}, {}, set()
        self.received = {where: written for part in parts for where, written in part.received.items()}
        for at, note in enumerate(self.every):
            self.written.setdefault(note.memory, []).append(at)
            self.same.setdefault((note.number, note.operator, note.result.shape), []).append(note)
        self.sorted = torch.cat([unsplit.values, torch.zeros(1, dtype=torch.int64)]).unique()

    def right(self, x):
        """True if the unsplit program computes all these elements; where the outputs' mean is right, those of a rank's own
        loss may be as many times larger."""
        return any(self.known(times(x, factor)) for factor in self.factors)

    def known(self, x):
        at = torch.searchsorted(self.sorted, x).clamp(max=len(self.sorted) - 1)
        return bool((self.sorted[at] == x).all())

    def partial(self, note):
        """"sum" or "mean" if that over a group of ranks is right."""
        every = {other.rank: other for other in self.same[note.number, note.operator, note.result.shape]}
        for group in self.groups:
            if note.rank in group and all(rank in every for rank in group):
                joined = torch.tensor(sum_of([every[rank].result for rank in group]))
                for way, factor in (("sum", 1), ("mean", pow(len(group), P - 2, P))):
                    if self.known(times(joined, factor)):
                        return way
        return ""

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
            self.on_the_way.add(note.operator)
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
        for it, of in [(f"it takes {other}, which is", other) for other in partial] or [("it is", note)]:
            every = self.same[of.number, of.operator, of.result.shape]
            for factor, size, what in scales(self.ranks):
                if all(self.known(times(other.result, factor)) for other in every) and self.factors == (1,):
                    return f"{it} {size} what the unsplit program computes: {what}"
            way = self.partial(of)
            if way:
                summed, mean = ("summed", "") if way == "sum" else ("averaged", ", or a sum of what is divided before")
                return f"{it} a partial sum that nobody {summed}: the {way} over ranks would be right{mean}"
        return UNKNOWN.strip() if any(at in HASHES for at in self.on_the_way) else ""


def times(x, factor):
    """The elements of a tensor times a factor, in one row."""
    x = x.reshape(-1)
    return x if factor == 1 else torch.tensor([value * factor % P for value in x.tolist()])


def located(unsplit, parts, results, is_mean):
    """Sentences about the first tensor that differs."""
    search = Search(unsplit, parts, is_mean)
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
