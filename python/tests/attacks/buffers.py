"""Buffers that are written in place, reused, or given as `out`."""

import torch
import torch.distributed as dist
from torch import nn

from .common import alone, lazily, rank, shard, size, summed, whole

X = torch.empty(4, 8)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return self.layer(x)


def by_out(model, x, mistake, call):
    """Partial sums that an operator writes into a buffer, which is summed."""
    w, x = (model.layer.weight, x) if alone() else (shard(model.layer.weight, 1), shard(x, 1))
    out = torch.zeros_like(x[:, :1]).repeat(1, 8)
    call(x, w, out)
    if mistake != "not summed" and not alone():
        dist.all_reduce(out)
    return out


def matmul(x, w, out):
    torch.matmul(x, w.T, out=out)


def mm(x, w, out):
    torch.mm(x, w.T, out=out)


def added(x, w, out):
    torch.add(x @ w.T, x @ w.T, out=out)


def multiplied(x, w, out):
    torch.mul(x @ w.T, 2.0, out=out)


def total(x, w, out):
    torch.sum(torch.stack([x @ w.T, x @ w.T]), 0, out=out)


def addmm_(x, w, out):
    out.addmm_(x, w.T)


def add_(x, w, out):
    out.add_(x @ w.T, alpha=0.5)


def sliced(x, w, out):
    out[:2], out[2:] = x[:2] @ w.T, x[2:] @ w.T


def catted(x, w, out):
    torch.cat([x[:2] @ w.T, x[2:] @ w.T], out=out)


def copied(x, w, out):
    [a.copy_(b) for a, b in zip(out.chunk(2, 1), (x @ w.T).chunk(2, 1))]


def row(x, w, out):
    out.view(-1).copy_((x @ w.T).view(-1))


def main_grad(model, x, mistake):
    """Gradients that hooks accumulate in a buffer of all weights, as Megatron-LM's optimizer does."""
    every = list(model.parameters())
    buffer = torch.zeros(sum(p.numel() for p in every))
    at = 0
    for p in every:
        p.main_grad = buffer[at : at + p.numel()].view_as(p)
        at += p.numel()

        def hook(p):
            p.main_grad = (
                p.main_grad.add_(p.grad)
                if mistake != "a micro-batch is overwritten"
                else p.main_grad.copy_(p.grad)
            )
            p.grad = None

        p.register_post_accumulate_grad_hook(hook)
    for micro in shard(x).chunk(2):
        (model(micro) ** 2).sum().backward()
    if mistake != "a part of the buffer is summed":
        dist.all_reduce(buffer)
    else:
        dist.all_reduce(buffer[: model.layer.weight.numel()])
    return [p.main_grad for p in every]


def ring_buffer(model, x, mistake):
    """Two buffers in turn, for what comes around a ring."""
    y = model(shard(x)).detach()
    n, r = size(), rank()
    out = torch.zeros_like(y).repeat(n, 1)
    rows = len(y)
    buffers = [y.clone(), torch.empty_like(y)]
    for step in range(n):
        at = (r - step) % n
        out[at * rows : (at + 1) * rows] = buffers[step % 2]
        if step + 1 == n:
            break
        sent, received = buffers[step % 2], buffers[(step + 1) % 2]
        works = [dist.isend(sent, (r + 1) % n), dist.irecv(received, (r - 1) % n)]
        if mistake == "a buffer is cleared before it is sent":
            sent.zero_()
        [work.wait() for work in works]
        if mistake == "one buffer for both" and step % 2:
            buffers[0].copy_(buffers[1])
    if mistake == "parts in the order they come":
        out = out.view(n, rows, -1).flip(0).flatten(0, 1)
    return out


def saved(model, x, mistake):
    """An activation that is written over between the forward and the backward pass."""
    y = torch.tanh(model(shard(x)))
    loss = (y * y.detach()).sum()
    if mistake == "an activation is written over":
        y.data.mul_(size())
    loss.backward()
    [dist.all_reduce(p.grad) for p in model.parameters()]
    return summed(loss)


def futures(model, x, mistake):
    """Gradients that are summed by calls, whose futures are waited for one by one or together."""
    (model(shard(x)) ** 2).sum().backward()
    every = list(model.parameters())
    calls = [dist.all_reduce(p.grad, async_op=True).get_future() for p in every]
    halves = [call.then(lambda call: call.value()[0] / 2) for call in calls]
    if mistake != "never waited for":
        torch.futures.collect_all(halves[:1]).wait()
        torch.futures.wait_all(halves[1:])
    return [p.grad for p in every], [half.wait() for half in halves] if not mistake else [p.grad / 2 for p in every]


def coalesced(model, x, mistake):
    """Gradients that are summed in one call for a device."""
    (model(shard(x)) ** 2).sum().backward()
    with dist._coalescing_manager(device=torch.device("cuda"), async_ops=True) as calls:
        for p in model.parameters():
            dist.all_reduce(p.grad)
    if mistake != "not waited for":
        calls.wait()
    return [p.grad for p in model.parameters()]


def asked(model, x, mistake):
    """Gradients that are summed by calls, which are asked until they are complete, or once."""
    (model(shard(x)) ** 2).sum().backward()
    calls = [dist.all_reduce(p.grad, async_op=True) for p in model.parameters()]
    for call in calls:
        while not call.is_completed() and mistake != "once":
            pass
    return [p.grad / 2 for p in model.parameters()]


def make(f, ranks=2, mistake="", call=None):
    def loss(model, x):
        if f in (main_grad, saved, futures, asked, coalesced):
            return f(model, x, "" if alone() else mistake)
        with torch.no_grad():
            return f(model, x, "" if alone() else mistake, *([call] if call else []))

    options = dict(outputs="sum") if mistake == "sum" else {}
    return dict(unsplit=Layer, split=whole, ranks=ranks, inputs=X, loss=loss, **options)


CALLS = [matmul, mm, added, multiplied, total, addmm_, add_, sliced, catted, copied, row]
RIGHT = {f"by {f.__name__}": lazily(make, by_out, call=f) for f in CALLS} | {
    f"{f.__name__}, {ranks} ranks": lazily(make, f, ranks)
    for f in (main_grad, ring_buffer, saved, futures, asked, coalesced)
    for ranks in (2, 4)
}
WRONG = {
    f"by {f.__name__}, not summed": lazily(make, by_out, call=f, mistake="not summed") for f in CALLS
} | {
    f"{f.__name__}: {mistake}": lazily(make, f, 4 if f is ring_buffer else 2, mistake=mistake)
    for f, mistake in [
        (main_grad, "a micro-batch is overwritten"),
        (main_grad, "a part of the buffer is summed"),
        (ring_buffer, "a buffer is cleared before it is sent"),
        (ring_buffer, "parts in the order they come"),
        (saved, "an activation is written over"),
        (futures, "never waited for"),
        (asked, "once"),
        (coalesced, "not waited for"),
    ]
}
