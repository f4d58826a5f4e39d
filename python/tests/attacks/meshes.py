"""Groups and meshes of two dimensions, functional collectives, and adapters of low rank."""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.nn.functional as dnn
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from .common import (
    Copy,
    Reduce,
    alone,
    joined,
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


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return x + self.down(F.silu(self.up(self.norm(x))))


def groups(how="mesh"):
    """The data- and the tensor-parallel group of a rank, of two ranks each."""
    if how == "mesh":
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        return mesh.get_group("dp"), mesh.get_group("tp")
    if how == "subgroups":
        tp, _ = dist.new_subgroups(2)
        dp, _ = dist.new_subgroups_by_enumeration([[0, 2], [1, 3]])
        return dp, tp
    pick = lambda rows: [g for ranks, g in [(r, dist.new_group(r)) for r in rows] if rank() in ranks][0]
    return pick([[0, 2], [1, 3]]), pick([[0, 1], [2, 3]])


class TwoD(nn.Module):
    def __init__(self, mlp, mistake="", how="mesh"):
        super().__init__()
        self.dp, self.tp = groups(how)
        self.mistake = mistake
        at = rank(self.tp) if mistake != "parts by the data rank" else rank(self.dp)
        self.norm = mlp.norm
        self.up, self.up_bias = part(mlp.up.weight, 0, at, 2), part(mlp.up.bias, 0, at, 2)
        self.down, self.bias = part(mlp.down.weight, 1, at, 2), mlp.down.bias

    def forward(self, x):
        group = {"sums over the data group": self.dp, "sums over all": None}.get(self.mistake, self.tp)
        y = F.silu(F.linear(Copy.apply(self.norm(x), group), self.up, self.up_bias))
        return x + Reduce.apply(F.linear(y, self.down), group) + self.bias


def two(model, x, mistake=""):
    if alone():
        loss = model(x).square().mean()
        loss.backward()
        return loss
    at = rank(model.dp) if mistake != "data by the tensor rank" else rank(model.tp)
    loss = model(shard(x, 0, at, 2)).square().mean()
    loss.backward()
    group = {"gradients over the tensor group": model.tp, "gradients over all": None}.get(mistake, model.dp)
    for p in model.parameters():
        if mistake == "whole parameters only" and p.dim() == 2:
            continue
        dist.all_reduce(p.grad, op=dist.ReduceOp.AVG, group=group)
    return loss


def two_clipped(model, x, mistake=""):
    """Norm of gradients: parts are summed over tensor ranks, and what is whole counts once."""
    loss = two(model, x)
    split = {"up", "up_bias", "down"}
    own = [p.grad.square().sum() for name, p in model.named_parameters() if name in split or alone()]
    rest = [p.grad.square().sum() for name, p in model.named_parameters() if not (name in split or alone())]
    total = torch.stack(own).sum()
    if not alone():
        rest = torch.stack(rest).sum()
        if mistake == "whole parameters count twice":
            total, rest = total + rest, 0
        if mistake != "local parts":
            dist.all_reduce(total, group=model.tp if mistake != "parts over all" else None)
        total = total + rest
    with torch.no_grad():
        for p in model.parameters():
            p.sub_(0.1 * p.grad / total.sqrt())
    return loss.detach()


class Functional(nn.Module):
    """Layers by functional collectives, which autograd goes back through."""

    def __init__(self, mlp, mistake="", how="funcol"):
        super().__init__()
        self.mistake, self.how, self.norm = mistake, how, mlp.norm
        self.up, self.up_bias = part(mlp.up.weight), part(mlp.up.bias)
        self.down, self.bias = part(mlp.down.weight, 1), mlp.down.bias

    def forward(self, x):
        if self.how == "funcol":
            return self.by_funcol(x)
        return self.by_nn(x)

    def by_funcol(self, x):
        group = dist.group.WORLD
        mine = shard(x)
        y = funcol.all_gather_tensor_autograd(self.norm_of(mine), 0, group)
        y = F.linear(F.silu(F.linear(y, self.up, self.up_bias)), self.down)
        if self.mistake == "a mean in place of a sum":
            y = y / size()
        if self.mistake == "rows of all-reduced sums":
            y = shard(funcol.all_reduce(y, "sum", group))
        else:
            y = funcol.reduce_scatter_tensor_autograd(y, "sum", 0, group)
        return mine + y + Copy.apply(self.bias)

    def norm_of(self, x):
        w, b = self.norm.weight, self.norm.bias
        if self.mistake != "the norm's gradient stays local":
            w, b = Copy.apply(w), Copy.apply(b)
        return F.layer_norm(x, (8,), w, b)

    def by_nn(self, x):
        """`torch.distributed.nn`, whose all-reduce sums in the backward pass, too."""
        mine = shard(x)
        y = torch.cat(dnn.all_gather(self.norm_of(mine)))
        y = F.linear(F.silu(F.linear(y, self.up, self.up_bias)), self.down)
        if self.mistake == "all-reduced and cut":
            y = shard(dnn.all_reduce(y))
        else:
            y = dnn.reduce_scatter(torch.empty_like(mine), [z.contiguous() for z in y.chunk(size())])
        return mine + y + Copy.apply(self.bias)


class Lora(nn.Module):
    """Frozen layers with adapters."""

    def __init__(self, r=2, alpha=4):
        super().__init__()
        self.up, self.down = nn.Linear(8, 8), nn.Linear(8, 8)
        [p.requires_grad_(False) for p in self.parameters()]
        self.a1, self.b1 = nn.Parameter(torch.zeros(r, 8)), nn.Parameter(torch.zeros(8, r))
        self.a2, self.b2 = nn.Parameter(torch.zeros(r, 8)), nn.Parameter(torch.zeros(8, r))
        self.scale = alpha / r

    def forward(self, x):
        y = F.relu(self.up(x) + self.scale * (x @ self.a1.T @ self.b1.T))
        return self.down(y) + self.scale * (y @ self.a2.T @ self.b2.T)


class SplitLora(nn.Module):
    """The first layer by columns with its B, the second one by rows with its A."""

    def __init__(self, of, mistake=""):
        super().__init__()
        self.mistake, self.scale = mistake, of.scale
        frozen = lambda x: nn.Parameter(x, requires_grad=False)
        self.up, self.up_bias = frozen(shard(of.up.weight)), frozen(shard(of.up.bias))
        self.down, self.bias = frozen(shard(of.down.weight, 1)), of.down.bias
        self.a1, self.b1, self.a2, self.b2 = of.a1, part(of.b1), part(of.a2, 1), of.b2
        if mistake == "B of another rank":
            self.b1 = part(of.b1, at=(rank() + 1) % size())

    def forward(self, x):
        low = x @ self.a1.T if self.mistake == "A's gradient stays local" else Copy.apply(x @ self.a1.T)
        y = F.relu(F.linear(Copy.apply(x), self.up, self.up_bias) + self.scale * (low @ self.b1.T))
        low = y @ self.a2.T
        if self.mistake == "B before the sum":
            return Reduce.apply(F.linear(y, self.down) + self.scale * (low @ self.b2.T)) + self.bias
        scale = self.scale / size() if self.mistake == "scaled by the rank's part" else self.scale
        low = Reduce.apply(low) if self.mistake != "the low rank is not summed" else low
        return Reduce.apply(F.linear(y, self.down)) + self.bias + scale * (low @ self.b2.T)


def ema_teacher(model, x, mistake=""):
    """A teacher of averaged outputs, centred by the mean over all ranks, as DINO's."""
    y = model(shard(x))
    with torch.no_grad():
        t = model(shard(x)).detach()
        center = t.mean(0)
        if mistake != "a local centre":
            center = summed(center) / size()
        target = ((t - center) / 0.5).softmax(-1)
    loss = -(target * y.log_softmax(-1)).sum(-1).mean()
    loss.backward()
    synced(model, mean=True)
    return loss


def queue(model, x, mistake=""):
    """MoCo's queue of keys of all ranks, in a buffer, and its contrastive loss."""
    q = F.normalize(model(shard(x)), dim=-1)
    with torch.no_grad():
        k = F.normalize(model(shard(x)).detach() + shard(x), dim=-1)
    logits = torch.cat([(q * k).sum(-1, keepdim=True), q @ model.queue.clone().T], 1) / 0.2
    loss = F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.int64))
    loss.backward()
    with torch.no_grad():
        every = joined(k) if mistake != "own keys only" else torch.cat([k] * size())
        model.queue.copy_(torch.cat([every, model.queue[: -len(every)]]))
    synced(model, mean=True)
    return loss


