"""Norms whose features, channels or samples are split over ranks."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from .common import (
    Copy,
    Reduce,
    SumBoth,
    alone,
    lazily,
    part,
    rank,
    shard,
    size,
    summed,
    synced,
    whole,
)

X = torch.empty(4, 8)


class Normed(nn.Module):
    """A layer, a norm and another layer."""

    def __init__(self, norm):
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(8, 8), norm(), nn.Linear(8, 8)

    def forward(self, x):
        return self.down(self.norm(self.up(x)))


class Rms(nn.Module):
    """A norm by hand, as Llama's."""

    def __init__(self, offset=0.0, power=-0.5):
        super().__init__()
        self.weight, self.offset, self.power = nn.Parameter(torch.ones(8)), offset, power

    def forward(self, x):
        if self.power == "norm":
            return x / (x.norm(dim=-1, keepdim=True) * 8**-0.5 + 1e-6) * self.weight
        of = x.float().pow(2).mean(-1, keepdim=True) + 1e-6
        x = x * (torch.rsqrt(of) if self.power == -0.5 else 1 / of.sqrt())
        return x * (self.offset + self.weight)


class Split(nn.Module):
    """Features in parts: sums of the norm are over ranks, between columns and rows."""

    def __init__(self, model, mistake=""):
        super().__init__()
        self.kind, self.norm, self.mistake = type(model.norm).__name__, model.norm, mistake
        self.up, self.up_bias = part(model.up.weight), part(model.up.bias)
        self.down, self.down_bias = part(model.down.weight, 1), model.down.bias
        for name in ("weight", "bias"):
            if getattr(model.norm, name, None) is not None:
                p = getattr(model.norm, name)
                other = (rank() + 1) % size() if mistake == "another rank's scale" else rank()
                setattr(self, "norm_" + name, part(p, at=other))
        del self.norm.weight
        if hasattr(self.norm, "bias"):
            del self.norm.bias

    def total(self, x):
        """A sum over all features, which each rank uses for its own."""
        x = x.sum(-1, keepdim=True)
        if self.mistake == "sums are local":
            return x * size()
        if self.mistake == "sums' gradients stay local":
            return Reduce.apply(x)
        return SumBoth.apply(x)

    def forward(self, x):
        y = F.linear(Copy.apply(x), self.up, self.up_bias)
        if self.kind == "LayerNorm":
            y = y - self.total(y) / 8
            divisor = 8 if self.mistake != "an unbiased variance" else 7
            y = y * torch.rsqrt(self.total(y * y) / divisor + 1e-5) * self.norm_weight + self.norm_bias
        elif self.kind == "GroupNorm":
            y = F.group_norm(
                y,
                4 // size() if self.mistake != "as many groups" else 4,
                self.norm_weight,
                self.norm_bias,
                1e-5,
            )
        elif self.norm.power == "norm":
            y = y / (self.total(y * y).sqrt() * 8**-0.5 + 1e-6) * self.norm_weight
        else:
            of = self.total(y * y) / 8 + 1e-6
            y = y * (torch.rsqrt(of) if self.norm.power == -0.5 else 1 / of.sqrt())
            y = y * (self.norm_weight + (0 if self.mistake == "no offset" else self.norm.offset))
        return Reduce.apply(F.linear(y, self.down)) + self.down_bias


class Batch(nn.Module):
    """Batch statistics by hand, with running ones."""

    momentum = 0.1

    def __init__(self, mistake=""):
        super().__init__()
        self.weight, self.bias, self.mistake = nn.Parameter(torch.ones(8)), nn.Parameter(torch.zeros(8)), ""
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("var", torch.ones(8))

    def forward(self, x):
        count = torch.tensor(float(len(x)))
        both = torch.cat([x.sum(0), (x * x).sum(0)])
        if not alone() and self.mistake != "local statistics":
            dist.all_reduce(count)
            both = (
                Reduce.apply(both) if self.mistake == "statistics without a gradient" else SumBoth.apply(both)
            )
        mean, square = (both / count).chunk(2)
        var = square - mean * mean
        with torch.no_grad():
            bias = count / (count - 1) if self.mistake != "a biased running variance" else 1
            self.mean.lerp_(mean, self.momentum)
            self.var.lerp_(var * bias, self.momentum)
        return (x - mean) * torch.rsqrt(var + 1e-5) * self.weight + self.bias


