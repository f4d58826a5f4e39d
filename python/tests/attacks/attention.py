"""Attention whose heads are split over ranks."""

import torch
import torch.nn.functional as F
from torch import nn

from .common import AllToAll, Copy, Reduce, lazily, part, rank, shard, size

HEADS, HEAD, WIDTH, LENGTH = 4, 4, 8, 4


def rotated(x, first=0, base=10000.0):
    """Rotary embeddings of x [.., length, head], whose first position is given."""
    half = x.shape[-1] // 2
    angles = (torch.arange(x.shape[-2]) + first)[:, None] * base ** (-torch.arange(half) / half)
    one, two = x.chunk(2, -1)
    return torch.cat([one * angles.cos() - two * angles.sin(), two * angles.cos() + one * angles.sin()], -1)


def slopes(heads=HEADS):
    """ALiBi's slopes."""
    return torch.tensor([2.0 ** -(2 * (i + 1)) for i in range(heads)])


class Attention(nn.Module):
    """Grouped-query attention with what public models add to it."""

    def __init__(self, kv=HEADS, rope=False, norms=False, how="sdpa", bias=False):
        super().__init__()
        self.q, self.o = nn.Linear(WIDTH, HEADS * HEAD, bias=bias), nn.Linear(HEADS * HEAD, WIDTH, bias=bias)
        self.k, self.v = nn.Linear(WIDTH, kv * HEAD, bias=bias), nn.Linear(WIDTH, kv * HEAD, bias=bias)
        self.norms = nn.ModuleList(nn.RMSNorm(HEAD, eps=1e-5) for _ in "qk") if norms else None
        self.sinks = nn.Parameter(torch.zeros(HEADS)) if how == "sinks" else None
        self.kv, self.rope, self.how = kv, rope, how

    def heads(self, x):
        return x.unflatten(-1, (-1, HEAD)).transpose(1, 2)

    def forward(self, x):
        q, k, v = (self.heads(f(x)) for f in (self.q, self.k, self.v))
        if self.norms:
            q, k = self.norms[0](q), self.norms[1](k)
        if self.rope:
            q, k = rotated(q), rotated(k)
        k, v = (y.repeat_interleave(HEADS // self.kv, 1) for y in (k, v))
        return self.o(mixed(q, k, v, self.how, self.sinks, slopes()).transpose(1, 2).flatten(2))


def mixed(q, k, v, how, sinks=None, slope=None, first=0, scale=HEAD**-0.5):
    """Attention to k and v of queries whose first position is given."""
    if how == "sdpa" and first == 0:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
    at, to = torch.arange(q.shape[-2])[:, None] + first, torch.arange(k.shape[-2])
    bars = to > at
    if how == "window":
        bars = bars | (to <= at - 2)
    if how == "mask":
        return F.scaled_dot_product_attention(q, k, v, attn_mask=~bars, scale=scale)
    scores = q @ k.mT * scale
    if how == "softcap":
        scores = torch.tanh(scores / 5.0) * 5.0
    if how == "alibi":
        scores = scores + slope[:, None, None] * (to - at)
    if how == "baddbmm":
        flat = lambda y: y.flatten(0, 1)
        bias = torch.zeros(q.shape[-2], k.shape[-2])
        scores = torch.baddbmm(bias, flat(q), flat(k).mT, beta=0.0, alpha=scale).view(scores.shape)
    scores = scores.masked_fill(bars, torch.finfo(scores.dtype).min if how == "least" else -torch.inf)
    if how == "sinks":
        scores = torch.cat([scores, sinks[:, None, None].expand(*scores.shape[:3], 1)], -1)
        return scores.softmax(-1)[..., :-1] @ v
    if how == "off by one":
        e = (scores - (most := scores.amax(-1, keepdim=True).detach().clamp(min=0))).exp()
        return e / ((-most).exp() + e.sum(-1, keepdim=True)) @ v
    return F.softmax(scores, dim=-1, dtype=torch.float32).to(v.dtype) @ v


class Heads(nn.Module):
    """A rank's heads. Where there are fewer heads of keys than ranks, some ranks have the same ones."""

    def __init__(self, of, mistake=""):
        super().__init__()
        self.mistake, self.how, self.rope, self.norms, self.kv = mistake, of.how, of.rope, of.norms, of.kv
        other = (rank() + 1) % size() if mistake == "another rank's output rows" else None
        self.q, self.o = self.cut(of.q), part(of.o.weight, 1, other)
        self.o_bias = of.o.bias
        self.copies = max(size() // of.kv, 1)
        self.k, self.v = self.cut(of.k, self.copies), self.cut(of.v, self.copies)
        self.sinks = None if of.sinks is None else of.sinks if "sinks" in mistake else part(of.sinks)

    def cut(self, linear, copies=1):
        at = rank() // copies if self.mistake != "another rank's keys" else rank() % (size() // copies)
        parts = (
            None if x is None else part(x, 0, at, size() // copies) for x in (linear.weight, linear.bias)
        )
        return nn.ParameterList(y for y in parts if y is not None)

    def of_all(self, parameter):
        """A parameter that copies on some ranks share: its gradient is summed over them."""
        if self.copies == 1 or self.mistake == "shared keys' gradients stay local":
            return parameter
        rows = torch.zeros(size() // self.copies, *parameter.shape)
        at = rank() // self.copies
        place = (torch.arange(size() // self.copies) == at).view(-1, *[1] * parameter.dim())
        return (Copy.apply(parameter.expand(rows.shape) * place) * place).sum(0)

    def forward(self, x):
        x = Copy.apply(x)
        q = F.linear(x, *self.q)
        k, v = (F.linear(x, *map(self.of_all, y)) for y in (self.k, self.v))
        q, k, v = (y.unflatten(-1, (-1, HEAD)).transpose(1, 2) for y in (q, k, v))
        if self.norms:
            shares = (lambda w: w) if self.mistake == "the norms' gradients stay local" else Copy.apply
            q, k = (F.rms_norm(y, (HEAD,), shares(f.weight), f.eps) for y, f in zip((q, k), self.norms))
        if self.rope:
            q, k = rotated(q), rotated(k, int(self.mistake == "keys' positions start at 1"))
        k, v = (y.repeat_interleave(q.shape[1] // y.shape[1], 1) for y in (k, v))
        if self.mistake == "heads of keys are repeated in turn":
            k, v = (y[:, ::2].repeat(1, 2, 1, 1) for y in (k, v))
        slope = slopes()[:: size()] if self.mistake == "slopes of other heads" else shard(slopes())
        scale = (HEAD * size()) ** -0.5 if self.mistake == "scaled by the whole width" else HEAD**-0.5
        sinks = self.sinks
        if self.mistake == "the first sinks on every rank":
            sinks = sinks[: HEADS // size()]
        if self.mistake == "sinks' gradients stay local":
            sinks = shard(sinks)
        y = mixed(q, k, v, self.how, sinks, slope, scale=scale)
        y = Reduce.apply(F.linear(y.transpose(1, 2).flatten(2), self.o))
        return y if self.o_bias is None else y + self.o_bias


class Norms(nn.Module):
    """A norm over all heads' queries together, as in OLMo 2 and in MiniMax."""

    def __init__(self, by="hand"):
        super().__init__()
        self.q, self.norm = nn.Linear(WIDTH, HEADS * HEAD, bias=False), nn.RMSNorm(HEADS * HEAD, eps=1e-5)
        self.by = by

    def forward(self, x):
        q = self.q(x)
        if self.by == "module":
            return self.norm(q)
        return q * torch.rsqrt(q.pow(2).mean(-1, keepdim=True) + 1e-5) * self.norm.weight


class SplitNorms(nn.Module):
    def __init__(self, of, mistake=""):
        super().__init__()
        self.q, self.weight, self.mistake = part(of.q.weight), part(of.norm.weight), mistake

    def forward(self, x):
        q = F.linear(Copy.apply(x), self.q)
        if self.mistake == "a norm over a rank's heads":
            return F.rms_norm(q, q.shape[-1:], self.weight, 1e-5)
        squares = q.pow(2).sum(-1, keepdim=True)
        squares = (
            Reduce.apply(squares)
            if self.mistake == "a norm whose gradient is local"
            else Copy.apply(Reduce.apply(squares))
        )
        return q * torch.rsqrt(squares / (HEADS * HEAD) + 1e-5) * self.weight


class Ulysses(nn.Module):
    """Attention to a split sequence: all-to-alls exchange heads for positions."""

    def __init__(self, of, mistake=""):
        super().__init__()
        self.of, self.mistake = of, mistake

    def traded(self, x, back=False):
        """[1, heads, length, head] by positions becomes so by heads, or goes back."""
        n = size()
        if back:
            y = x[0].unflatten(1, (n, -1)).transpose(0, 1)  # [n, heads / n, length / n, head]
            y = AllToAll.apply(y.contiguous())
            y = (
                y.transpose(0, 1).flatten(0, 1)
                if self.mistake == "heads come back in another order"
                else y.flatten(0, 1)
            )
            return y[None]
        y = AllToAll.apply(x[0].unflatten(0, (n, -1)).contiguous())
        y = y.transpose(0, 1)
        return (
            y.flatten(1, 2)
            if self.mistake != "positions are interleaved"
            else y.transpose(1, 2).flatten(1, 2)
        )[None]

    def forward(self, x):
        x, of = shard(x, 1), self.of
        weights = {name: Copy.apply(p) for name, p in of.named_parameters()}
        q, k, v = (of.heads(x @ weights[f"{y}.weight"].T) for y in "qkv")
        if of.rope:
            first = 0 if self.mistake == "positions begin at 0 on each rank" else rank() * x.shape[1]
            q, k = rotated(q, first), rotated(k, first)
        q, k, v = (self.traded(y) for y in (q, k, v))
        y = mixed(q, k, v, "sdpa")
        y = (
            self.traded(y, back=True)
            if self.mistake != "heads stay away"
            else y.chunk(size(), 2)[rank()].repeat(1, size(), 1, 1)
        )
        out = y.transpose(1, 2).flatten(2) @ weights["o.weight"].T
        return out


def make(split=Heads, ranks=2, mistake="", of=Attention, batch=2, **options):
    return dict(
        unsplit=lambda: of(**options), split=lambda module: split(module, mistake), ranks=ranks,
        inputs=torch.empty(batch, LENGTH, WIDTH).requires_grad_(split is Heads),
    )  # fmt: skip


RIGHT = {f"heads, {how}": lazily(make, how=how, rope=how in ("sdpa", "mask")) for how in
         "sdpa mask window softcap alibi baddbmm least sinks plain".split() + ["off by one"]} | {
    "heads, 4 ranks": lazily(make, ranks=4, rope=True, norms=True, bias=True),
    "grouped queries": lazily(make, kv=2, rope=True, norms=True),
    "grouped queries, keys on two ranks each": lazily(make, ranks=4, kv=2, rope=True),
    "one head of keys on two ranks": lazily(make, kv=1, rope=True),
    "one head of keys on four ranks, with biases": lazily(make, ranks=4, kv=1, norms=True, bias=True),
    "a norm over all heads": lazily(make, SplitNorms, of=Norms),
    "a norm over all heads, by nn.RMSNorm": lazily(make, SplitNorms, of=Norms, by="module"),
    "a norm over all heads, 4 ranks": lazily(make, SplitNorms, 4, of=Norms),
    "Ulysses": lazily(make, Ulysses, batch=1, rope=True),
    "Ulysses, 4 ranks": lazily(make, Ulysses, 4, batch=1),
}  # fmt: skip
WRONG = {mistake: lazily(make, mistake=mistake, **options) for mistake, options in {
    "another rank's output rows": {},
    "the norms' gradients stay local": dict(norms=True),
    "keys' positions start at 1": dict(rope=True),
    "heads of keys are repeated in turn": {},
    "slopes of other heads": dict(how="alibi"),
    "scaled by the whole width": {},
    "the first sinks on every rank": dict(how="sinks"),
    "sinks' gradients stay local": dict(how="sinks"),
    "another rank's keys": dict(ranks=4, kv=2),
    "shared keys' gradients stay local": dict(kv=1),
    "a norm over a rank's heads": dict(split=SplitNorms, of=Norms),
    "a norm whose gradient is local": dict(split=SplitNorms, of=Norms),
    "heads come back in another order": dict(split=Ulysses, batch=1),
    "positions are interleaved": dict(split=Ulysses, batch=1),
    "positions begin at 0 on each rank": dict(split=Ulysses, batch=1, rope=True),
    "heads stay away": dict(split=Ulysses, batch=1),
}.items()}  # fmt: skip
