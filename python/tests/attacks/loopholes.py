"""What a proof may overlook: structures of outputs, messages, comparisons of masks, second steps."""

import types

import numpy
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from .common import Copy, alone, lazily, part, rank, shard, size, summed, synced, whole

X = torch.empty(4, 8)


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 8), nn.Linear(8, 8)
        self.register_buffer("seen", torch.zeros(8))

    def forward(self, x):
        return self.down(torch.tanh(self.up(x)))


class Result:
    """An object that is no dataclass."""

    def __init__(self, loss):
        self.loss = loss


def structured(model, x, mistake, structure):
    y = model(x)
    return structure(y * size() if mistake else y)


def counted(model, x, mistake, structure):
    return structure(size() if mistake else 1)


def neighbours():
    return (rank() + 1) % size(), (rank() - 1) % size()


def overwritten(model, x, mistake):
    """A buffer that is sent, and filled anew before the message has left."""
    y = model(x)
    if alone():
        return y
    after, before = neighbours()
    buffer, new = y.clone(), torch.empty_like(y)
    work = dist.isend(buffer, after)
    if mistake:
        buffer.zero_()
    dist.recv(new, before)
    if not mistake:
        work.wait()
    return new


def reduced_late(model, x, mistake):
    """An asynchronous sum of a buffer that is filled anew, and never waited for."""
    y = model(x) / size()
    total = y.clone()
    work = dist.all_reduce(total, async_op=True)
    work.wait()
    logged = y.clone()
    work = dist.all_reduce(logged, async_op=True)
    if mistake:
        model.seen += logged.sum(0)
        return total
    work.wait()
    model.seen += logged.sum(0)
    return total


def binary_accuracy(model, x, mistake):
    """Hits of a binary classifier, whose labels are constants."""
    p = torch.sigmoid(model(shard(x)))
    labels = shard((torch.arange(32).view(4, 8) % 3 == 0))
    hits = ((p > 0.5) == labels).float().sum()
    return hits if mistake else summed(hits)


def agreement(model, x, mistake):
    """How often two classifiers agree."""
    y = model(shard(x))
    same = ((y > 0) == (shard(x) > 0)).float().sum()
    return same if mistake else summed(same)


def sparsity(model, x, mistake):
    """How many activations are 0 after a ReLU."""
    y = F.relu(model(shard(x)))
    zeros = (y == 0).float().sum()
    return zeros if mistake else summed(zeros)


def same_by_where(model, x, mistake):
    """The agreement by products of masks."""
    y, z = (model(shard(x)) > 0).float(), (shard(x) > 0).float()
    same = (y * z + (1 - y) * (1 - z)).sum()
    return same if mistake else summed(same)