def by_rows(model, x, mistake=""):
    """Data parallelism: gradients are averaged, statistics are of all rows."""
    if not alone():
        model.norm.mistake = mistake
    y = model(shard(x))
    loss = y.square().mean()
    loss.backward()
    synced(model, mean=True)
    return loss


def normalized(model, x, mistake=""):
    """Vectors of length 1 whose features are split, as queries and keys of nGPT are."""
    y = model(x)
    if alone():
        return F.normalize(y, dim=-1)
    y = shard(Copy.apply(y), -1)
    squares = (
        SumBoth.apply(y.square().sum(-1, keepdim=True))
        if mistake != "lengths of parts"
        else y.square().sum(-1, keepdim=True)
    )
    return y / squares.sqrt().clamp_min(1e-12)


def weights(model, x, mistake=""):
    """Weight normalization of a layer split by its columns: norms of rows are over ranks."""
    w = model.up.weight
    if alone():
        w = w / w.norm(dim=1, keepdim=True)
        return F.linear(x, w)
    w = shard(w, 1)
    squares = w.square().sum(1, keepdim=True)
    w = w / (summed(squares) if mistake != "norms of parts" else squares).sqrt()
    return summed(F.linear(shard(x, 1), w))


def make(norm, ranks=2, mistake=""):
    return dict(unsplit=lambda: Normed(norm), split=lambda model: Split(model, mistake), ranks=ranks,
                inputs=X.clone().requires_grad_())  # fmt: skip


def rows(norm=Batch, ranks=2, mistake="", f=by_rows, outputs="mean"):
    loss = lambda model, x: f(model, x, mistake)
    if f is weights:
        loss = torch.no_grad()(loss)
    return dict(unsplit=lambda: Normed(norm), split=whole, ranks=ranks, inputs=X, loss=loss, outputs=outputs)


LAYER, GROUP = lazily(nn.LayerNorm, 8), lazily(nn.GroupNorm, 4, 8)
OFFSET, ROOT, NORM = lazily(Rms, offset=1.0, power=-0.5), lazily(Rms, power=0.5), lazily(Rms, power="norm")
RIGHT = {
    f"{name}, {ranks} ranks": lazily(make, norm, ranks)
    for ranks in (2, 4)
    for name, norm in {
        "LayerNorm": LAYER,
        "GroupNorm": GROUP,
        "RMS": Rms,
        "RMS with an offset": OFFSET,
        "RMS by a root": ROOT,
        "RMS by norm": NORM,
    }.items()
} | {
    "batch statistics": lazily(rows),
    "batch statistics, 4 ranks": lazily(rows, ranks=4),
    "normalized": lazily(rows, LAYER, f=normalized, outputs="equal"),
    "weights": lazily(rows, LAYER, f=weights, outputs="equal"),
    **{
        f"rows of {name}": lazily(rows, norm)
        for name, norm in {
            "LayerNorm": LAYER,
            "RMSNorm": lazily(nn.RMSNorm, 8),
            "GroupNorm": GROUP,
            "InstanceNorm": lazily(nn.GroupNorm, 2, 8),
        }.items()
    },
}
WRONG = (
    {
        f"{mistake}, {name}": lazily(make, norm, mistake=mistake)
        for mistake, name, norm in [
            ("sums are local", "LayerNorm", LAYER),
            ("sums are local", "RMS", Rms),
            ("sums' gradients stay local", "LayerNorm", LAYER),
            ("sums' gradients stay local", "RMS by norm", NORM),
            ("an unbiased variance", "LayerNorm", LAYER),
            ("another rank's scale", "RMS", Rms),
            ("no offset", "RMS with an offset", OFFSET),
            ("another rank's scale", "GroupNorm", GROUP),
        ]
    }
    | {
        mistake: lazily(rows, mistake=mistake)
        for mistake in [
            "local statistics",
            "statistics without a gradient",
            "a biased running variance",
        ]
    }
    | {
        "lengths of parts": lazily(rows, LAYER, f=normalized, outputs="equal", mistake="lengths of parts"),
        "norms of parts": lazily(rows, LAYER, f=weights, outputs="equal", mistake="norms of parts"),
    }
)
