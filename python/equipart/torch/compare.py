"""What two programs have computed, compared bit for bit."""

import functools

import torch

from .field import P, Refused


OWN = "its own optimizer"  # of a program that steps


class Different(AssertionError):
    """The split program computes something else."""

    is_of_operators = True  # so that one of them can be named


def without_operator(sentence):
    """A difference that no operator of the program has made."""
    error = Different(sentence)
    error.is_of_operators = False
    return error


def compared(whole, parts, outputs):
    """Compares what all ranks have computed with the unsplit program's. Returns how many tensors of each kind.

    Raises `Different` with the first that differs.
    """
    is_own = OWN in whole.stepped
    learning = [x for x in (*whole.gradients.values(), *whole.of_inputs) if x is not None and not is_own]
    plain = [x for x in whole.plain if not isinstance(x, tuple)]  # a tuple has the keys of a dictionary
    if not (whole.outputs or plain or learning or is_own):
        raise Refused("there is nothing to compare: the program returns no tensor and no number, and has no gradient")
    elements = Elements(whole, len(parts))
    places = [
        {name: elements.at(name, rank, x) for name, x in part.parameters.items()} for rank, part in enumerate(parts)
    ]
    elements.all_held(places)
    check_outputs(whole, parts, outputs)
    check_dropped(parts)
    for rank, part in enumerate(parts):
        elements.check(rank, parts, places)
        for at, (x, wanted) in enumerate(zip(part.of_inputs, whole.of_inputs)):
            if not torch.equal(x, wanted):
                said = guess(wanted, [of.of_inputs[at] for of in parts], rank)
                raise Different(f"the gradient of input {at} of rank {rank} differs from the unsplit one{said}")
    try:
        check_outputs(whole, parts, outputs, True)
        check_buffers(whole, parts)
    except Different as error:
        raise without_operator(str(error)) from None
    buffers = [name for name in whole.buffers if any(name in part.buffers for part in parts)]
    kinds = {"output": whole.outputs + plain, "gradient": learning, "buffer": buffers}
    counts = {kind + "s" * (len(every) != 1): len(every) for kind, every in kinds.items() if every or kind == "output"}
    return counts | {f"parameters after two steps of {name}": len(after) for name, after in whole.stepped.items()}


def unseen(whole, parts):
    """What was not compared, in words."""
    without = [name for name, x in whole.gradients.items() if x is None and OWN not in whole.stepped]
    alone = [name for name in whole.buffers if not any(name in part.buffers for part in parts)]
    said = {"parameters without a gradient": without, "buffers that no rank has": alone}
    some = lambda names: ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    used = ["gradients, which its own step has used"] * (OWN in whole.stepped and any(whole.gradients))
    return used + [f"{kind}: {some(names)}" for kind, names in said.items() if names]


def unmet(met, sizes):
    """Rows where a rank's part begins or ends that no integer has taken, in words: of `met` rows, by operator and number, and
    the numbers of rows of the split's parts, by operator."""
    said = []
    for (name, whole), rows in met.items():
        parts = {size for size in sizes.get(name, ()) if 0 < size < whole} if whole not in sizes.get(name, ()) else ()
        ends = {row for size in parts for end in range(0, whole + 1, size) for row in (end - 1, end) if 0 <= row < whole}
        missing = sorted(ends - rows)
        if missing:
            some = ", ".join(map(str, missing[:8])) + (" and more" if len(missing) > 8 else "")
            parts = " or ".join(map(str, sorted(parts)))
            said.append(f"rows {some} of the {whole} that {name} takes from, where parts of {parts} begin or end")
    return said


def check_outputs(whole, parts, outputs, is_again=False):
    of = lambda x: x.again if is_again else (x.outputs, x.plain)
    second = " in the second call" * is_again
    (wanted, plain), every = of(whole), [of(part) for part in parts]
    for rank, (mine, _) in enumerate(every):
        if len(mine) != len(wanted):
            raise Different(f"rank {rank} returns {len(mine)} tensors{second}, the unsplit program {len(wanted)}")
    for rank, (_, mine) in enumerate(every):
        if mine != plain and not (outputs != "equal" and made_up(plain, [of for _, of in every], outputs)):
            raise Different(f"rank {rank} returns {mine}{second}, the unsplit program {plain}")
    check_tensors(wanted, [mine for mine, _ in every], outputs, second)


