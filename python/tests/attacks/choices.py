"""Counts, masks and choices that depend on values."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from .common import alone, joined, lazily, rank, shard, size, summed, whole

X = torch.empty(4, 8)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("seen", torch.zeros(8, dtype=torch.int64))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        return self.layer(x)


def averaged(model, x, mistake):
    """A mean over the positive elements, which are counted."""
    y = model(shard(x))
    count = summed((y > 0).float().sum()) if mistake != "counts of bits are local" else (y > 0).float().sum()
    return F.relu(y).sum(-1) / count


def counted(model, x, mistake):
    """The same, by count_nonzero. The wrong one divides by the number of all elements."""
    y = model(shard(x))
    count = (y > 0).count_nonzero()
    if mistake == "all elements are counted":
        count = torch.tensor(y.numel())
    dist.all_reduce(count)
    return F.relu(y).sum(-1) / count


def any_of(model, x, mistake):
    """Rows that have a positive element are kept."""
    y = model(shard(x))
    keep = (y > 0).any(-1, keepdim=True)
    return y if mistake == "the mask is forgotten" else y * keep


def all_of(model, x, mistake):
    """Rows whose elements are all positive are cleared."""
    y = model(shard(x))
    clear = (y > 0).all(-1, keepdim=True)
    return y if mistake == "the mask is forgotten" else y.masked_fill(clear, 0.0)


def integers(model, x, mistake):
    """An integer buffer counts the choices of all ranks."""
    y = model(shard(x))
    with torch.no_grad():
        seen = torch.bincount(y.argmax(-1), minlength=8)
        if mistake != "counts are local":
            dist.all_reduce(seen)
        model.seen += seen
    return y


def returned_integers(model, x, mistake):
    y = model(shard(x))
    seen = torch.bincount(y.argmax(-1), minlength=8)
    if mistake != "counts are local":
        dist.all_reduce(seen)
    return y, seen


def accuracy(model, x, mistake):
    """A sum over the predictions of all ranks, each of which counts."""
    total = (model(shard(x)).argmax(-1) + 1).sum()
    return model(shard(x)), total / 4 if mistake == "hits are local" else summed(total) / 4


def clipped_by_quantile(model, x, mistake):
    """Top-k sparsification of the gathered rows."""
    y = model(shard(x))
    every = y if mistake == "a local threshold" else joined(y)
    k = 8 if mistake != "a local threshold" else 8 // size()
    least = every.flatten().topk(k).values[-1]
    return torch.where(y >= least, y, 0.0)


def picked(model, x, mistake):
    """Rows in the order of their scores, of which each rank has some."""
    y = model(shard(x))
    every = joined(y)
    order = every[:, 0].argsort(descending=mistake == "the other order" or alone() and False)
    return every[order].chunk(size())[rank()]


def boolean_index(model, x, mistake):
    """Elements of a mask of values are cleared by an index."""
    y = model(shard(x)).clone()
    y[y < (0.5 if mistake == "another threshold" else 0)] = 0
    return y


def branch(model, x, mistake):
    """A branch on a sum, over all ranks or over this one."""
    y = model(shard(x))
    decides = y.sum() if mistake == "a local sum decides" else summed(y.sum())
    return y if decides > 0 else -y


def make(f, ranks=2, mistake="", build=Layer, **more):
    def loss(model, x):
        with torch.no_grad():
            return f(model, x, "" if alone() else mistake)

    return dict(unsplit=build, split=whole, ranks=ranks, inputs=X, loss=loss, **more)


RIGHT = {f"{f.__name__}, {ranks} ranks": lazily(make, f, ranks) for ranks in (2, 4) for f in (
    averaged, integers, returned_integers, accuracy, clipped_by_quantile, picked,
)} | {
    "boolean index": lazily(make, boolean_index), "branch": lazily(make, branch, keys=4),
}  # fmt: skip
WRONG = {
    f"{f.__name__}: {mistake}": lazily(make, f, mistake=mistake)
    for f, mistake in [
        (averaged, "counts of bits are local"),
        (counted, "all elements are counted"),
        (any_of, "the mask is forgotten"),
        (all_of, "the mask is forgotten"),
        (integers, "counts are local"),
        (returned_integers, "counts are local"),
        (accuracy, "hits are local"),
        (clipped_by_quantile, "a local threshold"),
        (picked, "the other order"),
        (boolean_index, "another threshold"),
    ]
} | {"branch: a local sum decides": lazily(make, branch, mistake="a local sum decides", keys=8)}
