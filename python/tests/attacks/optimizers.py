"""Optimizers by hand, sharded ones, and averages of weights."""

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer

from .common import alone, joined, lazily, shard, size, summed, synced

X, Y = torch.empty(4, 8), torch.empty(4, 8)
from .zero import Mlp, grads, make, state


def newton_schulz(g, steps=2):
    x = g / (g.norm() + 1e-7)
    x = x.T if (flip := g.shape[0] > g.shape[1]) else x
    for _ in range(steps):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.T if flip else x


def muon(model, x, y, mistake):
    """Muon on weights split by rows: gradients' parts are gathered for Newton-Schulz."""
    loss = grads(model, x, y)
    synced(model, mean=True)
    with torch.no_grad():
        for name, p in model.named_parameters():
            g = p.grad
            if p.dim() == 1:
                p.sub_(0.1 * g)
                continue
            own = g if alone() else shard(g)
            m = state(model, name, lambda: torch.zeros_like(own))
            m.mul_(0.9).add_(own)
            if mistake == "orthogonal in parts":
                step = joined(newton_schulz(own + 0.9 * m))
            elif mistake == "momentum is not gathered":
                step = newton_schulz(g + 0.9 * (m if alone() else torch.cat([m] * size())))
            else:
                step = newton_schulz(joined(own + 0.9 * m))
            scale = (
                max(1, (len(own) if mistake == "scaled by the part's shape" else len(g)) / g.shape[1]) ** 0.5
            )
            p.mul_(1 - 0.01).sub_(0.02 * scale * step)
    return loss


def lamb(model, x, y, mistake):
    """LAMB and LARS: a trust ratio of norms over parts of all ranks."""
    loss = grads(model, x, y)
    synced(model, mean=True)
    with torch.no_grad():
        for p in model.parameters():
            w, g = shard(p), shard(p.grad)
            update = g / (g.abs() + 1e-6) + 0.01 * w
            of = torch.stack([w.square().sum(), update.square().sum()])
            if mistake != "a ratio of the own part":
                dist.all_reduce(of)
            of = of.sqrt()
            p.copy_(joined(w - 0.1 * of[0] / (of[1] + 1e-6) * update))
    return loss


def adafactor(model, x, y, mistake):
    """Factored second moments of weights split by rows: sums of columns are over ranks."""
    loss = grads(model, x, y)
    synced(model, mean=True)
    with torch.no_grad():
        for p in model.parameters():
            g = shard(p.grad)
            squares = g * g + 1e-30
            if p.dim() == 1:
                p.sub_(joined(0.1 * g / squares.sqrt()))
                continue
            rows, columns = squares.mean(1), squares.mean(0)
            if mistake != "columns of the own rows":
                columns = summed(columns) / size()
            mean = rows.mean()
            if mistake != "a mean of the own rows":
                mean = summed(mean) / size()
            update = g * (rows / mean).rsqrt()[:, None] * columns.rsqrt()
            rms = update.square().mean()
            rms = (rms if mistake == "clipped by the own part" else summed(rms) / size()).sqrt()
            p.sub_(joined(0.1 * update / rms.clamp(min=1.0)))
    return loss


def shampoo(model, x, y, mistake):
    """Normalized gradient descent, with a norm over parts, and Nesterov momentum."""
    loss = grads(model, x, y)
    synced(model, mean=True)
    with torch.no_grad():
        parts = [shard(p.grad) for p in model.parameters()]
        norm = torch.stack([g.norm() for g in parts])
        norm = norm.norm() if mistake == "a norm of parts" else summed(norm**2).sum().sqrt()
        for p, g in zip(model.parameters(), parts):
            p -= 0.1 * joined(g) / norm
    return loss


def averages(model, x, y, mistake, decay=0.9):
    """An exponential average of weights in buffers, with a decay that warms up."""
    loss = grads(model, x, y)
    synced(model, mean=True)
    count = state(model, "count", lambda: [0])
    with torch.no_grad():
        if mistake == "averaged before the step":
            follow(model, decay)
        [p.sub_(0.1 * p.grad) for p in model.parameters()]
        if mistake == "the count stands still":
            count = [0]
        if mistake != "averaged before the step":
            follow(model, min(decay, (1 + count[0]) / (10 + count[0])))
        count[0] += 1
    return loss


def follow(model, decay):
    for name, p in model.named_parameters():
        getattr(model, "average_" + name.replace(".", "_")).lerp_(p, 1 - decay)


