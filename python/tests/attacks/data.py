"""Data parallelism by hand."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from .common import alone, lazily, rank, shard, size, summed, synced, whole

X, Y = torch.empty(8, 8), torch.empty(8, 4)


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 4)

    def forward(self, x):
        return self.down(self.norm(F.silu(self.up(x))))


def halves(x, parts):
    return x.chunk(parts) if parts else [x]


def plain(model, x, y, mistake):
    loss = F.mse_loss(model(shard(x)), shard(y))
    loss.backward()
    if mistake == "no all-reduce":
        return loss
    if mistake == "the head is not reduced":
        model = model.up
    if mistake == "gradients are reduced twice":
        synced(model)
    synced(model, mean=mistake != "a sum in place of a mean")
    return loss


def gathered(model, x, y, mistake):
    """Gradients are gathered and averaged by each rank; the loss is reduced to rank 0 and broadcast."""
    loss = F.mse_loss(model(shard(x)), shard(y))
    loss.backward()
    for p in model.parameters():
        parts = [torch.empty_like(p.grad) for _ in range(size())]
        dist.all_gather(parts, p.grad)
        used = parts[:-1] if mistake == "the last rank's gradient is left out" else parts
        p.grad = torch.stack(used).mean(0)
    out = loss.detach().clone()
    dist.reduce(out, 0)
    dist.broadcast(out, 0)
    return out if mistake == "a loss is not averaged" else out / size()


def root(model, x, y, mistake):
    """A parameter server: rank 0 scatters data, gathers gradients, averages and broadcasts them."""
    mine = [torch.empty_like(shard(z)) for z in (x, y)]
    for z, out in zip((x, y), mine):
        dist.scatter(out, [part.contiguous() for part in z.chunk(size())] if rank() == 0 else None, src=0)
    loss = F.mse_loss(model(mine[0]), mine[1])
    loss.backward()
    for p in model.parameters():
        dist.reduce(p.grad, 0, op=dist.ReduceOp.AVG)
        if mistake != "only rank 0 has the mean":
            dist.broadcast(p.grad, 0)
    return summed(loss) / size()


def accumulated(model, x, y, mistake, steps=2):
    """Micro-batches; all but the last one do not synchronize."""
    total = 0
    for at, (a, b) in enumerate(zip(shard(x).chunk(steps), shard(y).chunk(steps))):
        loss = F.mse_loss(model(a), b)
        (loss if mistake == "the loss is not divided by the steps" else loss / steps).backward()
        total = total + loss.detach() / steps
        if mistake == "each micro-batch is reduced, with what came before":
            synced(model)
        if mistake == "gradients are cleared in between" and at == 0:
            model.zero_grad()
    if mistake != "each micro-batch is reduced, with what came before":
        synced(model)
    for p in model.parameters():
        p.grad /= size()
    return summed(total) / size()


def uneven(model, x, y, mistake):
    """Tokens that do not count, in uneven numbers."""
    mask = torch.tensor([1, 1, 1, 0, 0, 1, 0, 0])[:, None]
    x, y, mask = shard(x), shard(y), shard(mask)
    count = mask.sum()
    if mistake != "each rank divides by its own count":
        dist.all_reduce(count)
    loss = ((model(x) - y) ** 2 * mask).sum() / count
    if mistake == "a mean of sums":
        loss = loss / size()
    (loss * size() if mistake == "scaled up, and not averaged" else loss).backward()
    synced(model)
    return summed(loss)


def tokens_scaled(model, x, y, mistake):
    """Sums of losses; gradients are divided by the number of tokens of all ranks at the end."""
    mask = torch.tensor([1, 1, 1, 0, 0, 1, 0, 0])[:, None]
    mask = shard(mask)
    loss = ((model(shard(x)) - shard(y)) ** 2 * mask).sum()
    loss.backward()
    count = mask.sum() if mistake == "scaled by the own count" else summed(mask.sum())
    synced(model)
    for p in model.parameters():
        p.grad.mul_(1.0 / count)
    return summed(loss) / count


def bucketed(model, x, y, mistake):
    """Gradients in flat buckets, reduced while others are filled."""
    loss = F.mse_loss(model(shard(x)), shard(y))
    loss.backward()
    grads = [p.grad for p in model.parameters()]
    buckets = [grads[:3], grads[3:]]
    works = []
    for bucket in buckets:
        flat = _flatten_dense_tensors(bucket)
        if mistake != "divided twice":
            flat = flat / size()
        else:
            flat = flat / size() / size()
        works.append((flat, dist.all_reduce(flat, async_op=True), bucket))
    for flat, work, bucket in works:
        if mistake != "copied before it is waited for":
            work.wait()
        if mistake == "a bucket's gradients are not copied back" and bucket is buckets[1]:
            continue
        if mistake == "unpacked in another order":
            bucket = (
                [*bucket[:-3], *reversed(bucket[-3:])]
                if len({g.numel() for g in bucket}) < len(bucket)
                else bucket[::-1]
            )
        at = 0
        for g in bucket:
            g.copy_(flat[at : at + g.numel()].view_as(g))
            at += g.numel()
        work.wait()
    return summed(loss) / size()


def foreign(model, x, y, mistake):
    """Gradients as DeepSpeed's: torch's own flattening, coalesced collectives."""
    loss = F.mse_loss(model(shard(x)), shard(y))
    loss.backward()
    grads = [p.grad for p in model.parameters()]
    flat = _flatten_dense_tensors(grads)
    dist.all_reduce(flat)
    if mistake != "an unscaled bucket":
        flat.div_(size())
    for g, new in zip(grads, _unflatten_dense_tensors(flat, grads)):
        g.copy_(new)
    with torch.no_grad():
        out = loss.detach().clone()
        dist.all_reduce(out, op=dist.ReduceOp.AVG)
    return out


def hooked(model, x, y, mistake):
    """Gradients are reduced by hooks as they arrive, asynchronously."""
    if not alone():
        works = []

        def hook(p):
            if mistake == "a hook skips what has no bias" and p.dim() == 2:
                return
            p.grad /= size()
            works.append(dist.all_reduce(p.grad, async_op=True))

        [p.register_post_accumulate_grad_hook(hook) for p in model.parameters()]
    loss = F.mse_loss(model(shard(x)), shard(y))
    loss.backward()
    if not alone():
        [work.wait() for work in (works[:-1] if mistake == "the last work is not waited for" else works)]
    return summed(loss) / size()


def tensor_hooked(model, x, y, mistake):
    """Hooks of tensors, which return the reduced gradient, for two micro-batches."""

    def hook(gradient):
        if mistake == "a hook changes nothing":
            summed(gradient)
            return None
        return summed(gradient) / size()

    if not alone():
        [p.register_hook(hook) for p in model.parameters()]
    for a, b in zip(shard(x).chunk(2), shard(y).chunk(2)):
        (F.mse_loss(model(a), b) / 2).backward()
    return summed(F.mse_loss(model(shard(x)), shard(y))) / size()


def clipped(model, x, y, mistake, limit=0.5, parts=True):
    """Clips by a norm that is computed by hand, and steps; each rank counts some of the parameters."""
    loss = F.mse_loss(model(shard(x)), shard(y))
    loss.backward()
    every = list(model.parameters())
    if mistake == "clipped before the all-reduce":
        nn.utils.clip_grad_norm_(every, limit)
        synced(model, mean=True)
    else:
        synced(model, mean=True)
        mine = every[rank() :: size()] if parts else every
        squares = torch.stack([p.grad.pow(2).sum() for p in mine]).sum()
        if parts and mistake != "the norm of the own parameters":
            dist.all_reduce(squares)
        if mistake == "a sum of norms":
            squares = summed(torch.stack([p.grad.pow(2).sum() for p in mine]).sum().sqrt()) ** 2
        if mistake == "every rank counts all":
            squares = summed(torch.stack([p.grad.pow(2).sum() for p in every]).sum())
        scale = (limit / (squares.sqrt() + 1e-6)).clamp(max=1.0)
        [p.grad.mul_(scale) for p in every]
    with torch.no_grad():
        for p in every:
            p -= 0.1 * p.grad
    return summed(loss) / size()


def broadcast(model, x, y, mistake):
    """Rank 0's parameters are sent to all before the step, as at the start of a training."""
    for p in model.parameters():
        dist.broadcast(p.data, src=0)
    loss = F.mse_loss(model(shard(x)), shard(y))
    loss.backward()
    synced(model, mean=True)
    with torch.no_grad():
        if mistake != "only rank 0 steps" or rank() == 0:
            [p.sub_(p.grad, alpha=0.1) for p in model.parameters()]
    return summed(loss) / size()