def check_tensors(wholes, parts, outputs, second):
    for at, wanted in enumerate(wholes):
        every = [part[at] for part in parts]
        name = naming(at, len(wholes)) + second
        if outputs == "equal":
            check_parts(name, wanted, every)
            continue
        joined = sum_of(every)
        if outputs == "mean":
            joined = [x * pow(len(every), P - 2, P) % P for x in joined]
        if any(x.shape != wanted.shape for x in every) or joined != wanted.reshape(-1).tolist():
            raise Different(f"{name} as the {outputs} over ranks differs from the unsplit one{guess(wanted, every, 0)}")


def made_up(wanted, parts, outputs):
    """True if the numbers of all ranks make up the unsplit ones, as their outputs do."""
    ranks = len(parts) if outputs == "mean" else 1
    columns = list(zip(*parts))
    known = lambda x, column: all(isinstance(y, (int, float)) for y in column) and sum(column) == x * ranks or set(column) == {x}
    return len(columns) == len(wanted) and all(map(known, wanted, columns))


def check_parts(name, wanted, every):
    """Checks that each rank has a tensor or a part of it, and that each element is on some rank."""
    held = torch.zeros(wanted.shape, dtype=torch.bool)
    for rank, x in enumerate(every):
        at = place_of(wanted, x, rank, name)
        if not torch.equal(wanted[at], x):
            raise Different(f"{name} of rank {rank} differs from the unsplit one{guess(wanted, every, rank)}")
        held[at] = True
    if not bool(held.all()):
        first = (~held).nonzero()[0].tolist()
        raise Different(f"{name} has elements that no rank has, the first at {first}")


def check_dropped(parts):
    """Checks that ranks that drop the same elements draw the same random numbers for them."""
    first = {}
    for rank, part in enumerate(parts):
        for x, states in part.dropped.items():
            other, theirs = first.setdefault(x, (rank, states))
            if states != theirs:
                raise without_operator(
                    f"ranks {other} and {rank} drop the same elements with different random numbers, so in floats their masks differ"
                )


def check_buffers(whole, parts):
    for name, wanted in whole.buffers.items():
        every = [part.buffers[name] for part in parts if name in part.buffers]
        if every:
            check_parts(f"the buffer {name}", wanted, every)


def place_of(whole, x, rank, name):
    """Where in a tensor a rank's part is: the whole, or rows next to each other along one dimension, by their values; those
    of the rank's number where no values fit."""
    if whole.shape == x.shape:
        return ...
    dim, count, usual = cut(whole, x.shape, rank)
    if dim is None or whole.shape[dim] < count:
        raise Different(
            f"{name} has shape {list(x.shape)} on rank {rank}, and {list(whole.shape)} unsplit; wanted the same, or a part "
            "along one dimension"
        )
    for first in (usual, *range(whole.shape[dim] - count + 1)):
        if torch.equal(whole.narrow(dim, first, count), x):
            break
    else:
        first = usual
    return rows(dim, first, count)


def rows(dim, first, count):
    """The index of rows along a dimension."""
    return (slice(None),) * dim + (slice(first, first + count),)