def masters(model, x, y, mistake):
    """Weights of bfloat16 beside master weights of float32, split over ranks."""
    loss = grads(model, x.bfloat16(), y.bfloat16())
    synced(model, mean=True)
    with torch.no_grad():
        for name, p in model.named_parameters():
            master = state(model, name, lambda: shard(p.float()).clone())
            if mistake == "masters are forgotten":
                master = shard(p.float()) * 0 + master
                state(model, "lost", dict)[name] = master
            master.sub_(0.1 * shard(p.grad.float()))
            if mistake == "decay on the copy only":
                p.copy_(joined(master.bfloat16() * 0.99))
            else:
                master.mul_(0.99)
                p.copy_(joined(master.bfloat16()))
    return loss


def redundancy(model, x, y, mistake, optimizer=torch.optim.SGD, **options):
    """torch's ZeroRedundancyOptimizer, beside the plain optimizer."""
    loss = grads(model, x, y)
    if mistake != "gradients are not reduced":
        synced(model, mean=True)
    if alone():
        state(model, "optimizer", lambda: optimizer(model.parameters(), **options)).step()
    else:
        if mistake == "another rate":
            options["lr"] = 0.3
        make = lambda: ZeroRedundancyOptimizer(list(model.parameters()), optimizer_class=optimizer, **options)
        state(model, "optimizer", make).step()
    return loss


def torch_optimizer(model, x, y, mistake, of, **options):
    """An optimizer of torch on reduced gradients, with a schedule."""
    loss = grads(model, x, y)
    synced(model, mean=True)
    if mistake == "a new optimizer for each step":
        model.kept = {}
    made = state(model, "optimizer", lambda: of(model.parameters(), **options))
    schedule = state(
        model, "schedule", lambda: torch.optim.lr_scheduler.LambdaLR(made, lambda at: 1 / (1 + at))
    )
    if mistake == "the largest moment is not kept":
        [made.state[p].get("max_exp_avg_sq", p.grad * 0).zero_() for p in model.parameters()]
    made.step()
    if mistake != "the schedule stands still":
        schedule.step()
    return loss


AVERAGED = lazily(Mlp, averages=True)
HALF = lambda: Mlp().bfloat16()
RIGHT = {
    **{
        f"{f.__name__}, {n} ranks": lazily(make, f, n)
        for f in (muon, lamb, adafactor, shampoo)
        for n in (2, 4)
    },
    "averages": lazily(make, averages, build=AVERAGED),
    "masters": lazily(make, masters, build=HALF),
    "ZeroRedundancyOptimizer": lazily(make, redundancy, lr=0.1, momentum=0.9),
    "ZeroRedundancyOptimizer of AdamW": lazily(make, redundancy, optimizer=torch.optim.AdamW, lr=0.1),
    **{
        of.__name__: lazily(make, torch_optimizer, of=of, **options)
        for of, options in {
            torch.optim.Adam: dict(lr=0.1),
            torch.optim.AdamW: dict(lr=0.1, amsgrad=False, weight_decay=0.1),
            torch.optim.SGD: dict(lr=0.1, momentum=0.9, nesterov=True),
            torch.optim.Adagrad: dict(lr=0.1),
            torch.optim.RMSprop: dict(lr=0.1, momentum=0.5, centered=True),
            torch.optim.Adadelta: {},
            torch.optim.Adamax: {},
            torch.optim.NAdam: {},
            torch.optim.RAdam: {},
            torch.optim.Rprop: {},
        }.items()
    },
    "Adam with amsgrad": lazily(make, torch_optimizer, of=torch.optim.Adam, lr=0.1, amsgrad=True),
    "Adam by foreach": lazily(make, torch_optimizer, of=torch.optim.Adam, lr=0.1, foreach=True),
}
WRONG = {
    f"{f.__name__}: {mistake}": lazily(make, f, mistake=mistake, **options)
    for f, mistakes, options in [
        (muon, "orthogonal in parts|momentum is not gathered|scaled by the part's shape", {}),
        (lamb, "a ratio of the own part", {}),
        (adafactor, "columns of the own rows|a mean of the own rows|clipped by the own part", {}),
        (shampoo, "a norm of parts", {}),
        (averages, "averaged before the step|the count stands still", dict(build=AVERAGED)),
        (masters, "decay on the copy only", dict(build=HALF)),
        (redundancy, "gradients are not reduced|another rate", dict(lr=0.1)),
        (
            torch_optimizer,
            "a new optimizer for each step|the schedule stands still",
            dict(of=torch.optim.Adam, lr=0.1),
        ),
        (torch_optimizer, "the largest moment is not kept", dict(of=torch.optim.Adam, lr=0.1, amsgrad=True)),
    ]
    for mistake in mistakes.split("|")
}