def zeroed(model, x, y, mistake):
    """A plain training loop, which clears gradients after its step, and returns the loss."""
    loss = F.mse_loss(model(shard(x)), shard(y))
    loss.backward()
    synced(model, mean=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.step()
    optimizer.zero_grad()
    return loss


def functional(model, x, y, mistake):
    """Gradients by `torch.autograd.grad`, given to a pure function of parameters."""
    names, values = zip(*model.named_parameters())
    call = lambda a: torch.func.functional_call(model, dict(zip(names, values)), (a,))
    loss = F.mse_loss(call(shard(x)), shard(y))
    grads = torch.autograd.grad(loss, values)
    grads = [summed(g) / (1 if mistake == "no division" else size()) for g in grads]
    return [summed(loss) / size(), *grads]


def local_steps(model, x, y, mistake):
    """DiLoCo: ranks step alone, and average the change of weights in an outer step of Nesterov momentum."""
    parts = shard(x), shard(y)
    if alone():
        parts = x, y
    loss = F.mse_loss(model(parts[0]), parts[1])
    grads = torch.autograd.grad(loss, list(model.parameters()))
    before = [p.detach().clone() for p in model.parameters()]
    with torch.no_grad():
        [p.sub_(0.1 * g) for p, g in zip(model.parameters(), grads)]
        for p, old in zip(model.parameters(), before):
            delta = old - p
            if mistake != "changes are not averaged":
                dist.all_reduce(delta, op=dist.ReduceOp.AVG)
            p.copy_(old - 0.7 * delta if mistake != "on top of the own step" else p - 0.7 * delta)
    return summed(loss) / size()


def make(f, ranks=2, mistake="", outputs="equal", **options):
    return dict(
        unsplit=Mlp, split=whole, ranks=ranks, inputs=(X, Y), outputs=outputs,
        loss=lambda model, x, y: f(model, x, y, "" if alone() else mistake, **options),
    )  # fmt: skip


RIGHT = {
    f"{f.__name__}, {ranks} ranks": lazily(make, f, ranks)
    for ranks in (2, 4)
    for f in (
        gathered,
        root,
        uneven,
        tokens_scaled,
        bucketed,
        foreign,
        hooked,
        tensor_hooked,
        clipped,
        broadcast,
        functional,
    )
} | {
    "zeroed": lazily(make, zeroed, outputs="mean"),
    "plain": lazily(make, plain, outputs="mean"),
    "plain, 4 ranks": lazily(make, plain, 4, outputs="mean"),
    "accumulated": lazily(make, accumulated),
    "accumulated, 4 steps": lazily(make, accumulated, steps=4),
    "clipped, whole": lazily(make, clipped, parts=False),
    "local steps": lazily(make, local_steps),
}
WRONG = {
    f"{f.__name__}: {mistake}": lazily(make, f, mistake=mistake, outputs="mean" if f is plain else "equal")
    for f, mistakes in {
        plain: "no all-reduce|the head is not reduced|gradients are reduced twice|a sum in place of a mean",
        gathered: "the last rank's gradient is left out|a loss is not averaged",
        root: "only rank 0 has the mean",
        accumulated: "the loss is not divided by the steps|"
        "each micro-batch is reduced, with what came before|"
        "gradients are cleared in between",
        uneven: "each rank divides by its own count|a mean of sums|scaled up, and not averaged",
        tokens_scaled: "scaled by the own count",
        bucketed: "divided twice|copied before it is waited for|a bucket's gradients are not copied back|"
        "unpacked in another order",
        foreign: "an unscaled bucket",
        hooked: "a hook skips what has no bias|the last work is not waited for",
        tensor_hooked: "a hook changes nothing",
        clipped: "clipped before the all-reduce|the norm of the own parameters|"
        "a sum of norms|every rank counts all",
        broadcast: "only rank 0 steps",
        functional: "no division",
        local_steps: "changes are not averaged|on top of the own step",
    }.items()
    for mistake in mistakes.split("|")
}
