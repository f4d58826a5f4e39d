"""Column-, row- and sequence-parallel linear layers."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from by_hand import Gather, GatherSequence, Scatter, ScatterSequence
from torch import nn

from .common import Copy, Reduce, joined, lazily, part, rank, shard, size

ACTIVATIONS = {
    "silu": F.silu,
    "relu": F.relu,
    "gelu": F.gelu,
    "square": lambda x: F.relu(x) ** 2,
    "mish": F.mish,
    "elu": F.elu,
    "tanh gelu": lambda x: F.gelu(x, approximate="tanh"),
    "hardtanh": F.hardtanh,
    "softplus": F.softplus,
    "quick gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "softsign": F.softsign,
    "selu": F.selu,
    "celu": F.celu,
    "leaky": F.leaky_relu,
    "relu6": F.relu6,
    "logsigmoid": F.logsigmoid,
    "tanhshrink": F.tanhshrink,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "softshrink": F.softshrink,
}
X = torch.empty(4, 8)


class Feed(nn.Module):
    """A pre-norm feed-forward layer; `gated` ones have one weight for the gate and the other factor."""

    def __init__(self, activation="silu", gated=False, bias=True, inner=16):
        super().__init__()
        self.f, self.gated = ACTIVATIONS[activation], gated
        self.norm = nn.LayerNorm(8)
        self.up, self.down = nn.Linear(8, inner * (1 + gated), bias=bias), nn.Linear(inner, 8, bias=bias)

    def act(self, y):
        if self.gated:
            gate, y = y.chunk(2, -1)
            return self.f(gate) * y
        return self.f(y)

    def forward(self, x):
        return x + self.down(self.act(self.up(self.norm(x))))


class Async(torch.autograd.Function):
    """A column-parallel product whose input's gradient is summed while the weight's is computed."""

    @staticmethod
    def forward(ctx, x, weight, bias, mistake):
        ctx.save_for_backward(x, weight)
        ctx.bias, ctx.mistake = bias is not None, mistake
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        of_x = gradient @ weight
        work = dist.all_reduce(of_x, async_op=True)
        of_weight = gradient.t() @ x
        if ctx.mistake == "returns before it waits":
            of_x = of_x * 1
        work.wait()
        if ctx.mistake == "sums the weight's gradient":
            dist.all_reduce(of_weight)
        return of_x, of_weight, gradient.sum(0) if ctx.bias else None, None


class AsyncSequence(torch.autograd.Function):
    """Gathers the sequence, keeps its part only, and gathers it again in the backward pass."""

    @staticmethod
    def forward(ctx, x, weight, bias, mistake):
        ctx.save_for_backward(x, weight)
        ctx.bias, ctx.mistake = bias is not None, mistake
        return F.linear(joined(x), weight, bias)

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        every = x.new_empty(len(x) * size(), x.shape[1])
        work = dist.all_gather_into_tensor(every, x, async_op=True)
        of_all = gradient @ weight
        if ctx.mistake != "reads the gathered input early":
            work.wait()
        of_weight = gradient.t() @ every
        work.wait()
        of_x = torch.empty_like(x)
        work = dist.reduce_scatter_tensor(of_x, of_all, async_op=True)
        if ctx.mistake == "keeps its own rows of the input's gradient":
            work.wait()
            of_x = shard(of_all)
        work.wait()
        return of_x, of_weight, gradient.sum(0) if ctx.bias else None, None


class Parts(nn.Module):
    """A rank's part of `Feed`."""

    def __init__(self, feed, how="sum", mistake=""):
        super().__init__()
        self.feed_act, self.how, self.mistake, self.norm = feed.act, how, mistake, feed.norm
        self.up, self.up_bias = self.columns(feed, feed.up.weight), self.columns(feed, feed.up.bias)
        self.down = part(
            feed.down.weight, 1, (rank() + 1) % size() if mistake == "another rank's rows" else None
        )
        self.bias = feed.down.bias

    def columns(self, feed, x):
        if x is None:
            return None
        if feed.gated and self.mistake != "the fused gate is cut as one":
            return nn.Parameter(torch.cat([shard(y) for y in x.chunk(2)]))
        if self.mistake == "another rank's bias" and x.dim() == 1:
            return part(x, 0, (rank() + 1) % size())
        return part(x)

    def forward(self, x):
        return getattr(self, "by_" + self.how)(x, self.mistake)

    def product(self, y, mistake):
        y = F.linear(self.feed_act(y), self.down)
        return y + self.bias if mistake == "bias before the sum" else y

    def biased(self, y, mistake, bias=None):
        bias = self.bias if bias is None else bias
        return y if mistake == "bias before the sum" or self.bias is None else y + bias

    def by_sum(self, x, mistake):
        y = self.norm(x)
        y = y if mistake == "no sum backward" else Copy.apply(y)
        y = self.product(F.linear(y, self.up, self.up_bias), mistake)
        if mistake == "every part is a mean":
            y = y / size()
        if mistake == "a sum of gradients, too":
            y = Copy.apply(y)
        return x + self.biased(Reduce.apply(y) if mistake != "no sum forward" else y, mistake)

    def by_async(self, x, mistake):
        y = self.product(Async.apply(self.norm(x), self.up, self.up_bias, mistake), mistake)
        return x + self.biased(Reduce.apply(y), mistake)

    def by_sequence(self, x, mistake):
        x = Scatter.apply(x, 0)
        norm = self.norm if mistake == "the norm's gradient stays local" else shared_norm(self.norm)
        if mistake == "the gathered norm's gradient is cut":
            y = Gather.apply(norm(x), 0)
        else:
            y = GatherSequence.apply(norm(x))
        y = self.product(F.linear(y, self.up, self.up_bias), mistake)
        if mistake == "a reduce-scatter that averages":
            y = y / size()
        bias = self.bias
        if bias is not None:
            bias = bias if mistake == "the bias's gradient stays local" else Copy.apply(bias)
        out = x + self.biased(ScatterSequence.apply(y), mistake, bias)
        return Gather.apply(out, 0)

    def by_async_sequence(self, x, mistake):
        x = Scatter.apply(x, 0)
        y = AsyncSequence.apply(shared_norm(self.norm)(x), self.up, self.up_bias, mistake)
        y = ScatterSequence.apply(self.product(y, mistake))
        return Gather.apply(
            x + self.biased(y, mistake, None if self.bias is None else Copy.apply(self.bias)), 0
        )