class Queued(Mlp):
    def __init__(self):
        super().__init__()
        self.register_buffer("queue", torch.ones(8, 8))


def make(split, ranks=4, build=Mlp, loss=None, gradient=False, **options):
    return dict(
        unsplit=build,
        split=split,
        ranks=ranks,
        inputs=X.clone().requires_grad_(gradient),
        loss=loss,
        **options,
    )


def twod(loss=two, mistake="", how="mesh"):
    outputs = "mean" if loss is two else "mean"
    return make(lambda mlp: TwoD(mlp, mistake, how), loss=lazily(loss, mistake=mistake), outputs=outputs)


RIGHT = {f"two dimensions by {how}": lazily(twod, how=how) for how in ("mesh", "subgroups", "groups")} | {
    "two dimensions, clipped": lazily(twod, two_clipped),
    **{
        f"{how}, {ranks} ranks": lazily(make, lambda mlp, how=how: Functional(mlp, how=how), ranks)
        for how in ("funcol", "nn")
        for ranks in (2, 4)
    },
    "funcol, rows of all-reduced sums": lazily(
        make, lambda mlp: Functional(mlp, "rows of all-reduced sums"), 2
    ),
    "nn, all-reduced and cut": lazily(make, lambda mlp: Functional(mlp, "all-reduced and cut", "nn"), 2),
    "adapters": lazily(make, SplitLora, 2, Lora, gradient=True),
    "adapters, 4 ranks": lazily(make, SplitLora, 4, Lora),
    "a centre": lazily(make, whole, 2, loss=ema_teacher, outputs="mean"),
    "a queue": lazily(make, whole, 2, Queued, loss=queue, outputs="mean"),
}
WRONG = (
    {
        f"two dimensions: {mistake}": lazily(twod, mistake=mistake)
        for mistake in [
            "parts by the data rank",
            "sums over the data group",
            "sums over all",
            "data by the tensor rank",
            "gradients over the tensor group",
            "gradients over all",
            "whole parameters only",
        ]
    }
    | {
        f"two dimensions, clipped: {mistake}": lazily(twod, two_clipped, mistake)
        for mistake in [
            "whole parameters count twice",
            "local parts",
            "parts over all",
        ]
    }
    | {
        f"{how}: {mistake}": lazily(
            make, lambda mlp, how=how, mistake=mistake: Functional(mlp, mistake, how), 2
        )
        for how, mistake in [
            ("funcol", "a mean in place of a sum"),
            ("nn", "the norm's gradient stays local"),
        ]
    }
    | {
        f"adapters: {mistake}": lazily(make, lambda of, mistake=mistake: SplitLora(of, mistake), 2, Lora)
        for mistake in [
            "B of another rank",
            "A's gradient stays local",
            "B before the sum",
            "scaled by the rank's part",
            "the low rank is not summed",
        ]
    }
    | {
        "a centre of one rank": lazily(
            make, whole, 2, loss=lazily(ema_teacher, mistake="a local centre"), outputs="mean"
        ),
        "a queue of own keys": lazily(
            make, whole, 2, Queued, loss=lazily(queue, mistake="own keys only"), outputs="mean"
        ),
    }
)
