"""Features of PyTorch that training code uses beside its layers."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn
from torch.utils.checkpoint import checkpoint

from .common import Copy, Reduce, alone, joined, lazily, rank, shard, size, summed, synced, whole

X = torch.empty(4, 8)


class Mlp(nn.Module):
    def __init__(self, norm=nn.Identity):
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(8, 8), norm(), nn.Linear(8, 8)

    def forward(self, x):
        return self.down(torch.tanh(self.norm(self.up(x))))


def rows(model, x, mistake):
    loss = model(shard(x)).square().mean()
    loss.backward()
    synced(model, mean=True)
    return loss


def scaled(model, x, mistake):
    """A scaled loss, whose gradients are unscaled where all ranks have finite ones."""
    loss = model(shard(x)).square().mean()
    (loss * 65536.0).backward()
    synced(model)
    finite = torch.stack([torch.isfinite(p.grad).all() for p in model.parameters()]).all().float()
    dist.all_reduce(finite, op=dist.ReduceOp.MIN)
    for p in model.parameters():
        p.grad.mul_(1 / 65536.0 if mistake == "not averaged" else 1 / (65536.0 * size())).mul_(finite)
    return loss


def averaged(model, x, mistake):
    """torch's average of models, after a step."""
    if not hasattr(model, "average"):
        model.__dict__["average"] = AveragedModel(model, avg_fn=get_ema_avg_fn(0.9))
    loss = model(shard(x)).square().mean()
    loss.backward()
    synced(model, mean=mistake != "summed")
    with torch.no_grad():
        for p in model.parameters():
            p.sub_(0.1 * p.grad)
            p.grad = None
    model.average.update_parameters(model)
    return summed(loss) / size()


def keys(model, x, mistake):
    """A dictionary whose keys come in another order on the split."""
    y = model(x).detach()
    out = {"mean": y.mean(), "square": y.square().mean()}
    return out if alone() else {"square": out["square"], "mean": out["mean"]}


def saved(model, x, mistake):
    """A sum in place of what the backward pass needs."""
    y = model(shard(x)).exp()
    if not alone():
        z = y.clone() if not mistake else y
        dist.all_reduce(z.detach())
    loss = y.mean()
    loss.backward()
    synced(model, mean=True)
    return loss


def masks(model, x, mistake):
    """Features that are positive in a row of any rank, by a maximum of bits."""
    y = model(shard(x)).detach()
    bits = (y > 0).float().amax(0)
    if not mistake:
        dist.all_reduce(bits, op=dist.ReduceOp.MAX)
    return bits


def dispatched(model, x, mistake):
    """GShard's routing: one-hot tensors that dispatch tokens and combine outputs, with a capacity."""
    y = model(x)
    weights = y[:, :4].softmax(-1)
    at = weights.argmax(-1)
    hot = F.one_hot(at, 4)
    place = hot.cumsum(0) * hot - 1
    kept = (place < 2) & (hot > 0)
    slots = F.one_hot(place.clamp(min=0), 4)[..., :2] * kept[..., None]
    combine = weights[..., None] * slots
    inputs = torch.einsum("tec,td->ecd", slots.to(y.dtype), x)
    own = inputs if alone() else shard(inputs)
    first = 0 if alone() or mistake else rank() * len(own)
    scale = torch.arange(first, first + len(own))[:, None, None] + 1.0
    out = own * scale if alone() else joined(own * scale)
    return torch.einsum("tec,ecd->td", combine, out)


def expert_choice(model, x, mistake):
    """Experts choose their tokens among those of all ranks."""
    scores = model(shard(x)).softmax(-1)
    every = scores if mistake else joined(scores)
    top, at = every.T.topk(1 if mistake else 2, -1)
    chosen = torch.zeros(8, len(every)).scatter(1, at, 1.0)
    out = (every * chosen.T).sum(-1)
    return out if mistake or alone() else shard(out)


def attention(model, x, mistake, **options):
    """Scaled-dot-product attention of heads that are split."""
    y = model(x).view(1, 4, 2, 4).transpose(1, 2)
    y = y if alone() else shard(y, 1)
    if "attn_mask" in options:
        options["attn_mask"] = options["attn_mask"](y.shape[1])
    return F.scaled_dot_product_attention(y, y * 2, y + 1, **options)


def recomputed(model, x, mistake):
    """A checkpoint of a function with a collective."""

    def inner(z):
        z = Copy.apply(z)
        up, down = (
            (model.up.weight, model.down.weight)
            if alone()
            else (shard(model.up.weight), shard(model.down.weight, 1))
        )
        return (lambda y: y if mistake else Reduce.apply(y))(torch.tanh(z @ up.T) @ down.T)

    y = checkpoint(inner, x, use_reentrant=False)
    loss = (y + model.down.bias + model.up.bias).square().mean()
    loss.backward()
    if not alone():
        [dist.all_reduce(p.grad) for p in (model.up.weight, model.down.weight)]
    return loss


def make(f, ranks=2, mistake="", norm=nn.Identity, split=whole, outputs="equal", grads=True, **options):
    def loss(model, x):
        with torch.set_grad_enabled(grads):
            return f(model, x, "" if alone() else mistake, **options)

    return dict(unsplit=lambda: Mlp(norm), split=split, ranks=ranks, inputs=X, loss=loss, outputs=outputs)


MEAN, VALUE = dict(outputs="mean"), dict(grads=False)
ATTENTIONS = {
    "a scale": dict(scale=0.3), "causal": dict(is_causal=True),
    "a mask of bits": dict(attn_mask=lambda heads: torch.ones(4, 4, dtype=torch.bool).tril()),
    "a mask of floats": dict(attn_mask=lambda heads: torch.arange(4.0)[:, None] - torch.arange(4.0)),
}  # fmt: skip
RIGHT = {
    "scaled": lazily(make, scaled, **MEAN),
    "averaged": lazily(make, averaged),
    "keys": lazily(make, keys, **VALUE),
    "saved": lazily(make, saved, **MEAN),
    "masks": lazily(make, masks, **VALUE),
    "dispatched": lazily(make, dispatched, **VALUE),
    "expert choice": lazily(make, expert_choice, **VALUE),
    "recomputed": lazily(make, recomputed),
    **{f"attention, {name}": lazily(make, attention, **VALUE, **o) for name, o in ATTENTIONS.items()},
}
WRONG = {
    f"{f.__name__}: {mistake}": lazily(make, f, mistake=mistake, **options)
    for f, mistake, options in [
        (scaled, "not averaged", MEAN),
        (averaged, "summed", {}),
        (masks, "local", VALUE),
        (dispatched, "the first experts", VALUE),
        (expert_choice, "a local choice", VALUE),
        (recomputed, "not summed", {}),
        (rows, "local batch statistics", dict(norm=lazily(nn.BatchNorm1d, 8), outputs="mean")),
        (saved, "in place", MEAN),
    ]
}