def shared_norm(norm):
    """A norm whose weights' gradients are summed over ranks."""
    return lambda x: F.layer_norm(x, (8,), Copy.apply(norm.weight), Copy.apply(norm.bias), norm.eps)


def make(how="sum", ranks=2, layers=1, mistake="", gradient=False, **options):
    build = lambda: nn.Sequential(*(Feed(**options) for _ in range(layers)))
    split = lambda feeds: nn.Sequential(
        *(Parts(f, how, mistake if at == 0 else "") for at, f in enumerate(feeds))
    )
    return dict(unsplit=build, split=split, ranks=ranks, inputs=X.clone().requires_grad_(gradient))


RIGHT = {f"columns and rows, {name}": lazily(make, activation=name, layers=2) for name in ACTIVATIONS} | {
    f"{how}, {ranks} ranks, {'gated' if gated else 'plain'}, {'bias' if bias else 'no bias'}": lazily(
        make, how, ranks, 2, gated=gated, bias=bias, gradient=True
    )
    for how, ranks, gated, bias in [
        ("sum", 4, True, True),
        ("async", 2, False, True),
        ("async", 4, True, False),
        ("sequence", 2, True, True),
        ("sequence", 4, False, False),
        ("async_sequence", 2, False, True),
        ("async_sequence", 4, True, True),
    ]
}
WRONG = {
    f"{mistake}, {how}": lazily(make, how, layers=2, mistake=mistake, gated=mistake.startswith("the fused"))
    for how, mistakes in {
        "sum": "another rank's rows|another rank's bias|no sum backward|no sum forward|bias before the sum|"
        "every part is a mean|a sum of gradients, too|the fused gate is cut as one",
        "async": "returns before it waits|sums the weight's gradient",
        "sequence": "the norm's gradient stays local|the gathered norm's gradient is cut|"
        "the bias's gradient stays local|"
        "a reduce-scatter that averages|bias before the sum",
        "async_sequence": "reads the gathered input early|keeps its own rows of the input's gradient",
    }.items()
    for mistake in mistakes.split("|")
}
