"""ZeRO by hand: states, gradients and weights in parts."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from .common import alone, lazily, part, rank, shard, size, summed, synced, whole

X, Y = torch.empty(4, 8), torch.empty(4, 8)


class Mlp(nn.Module):
    def __init__(self, averages=False):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        if averages:
            for name, p in list(self.named_parameters()):
                self.register_buffer("average_" + name.replace(".", "_"), torch.zeros(p.shape))

    def forward(self, x):
        return self.down(F.silu(self.up(x)))


def grads(model, x, y):
    """Goes backward on this rank's rows."""
    loss = F.mse_loss(model(shard(x)), shard(y))
    model.zero_grad()
    loss.backward()
    return summed(loss) / size()


def state(model, name, make):
    """What a program keeps between its steps."""
    kept = model.__dict__.setdefault("kept", {})
    if name not in kept:
        kept[name] = make()
    return kept[name]


def flat(model, values):
    return torch.cat([v.reshape(-1) for v in values])


def put_flat(model, row):
    """Writes a row of all parameters back into them."""
    at = 0
    for p in model.parameters():
        p.copy_(row[at : at + p.numel()].view_as(p))
        at += p.numel()


# How one flat row of weights is stepped: (w, g, state, mistake) -> w


def momentum(w, g, s, mistake):
    old = s.get("m", torch.zeros_like(g))
    s["m"] = old * 0.9 + g if mistake != "momentum starts anew" else g
    return w - 0.1 * (g + 0.9 * s["m"])


def adamw(w, g, s, mistake):
    s["t"] = t = s.get("t", 0) + (size() if mistake == "each rank counts a step" else 1)
    s["m"] = 0.9 * s.get("m", torch.zeros_like(g)) + 0.1 * g
    s["v"] = 0.95 * s.get("v", torch.zeros_like(g)) + 0.05 * g * g
    m, v = s["m"] / (1 - 0.9**t), s["v"] / (1 - 0.95**t)
    if mistake != "no weight decay on shards":
        w = w * (1 - 0.1 * 0.01)
    return w - 0.1 * m / (v.sqrt() + 1e-8)


def adagrad(w, g, s, mistake):
    s["v"] = s.get("v", torch.zeros_like(g)) + g * g
    return w - 0.1 * g / (s["v"].sqrt() + 1e-10)


def rmsprop(w, g, s, mistake):
    s["v"] = 0.99 * s.get("v", torch.zeros_like(g)) + 0.01 * g.square()
    return w - 0.01 * g * torch.rsqrt(s["v"] + 1e-8)


def lion(w, g, s, mistake):
    m = s.get("m", torch.zeros_like(g))
    s["m"] = m * 0.99 + g * 0.01
    return w * (1 - 0.01) - 0.1 * torch.sign(m * 0.9 + g * 0.1)


def sophia(w, g, s, mistake):
    s["m"] = 0.9 * s.get("m", torch.zeros_like(g)) + 0.1 * g
    s["h"] = 0.9 * s.get("h", torch.zeros_like(g)) + 0.1 * g * g
    return w - 0.1 * (s["m"] / (0.04 * s["h"]).clamp(min=1e-12)).clamp(-1, 1)


def adan(w, g, s, mistake):
    last = s.get("last", g)
    s["m"] = 0.9 * s.get("m", torch.zeros_like(g)) + 0.1 * g
    s["d"] = 0.8 * s.get("d", torch.zeros_like(g)) + 0.2 * (g - last)
    s["v"] = 0.9 * s.get("v", torch.zeros_like(g)) + 0.1 * (g + 0.8 * (g - last)) ** 2
    s["last"] = g.clone()
    return (w - 0.1 * (s["m"] + 0.8 * s["d"]) / (s["v"].sqrt() + 1e-8)) / (1 + 0.1 * 0.02)


def schedule_free(w, g, s, mistake):
    z = s.get("z", w.clone())
    s["z"] = z - 0.1 * g
    s["t"] = t = s.get("t", 0) + 1
    return w + (s["z"] - w) / (t + 1)