class InPlace(torch.autograd.Function):
    """Megatron's sum, which writes into its input."""

    @staticmethod
    def forward(ctx, x):
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Setup(torch.autograd.Function):
    """The same with a context that is set up apart."""

    @staticmethod
    def forward(x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return gradient if ctx.needs_input_grad[0] else None


class Dirty(InPlace):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        dist.all_reduce(x)
        return x


class Rows(nn.Module):
    def __init__(self, mlp, reduce, mistake=""):
        super().__init__()
        self.up, self.up_bias, self.down, self.bias = (
            part(mlp.up.weight),
            part(mlp.up.bias),
            part(mlp.down.weight, 1),
            mlp.down.bias,
        )
        self.reduce, self.mistake = reduce, mistake
        self.register_buffer("seen", mlp.seen)

    def forward(self, x):
        y = torch.tanh(F.linear(Copy.apply(x), self.up, self.up_bias))
        if self.mistake == "a bias in place, before the sum":
            y = F.linear(y, self.down)
            y += self.bias
            return self.reduce(y)
        return self.reduce(F.linear(y, self.down)) + self.bias


def second_output(model, x, mistake):
    """A moving average of the loss, which the second step returns wrongly."""
    loss = model(shard(x)).square().mean()
    loss.backward()
    synced(model, mean=True)
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.1 * p.grad
            p.grad = None
    model.__dict__["steps"] = steps = getattr(model, "steps", 0) + 1
    mean = summed(loss) / size()
    return mean * size() if mistake and steps > 1 else mean


def second_update(model, x, mistake):
    """Parameters of the second step are wrong."""
    loss = model(shard(x)).square().mean()
    loss.backward()
    model.__dict__["steps"] = steps = getattr(model, "steps", 0) + 1
    synced(model, mean=not (mistake and steps > 1))
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.1 * p.grad
            p.grad = None
    return summed(loss) / size()


def cached(model, x, mistake):
    """Keys and values of earlier tokens, kept in a list between steps of decoding."""
    rows, out = [], []
    for at in range(4):
        y = model(x[at : at + 1])
        y = y if alone() else shard(y, 1)
        rows.append(y)
        past = torch.cat(rows if not mistake else rows[-2:])
        scores = y @ past.T
        scores = scores if alone() else summed(scores)
        out.append(scores.softmax(-1) @ past)
    return torch.cat(out)


def make(f, ranks=2, mistake=False, split=whole, grads=False, **options):
    def loss(model, x):
        with torch.set_grad_enabled(grads):
            return f(model, x, mistake and not alone(), **options)

    return dict(unsplit=Mlp, split=split, ranks=ranks, inputs=X, loss=loss)


def rows(reduce, mistake="", ranks=2):
    return dict(
        unsplit=Mlp,
        split=lambda mlp: Rows(mlp, reduce, mistake),
        ranks=ranks,
        inputs=X.clone().requires_grad_(),
    )


STRUCTURES = {
    "a namespace": lambda y: types.SimpleNamespace(loss=y),
    "an object": Result,
    "a tuple": lambda y: (y, "note"),
    "a nested dictionary": lambda y: {"a": {"b": [y]}},
    "a generator": lambda y: (z for z in [y]),
    "a set": lambda y: {y},
    "a view of values": lambda y: {"a": y}.values(),
    "a named tuple": lambda y: torch.return_types.max((y, y.argmax(-1))),
}
NUMBERS = {
    "numpy's": numpy.int64,
    "of a set": lambda n: {n},
    "of a range": range,
    "of an array": lambda n: numpy.ones(n),
    "a tensor": torch.tensor,
    "of bytes": lambda n: b"x" * n,
    "a key": lambda n: {f"loss/{n}": 1},
    "a size": lambda n: torch.Size([n]),
}
OTHERS = [overwritten, reduced_late, binary_accuracy, agreement, sparsity, same_by_where, cached]
RIGHT = (
    {f"{f.__name__}": lazily(make, f) for f in OTHERS}
    | {
        name: lazily(rows, f)
        for name, f in {
            "in place": lambda x: InPlace.apply(x),
            "set up apart": lambda x: Setup.apply(x),
            "dirty": lambda x: Dirty.apply(x),
        }.items()
    }
    | {f.__name__: lazily(make, f, grads=True) for f in (second_output, second_update)}
    | {
        **{name: lazily(make, structured, structure=f) for name, f in STRUCTURES.items()},
    }
)
PROGRAMS = {
    **{f.__name__: lazily(make, f, mistake=True) for f in OTHERS},
    **{f.__name__: lazily(make, f, mistake=True, grads=True) for f in (second_output, second_update)},
    **{name: lazily(make, structured, mistake=True, structure=f) for name, f in STRUCTURES.items()},
    **{f"a number, {name}": lazily(make, counted, mistake=True, structure=f) for name, f in NUMBERS.items()},
    "in place": lazily(rows, lambda x: InPlace.apply(x), "a bias in place, before the sum"),
}
WRONG = {f"{name}, wrongly": make for name, make in PROGRAMS.items()}
