"""What two programs have computed, compared bit for bit."""

import torch

from .field import P, Refused


class Different(AssertionError):
    """The split program computes something else."""


def compared(whole, parts, outputs):
    """Compares what all ranks have computed with the unsplit program's. Returns how many tensors of each kind.

    Raises `Different` with the first that differs.
    """
    elements = Elements(whole, len(parts))
    places = [
        {name: elements.at(name, rank, x) for name, x in part.parameters.items()} for rank, part in enumerate(parts)
    ]
    elements.all_held(places)
    check_outputs(whole, parts, outputs)
    for rank, part in enumerate(parts):
        elements.check(rank, part, places[rank])
        for at, (x, wanted) in enumerate(zip(part.of_inputs, whole.of_inputs)):
            if not torch.equal(x, wanted):
                said = guess(wanted, [of.of_inputs[at] for of in parts], rank)
                raise Different(f"the gradient of input {at} of rank {rank} differs from the unsplit one{said}")
    kinds = {"output": whole.outputs, "gradient": [*whole.gradients, *whole.of_inputs]}
    counts = {kind + "s" * (len(every) != 1): len(every) for kind, every in kinds.items()}
    return counts | {f"parameters after a step of {name}": len(after) for name, after in whole.stepped.items()}


def check_outputs(whole, parts, outputs):
    for rank, part in enumerate(parts):
        if len(part.outputs) != len(whole.outputs):
            raise Different(
                f"rank {rank} returns {len(part.outputs)} tensors, the unsplit program {len(whole.outputs)}"
            )
    for at, wanted in enumerate(whole.outputs):
        every = [part.outputs[at] for part in parts]
        if outputs != "equal":
            joined = sum_of(every)
            if outputs == "mean":
                joined = [x * pow(len(every), P - 2, P) % P for x in joined]
            every = [torch.tensor(joined, dtype=torch.int64).view(every[0].shape)]
        for rank, x in enumerate(every):
            name = naming(at, len(whole.outputs))
            if not torch.equal(x, part_like(wanted, x.shape, rank, name)):
                what = f"of rank {rank}" if outputs == "equal" else f"as the {outputs} over ranks"
                raise Different(
                    f"{name} {what} differs from the unsplit one{guess(wanted, [p.outputs[at] for p in parts], rank)}"
                )


def naming(at, count):
    """What sentences call an output."""
    return "the output" if count == 1 else f"output {at}"


def sum_of(every):
    """The elements of the sum of tensors, in one row."""
    return [sum(values) % P for values in zip(*(x.reshape(-1).tolist() for x in every))]


def guess(wanted, every, rank):
    """What a tensor that differs is instead of the wanted one, if that is plain."""
    x, n = every[rank], len(every)
    if any(y.shape != wanted.shape for y in every):
        return ""
    wanted, mine = wanted.reshape(-1).tolist(), x.reshape(-1).tolist()
    for factor, times, what in scales(n):
        if [y * factor % P for y in mine] == wanted:
            return f": it is {times} the unsplit one, {what}"
    if n > 1 and sum_of(every) == wanted:
        return ": it is a partial sum, and the sum over ranks would be right"
    return ""


def scales(ranks):
    """Factors that make right what is wrong by the number of ranks, and what that says."""
    if ranks < 2:
        return ()
    inverse = pow(ranks, P - 2, P)
    return (
        (inverse, f"{ranks} times", "summed where every rank had the whole, or not divided"),
        (ranks, f"1/{ranks} of", "a mean in place of a sum"),
    )


def part_like(whole, shape, rank, what):
    """A rank's part of a tensor, of this shape: the whole, or one of equal parts along one dimension."""
    if whole.shape == shape:
        return whole
    dims = [d for d in range(whole.dim()) if len(shape) == whole.dim() and whole.shape[d] != shape[d]]
    if len(dims) != 1 or whole.shape[dims[0]] % shape[dims[0]]:
        raise Different(
            f"{what} has shape {list(shape)} on rank {rank}, and {list(whole.shape)} unsplit; wanted the same, or an equal "
            "part along one dimension"
        )
    parts = whole.shape[dims[0]] // shape[dims[0]]
    return whole.chunk(parts, dims[0])[rank % parts]


class Elements:
    """All elements of the unsplit program's parameters. Each was drawn, so a rank's parameters are found by their values,
    however they are cut, joined or ordered."""

    def __init__(self, whole, ranks):
        self.whole, self.ranks = whole, ranks
        self.names = list(whole.parameters)
        values = torch.cat([x.reshape(-1) for x in whole.parameters.values()] or [torch.empty(0, dtype=torch.int64)])
        self.sorted, self.order = values.sort()
        self.ends = torch.tensor([x.numel() for x in whole.parameters.values()]).cumsum(0)

    def joined(self, tensors):
        """The elements of tensors by parameter, in one row; 0 for none."""
        rows = [
            (torch.zeros_like(self.whole.parameters[n]) if tensors[n] is None else tensors[n]).reshape(-1)
            for n in self.names
        ]
        return torch.cat(rows or [torch.empty(0, dtype=torch.int64)])

    def at(self, name, rank, x):
        """Where the elements of a rank's parameter stand in the row; -1 for padding, which is 0."""
        found = torch.searchsorted(self.sorted, x.reshape(-1)).clamp(max=max(len(self.sorted) - 1, 0))
        known = self.sorted[found] == x.reshape(-1) if len(self.sorted) else torch.zeros(x.numel(), dtype=torch.bool)
        if not bool((known | (x.reshape(-1) == 0)).all()):
            raise Refused(
                f"the parameter {name} of the split on rank {rank} has no partner: it holds values that no parameter of the "
                "unsplit module has; take them from the module that split is given, unchanged"
            )
        return torch.where(known, self.order[found], -1)

    def check(self, rank, part, places):
        kinds = {"the gradient of": (part.gradients, self.whole.gradients)}
        for name, after in part.stepped.items():
            if name not in self.whole.stepped:
                raise Different(
                    f"the parameters of rank {rank} have changed by {name}, those of the unsplit program have not"
                )
            kinds[f"after a step of {name},"] = after, self.whole.stepped[name]
        for kind, (mine, wanted) in kinds.items():
            wanted = self.joined(wanted)
            for name, at in places.items():
                x = mine[name] if mine[name] is not None else torch.zeros_like(part.parameters[name])
                kept = at >= 0
                if not torch.equal(x.reshape(-1)[kept], wanted[at[kept]]):
                    said = guess(wanted[at[kept]], [x.reshape(-1)[kept]] * self.ranks, rank)
                    raise Different(f"{kind} {name} of rank {rank} differs from the unsplit one{said}")

    def all_held(self, places):
        held = torch.zeros(len(self.sorted), dtype=torch.bool)
        for at in (at for of in places for at in of.values()):
            held[at[at >= 0]] = True
        if bool(held.all()):
            return
        first = int((~held).nonzero()[0])
        name = self.names[int(torch.searchsorted(self.ends, first, right=True))]
        raise Refused(f"the unsplit module's parameter {name} has elements that no rank of the split holds")