def zero(model, x, y, mistake, rule, stage=1):
    """ZeRO: a rank steps its part of all weights in one row, and parts are gathered."""
    loss = grads(model, x, y)
    n, r = size(), rank()
    with torch.no_grad():
        g, w = flat(model, [p.grad for p in model.parameters()]), flat(model, model.parameters())
        pad = -len(w) % n
        g, w = F.pad(g, (0, pad)), F.pad(w, (0, pad))
        if stage == 1:
            dist.all_reduce(g)
            own = shard(g)
        else:
            own = g.new_empty(len(g) // n)
            dist.reduce_scatter_tensor(own, g)
        if mistake != "a sum in place of a mean":
            own = own / n
        kept = state(model, "zero", lambda: {"m": own * r} if mistake == "state of another rank" else {})
        old = shard(w, at=(r + 1) % n) if mistake == "weights of another rank" else shard(w)
        new = rule(old, own, kept, mistake)
        if mistake == "parts are not gathered":
            row = w.clone()
            row[r * len(new) : (r + 1) * len(new)] = new
        else:
            row = w.new_empty(len(w))
            work = dist.all_gather_into_tensor(row, new, async_op=True)
            if mistake == "read before the gather has ended":
                row = row.clone()
            work.wait()
        put_flat(model, row)
    if mistake != "local gradients are left":
        model.zero_grad(set_to_none=True)
    return loss


class Zero3(nn.Module):
    """Weights in parts, which are gathered where they are used; gradients are reduced and scattered."""

    def __init__(self, model, mistake=""):
        super().__init__()
        self.mistake, self.kept = mistake, {}
        self.shapes = {name: p.shape for name, p in model.named_parameters()}
        self.rows = nn.ParameterDict(
            {name.replace(".", "_"): part(p.reshape(-1)) for name, p in model.named_parameters()}
        )

    def of(self, name):
        row = self.rows[name.replace(".", "_")]
        other = self.mistake == "gradients are cut, not reduced"
        return GatherWeight.apply(row, other).view(self.shapes[name])

    def forward(self, x):
        y = F.silu(F.linear(x, self.of("up.weight"), self.of("up.bias")))
        return F.linear(y, self.of("down.weight"), self.of("down.bias"))


class GatherWeight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, row, cuts):
        ctx.cuts = cuts
        out = row.new_empty(len(row) * size())
        dist.all_gather_into_tensor(out, row.contiguous())
        return out

    @staticmethod
    def backward(ctx, gradient):
        if ctx.cuts:
            return shard(gradient), None
        out = gradient.new_empty(len(gradient) // size())
        dist.reduce_scatter_tensor(out, gradient.contiguous(), op=dist.ReduceOp.AVG)
        return out, None


def zero3(model, x, y, mistake, rule):
    loss = grads(model, x, y)
    with torch.no_grad():
        for name, p in model.named_parameters():
            name = name.replace("rows.", "").replace(".", "_")
            p.copy_(rule(p, p.grad, state(model, name, dict), mistake))
    return loss


def owners(model, x, y, mistake, rule):
    """Each parameter is stepped by one rank and broadcast from it."""
    loss = grads(model, x, y)
    synced(model, mean=True)
    with torch.no_grad():
        for at, (name, p) in enumerate(model.named_parameters()):
            owner = at % size()
            if rank() == owner:
                p.copy_(rule(p, p.grad, state(model, name, dict), mistake))
            source = 0 if mistake == "all are broadcast from rank 0" else owner
            dist.broadcast(p, src=source)
    return loss


def make(f, ranks=2, mistake="", split=whole, build=Mlp, inputs=(X, Y), **options):
    return dict(
        unsplit=build, split=split, ranks=ranks, inputs=inputs,
        loss=lambda model, x, y: f(model, x, y, "" if alone() else mistake, **options),
    )  # fmt: skip


def by_parts(ranks=2, mistake="", rule=adamw):
    return make(unsplit_or_zero3, ranks, mistake, lambda model: Zero3(model, mistake), rule=rule)


def unsplit_or_zero3(model, x, y, mistake, rule):
    return zero3(model, x, y, mistake, rule)


RULES = momentum, adamw, adagrad, rmsprop, lion, sophia, adan, schedule_free
RIGHT = (
    {
        f"ZeRO-{stage} of {f.__name__}, {n} ranks": lazily(make, zero, n, rule=f, stage=stage)
        for f, stage, n in [*((f, 1, 2) for f in RULES), (adamw, 2, 2), (momentum, 2, 4), (adamw, 1, 4)]
    }
    | {
        f"ZeRO-3 of {f.__name__}, {n} ranks": lazily(by_parts, n, rule=f)
        for f, n in [(adamw, 2), (momentum, 4), (lion, 2)]
    }
    | {
        "ZeRO-1 that leaves local gradients": lazily(
            make, zero, mistake="local gradients are left", rule=adamw
        ),
        "owners": lazily(make, owners, rule=adamw),
        "owners, 4 ranks": lazily(make, owners, 4, rule=momentum),
    }
)
WRONG = {
    f"{f.__name__}: {mistake}": lazily(make, f, mistake=mistake, rule=rule)
    for f, mistakes, rule in [
        (zero, "momentum starts anew|state of another rank|weights of another rank", momentum),
        (zero, "parts are not gathered|read before the gather has ended|a sum in place of a mean", momentum),
        (zero, "each rank counts a step|no weight decay on shards", adamw),
        (owners, "all are broadcast from rank 0", adamw),
    ]
    for mistake in mistakes.split("|")
} | {
    "ZeRO-3: gradients are cut, not reduced": lazily(by_parts, mistake="gradients are cut, not reduced"),
    "ZeRO-3: no weight decay on shards": lazily(by_parts, mistake="no weight decay on shards"),
}