def cut(whole, shape, rank):
    """The one dimension along which a shape is a part of a tensor's, or None; its rows; and the first of a rank's by number."""
    dims = [d for d in range(whole.dim()) if len(shape) == whole.dim() and whole.shape[d] != shape[d]]
    if len(dims) != 1:
        return None, 0, 0
    count = shape[dims[0]]
    return dims[0], count, rank % max(whole.shape[dims[0]] // max(count, 1), 1) * count


def naming(at, count):
    """What sentences call an output."""
    return "the output" if count == 1 else f"output {at}"


def sum_of(every):
    """The elements of the sum of tensors, in one row."""
    return [sum(values) % P for values in zip(*(x.reshape(-1).tolist() for x in every))]


def guess(wanted, every, rank, ranks=None):
    """What a tensor that differs is instead of the wanted one, if that is plain; `every` has those of ranks that hold it."""
    x, n = every[rank], len(every)
    if any(y.shape != wanted.shape for y in every):
        return ""
    wanted, mine = wanted.reshape(-1).tolist(), x.reshape(-1).tolist()
    for factor, times, what in scales(ranks or n):
        if [y * factor % P for y in mine] == wanted:
            return f": it is {times} the unsplit one, {what}"
    for way, factor in (("sum", 1), ("mean", pow(n, P - 2, P))):
        if n > 1 and [y * factor % P for y in sum_of(every)] == wanted:
            return f": {'it is a partial sum, and ' * (way == 'sum')}the {way} over ranks would be right"
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
    dim, count, first = cut(whole, shape, rank)
    if dim is None or count and whole.shape[dim] % count:
        raise Different(
            f"{what} has shape {list(shape)} on rank {rank}, and {list(whole.shape)} unsplit; wanted the same, or an equal "
            "part along one dimension"
        )
    return whole.narrow(dim, first, count)


class Elements:
    """All elements of the unsplit program's parameters. Each was drawn, so a rank's parameters are found by their values,
    however they are cut, joined or ordered."""

    def __init__(self, whole, ranks):
        self.whole, self.ranks = whole, ranks
        self.names = list(whole.parameters)
        self.ends = torch.tensor([x.numel() for x in whole.parameters.values()]).cumsum(0)
        self.gradients, self.stepped = self.joined(whole.gradients), {of: self.joined(x) for of, x in whole.stepped.items()}

    @functools.cached_property
    def sorted(self):
        """All elements in order, and where each stands."""
        return self.joined(self.whole.parameters).sort()

    def joined(self, tensors):
        """The elements of tensors by parameter, in one row; 0 for none."""
        rows = [
            (torch.zeros_like(self.whole.parameters[n]) if tensors[n] is None else tensors[n]).reshape(-1)
            for n in self.names
        ]
        return torch.cat(rows or [torch.empty(0, dtype=torch.int64)])

    def at(self, name, rank, x):
        """Where the elements of a rank's parameter stand in the row; -1 for padding, which is 0."""
        whole = self.whole.parameters.get(name, x)
        dim, count, first = cut(whole, x.shape, rank)
        slices = ... if dim is None else rows(dim, first, count)
        if whole is not x and x.numel() and torch.equal(whole[slices], x):  # found soonest where most are
            end = self.ends[self.names.index(name)]
            return torch.arange(end - whole.numel(), end).view(whole.shape)[slices].reshape(-1)
        values, order = self.sorted
        found = torch.searchsorted(values, x.reshape(-1)).clamp(max=max(len(values) - 1, 0))
        known = values[found] == x.reshape(-1) if len(values) else torch.zeros(x.numel(), dtype=torch.bool)
        if not bool((known | (x.reshape(-1) == 0)).all()):
            raise Refused(
                f"the parameter {name} of the split on rank {rank} has no partner: it holds values that no parameter of the "
                "unsplit module has; take them from the module that split is given, unchanged"
            )
        return torch.where(known, order[found], -1)

    def check(self, rank, parts, places):
        learns = any(x is not None for x in parts[rank].gradients.values())
        if learns and list(parts[rank].stepped) != list(self.whole.stepped):
            raise without_operator(
                f"the parameters of rank {rank} are stepped by {', '.join(parts[rank].stepped) or 'nothing'}, those of the "
                f"unsplit program by {', '.join(self.whole.stepped) or 'nothing'}"
            )
        kinds = [] if OWN in self.whole.stepped else [("the gradient of", self.gradients, lambda of: of.gradients)]
        for stepped, wanted in self.stepped.items() if parts[rank].stepped else ():
            kinds.append((f"after two steps of {stepped},", wanted, lambda of, stepped=stepped: of.stepped[stepped]))
        for kind, wanted, of in kinds:
            for name, at in places[rank].items():
                kept, x = at >= 0, of(parts[rank])[name]
                raises = without_operator if kind != "the gradient of" and OWN not in kind else Different
                if x is None and bool(wanted[at[kept]].any()):
                    raise without_operator(f"{kind} {name} of rank {rank} is None, the unsplit one is not")
                if x is not None and not torch.equal(x.reshape(-1)[kept], wanted[at[kept]]):
                    alike = [part for part, has in zip(parts, places) if name in has and torch.equal(has[name], at)]
                    others = [of(part)[name] for part in alike if part is not parts[rank]]
                    every = [x, *(y for y in others if y is not None)]
                    said = guess(wanted[at[kept]], [y.reshape(-1)[kept] for y in every], 0, self.ranks)
                    raise raises(f"{kind} {name} of rank {rank} differs from the unsplit one{said}")

    def all_held(self, places):
        held = torch.zeros(len(self.gradients), dtype=torch.bool)
        for at in (at for of in places for at in of.values()):
            held[at[at >= 0]] = True
        if bool(held.all()):
            return
        first = int((~held).nonzero()[0])
        name = self.names[int(torch.searchsorted(self.ends, first, right=True))]
        raise Refused(f"the unsplit module's parameter {name} has elements that no rank of the split holds")
