"""Pipelines by messages: GPipe, 1F1B, interleaved stages, tied embeddings."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from .common import alone, ids, lazily, rank, size, summed

X = torch.empty(4, 8)


class Stack(nn.Module):
    def __init__(self, layers=4, frozen=0):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8)) for _ in range(layers))
        [p.requires_grad_(False) for layer in self.layers[:frozen] for p in layer.parameters()]

    def forward(self, x):
        for layer in self.layers:
            x = x + F.silu(layer(x))
        return x


class Stage(nn.Module):
    """A rank's layers: `rounds` groups of them, which go around the ranks."""

    def __init__(self, model, rounds=1, mistake=""):
        super().__init__()
        per = len(model.layers) // (size() * rounds)
        groups = [(r * size() + rank()) * per for r in range(rounds)]
        if mistake == "layers of another rank":
            groups = groups[::-1] if rounds > 1 else [(size() - 1 - rank()) * per]
        self.groups = nn.ModuleList(
            nn.ModuleDict({str(i): model.layers[i] for i in range(g, g + per)}) for g in groups
        )

    def run(self, x, group=0):
        for layer in self.groups[group].values():
            x = x + F.silu(layer(x))
        return x


def plain(model, x, micro):
    losses = [model(part).square().mean() for part in x.chunk(micro)]
    loss = sum(losses) / micro
    loss.backward()
    return loss.detach()


def gpipe(model, x, mistake, micro=4):
    """All micro-batches go forward, then all go back."""
    if alone():
        return plain(model, x, micro)
    first, last = rank() == 0, rank() == size() - 1
    kept, total = [], 0
    for part in x.chunk(micro):
        if not first:
            part = torch.empty_like(part)
            dist.recv(part, rank() - 1)
            part.requires_grad_()
        y = model.run(part)
        if last:
            loss = y.square().mean() if mistake == "the loss is not divided" else y.square().mean() / micro
            total = total + loss.detach()
            kept.append((part, loss))
        else:
            dist.send(y.detach(), rank() + 1)
            kept.append((part, y))
    order = kept if mistake != "backward in another order on one rank" or not last else kept[::-1]
    for part, y in order:
        if last:
            y.backward()
        else:
            gradient = torch.empty_like(y)
            dist.recv(gradient, rank() + 1)
            if mistake == "the first micro-batch has no gradient" and y is kept[0][1]:
                continue
            if y.requires_grad:
                torch.autograd.backward(y, gradient)
        if not first:
            dist.send(part.grad, rank() - 1)
    total = torch.as_tensor(total) if last else torch.zeros_like(x[0, 0])
    if mistake != "the loss is on the last rank only":
        dist.broadcast(total, size() - 1)
    return total


def exchanged(sent=None, to=None, like=None, source=None):
    """Sends and receives at once, as Megatron-LM's stages do."""
    ops, new = [], None
    if sent is not None:
        ops.append(dist.P2POp(dist.isend, sent, to))
    if source is not None:
        new = torch.empty_like(like)
        ops.append(dist.P2POp(dist.irecv, new, source))
    [work.wait() for work in dist.batch_isend_irecv(ops)] if ops else None
    return new


def one_by_one(model, x, mistake, micro=4):
    """1F1B: after a warm-up each rank goes forward and back in turn."""
    if alone():
        return plain(model, x, micro)
    n, r = size(), rank()
    first, last = r == 0, r == n - 1
    parts, kept, total = list(x.chunk(micro)), [], 0
    warm = min(n - r - 1, micro)

    def forward(at, part):
        nonlocal total
        part = parts[at] if first else part.requires_grad_()
        y = model.run(part)
        if last:
            y = y.square().mean() / micro
            total = total + y.detach()
        kept.append((part, y))
        return y.detach()

    def backward(gradient):
        part, y = kept.pop(0 if mistake != "the last micro-batch goes back first" else -1)
        torch.autograd.backward(y, None if last else gradient)
        return None if first else part.grad

    up, down = None if first else r - 1, None if last else r + 1
    like = parts[0]
    receive = lambda: exchanged(like=like, source=up)
    for at in range(warm):
        exchanged(forward(at, receive()), down)
    part = receive() if warm < micro else None
    for at in range(micro - warm):
        y = forward(at + warm, part)
        gradient = exchanged(None if last else y, down, like, down)
        back = backward(gradient)
        more = at + 1 < micro - warm
        part = exchanged(back, up, like, up if more else None) if not first else None
    for _ in range(warm):
        exchanged(backward(exchanged(like=like, source=down)), up) if not first else backward(
            exchanged(like=like, source=down)
        )
    total = total if last else torch.zeros_like(x[0, 0])
    dist.all_reduce(total)
    return total


def interleaved(model, x, mistake, rounds=2):
    """Ranks have layers in rounds, so activations go around a ring."""
    if alone():
        return plain(model, x, 1)
    n, r = size(), rank()
    before, after = (r - 1) % n, (r + 1) % n
    kept = []
    for g in range(rounds):
        if not (g == 0 and r == 0):
            part = torch.empty_like(x)
            dist.recv(part, before)
            part.requires_grad_()
        else:
            part = x
        y = model.run(part, g)
        kept.append((part, y))
        if not (g == rounds - 1 and r == n - 1):
            dist.send(y.detach(), after)
    loss = torch.zeros_like(x[0, 0])
    for g in reversed(range(rounds)):
        part, y = kept[g]
        if g == rounds - 1 and r == n - 1:
            loss = y.square().mean()
            loss.backward()
        else:
            gradient = torch.empty_like(y)
            dist.recv(gradient, after)
            y.backward(gradient if mistake != "gradients of another round" else gradient * (1 + g))
        if not (g == 0 and r == 0):
            dist.send(part.grad, before)
    return summed(loss)


class Tied(nn.Module):
    """An embedding that is also the head."""

    def __init__(self):
        super().__init__()
        self.embedding, self.layer = nn.Embedding(12, 8), nn.Linear(8, 8)

    def forward(self, tokens):
        return F.linear(torch.tanh(self.layer(self.embedding(tokens))), self.embedding.weight)


class TiedStage(nn.Module):
    """Both ranks hold the embedding; its gradients are summed."""

    def __init__(self, model):
        super().__init__()
        self.embedding = nn.Parameter(model.embedding.weight.detach().clone())
        if rank():
            self.layer = model.layer


def tied(model, tokens, targets, mistake, steps=False):
    if alone():
        loss = F.cross_entropy(model(tokens), targets)
        loss.backward()
    elif rank() == 0:
        x = F.embedding(tokens, model.embedding)
        dist.send(x.detach(), 1)
        gradient = torch.empty_like(x)
        dist.recv(gradient, 1)
        x.backward(gradient)
        loss = torch.zeros_like(x[0, 0])
    else:
        x = torch.zeros_like(model.embedding[: len(tokens)])
        dist.recv(x, 0)
        x.requires_grad_()
        loss = F.cross_entropy(F.linear(torch.tanh(model.layer(x)), model.embedding), targets)
        loss.backward()
        dist.send(x.grad, 0)
    if not alone():
        weight = model.embedding
        if mistake == "the sum is a mean":
            dist.all_reduce(weight.grad, op=dist.ReduceOp.AVG)
        elif mistake != "the tied gradient is not summed":
            dist.all_reduce(weight.grad)
    if steps:
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
                p.grad = None
    return summed(loss)


def trained(model, x, mistake, micro=2):
    """Two steps of a pipeline with an optimizer on each rank, and a norm of all gradients."""
    loss = gpipe(model, x, mistake, micro)
    every = [p for p in model.parameters() if p.grad is not None]
    with torch.no_grad():
        squares = sum((p.grad.square().sum() for p in every), torch.zeros_like(x[0, 0]))
        if mistake != "a norm of the own stage":
            dist.all_reduce(squares)
        scale = (1.0 / (squares.sqrt() + 1e-6)).clamp(max=1.0)
        for p in every:
            p -= 0.1 * scale * p.grad
            p.grad = None
    return loss


def make(f, ranks=2, mistake="", layers=4, rounds=1, frozen=0, **options):
    return dict(
        unsplit=lambda: Stack(layers, frozen),
        split=lambda model: Stage(model, rounds, mistake),
        ranks=ranks,
        inputs=X,
        loss=lambda model, x: f(model, x, mistake, **options),
    )


def with_tied(mistake="", steps=False):
    return dict(
        unsplit=Tied, split=lambda model: TiedStage(model), ranks=2, inputs=(ids(4), ids(4, seed=1)),
        loss=lazily(tied, mistake=mistake, steps=steps),
    )  # fmt: skip


class Bare(nn.Module):
    """A middle rank without parameters."""

    def __init__(self, model):
        super().__init__()
        self.layers = nn.ModuleDict({str(rank() // 2): model.layers[rank() // 2]} if rank() != 1 else {})

    def run(self, x):
        return x + F.silu(self.layers[str(rank() // 2)](x)) if rank() != 1 else torch.tanh(x)


class BareStack(Stack):
    def forward(self, x):
        x = torch.tanh(x + F.silu(self.layers[0](x)))
        return x + F.silu(self.layers[1](x))


def bare(f):
    return dict(
        unsplit=lambda: BareStack(2), split=Bare, ranks=3, inputs=X, loss=lambda model, x: f(model, x, "")
    )


RIGHT = {
    "GPipe": lazily(make, gpipe),
    "GPipe, 4 ranks": lazily(make, gpipe, 4),
    "GPipe, 2 parts": lazily(make, gpipe, micro=2),
    "1F1B": lazily(make, one_by_one),
    "1F1B, 4 ranks": lazily(make, one_by_one, 4),
    "1F1B, 2 parts": lazily(make, one_by_one, 4, micro=2),
    "interleaved": lazily(make, interleaved, rounds=2),
    "interleaved, 4 layers a rank": lazily(make, interleaved, layers=8, rounds=2),
    "tied": lazily(with_tied),
    "tied and stepped": lazily(with_tied, steps=True),
    "trained": lazily(make, trained),
    "trained, 4 ranks": lazily(make, trained, 4),
    "a frozen stage": lazily(make, trained, frozen=2),
    "a frozen stage that does not step": lazily(make, gpipe, frozen=1, ranks=2),
    "a rank without parameters": lazily(bare, gpipe),
    "a rank without parameters, trained": lazily(bare, trained),
}
WRONG = {
    f"{f.__name__}: {mistake}": lazily(make, f, 2, mistake, **options)
    for f, mistake, options in [
        (gpipe, "layers of another rank", {}),
        (gpipe, "the loss is not divided", {}),
        (gpipe, "backward in another order on one rank", {}),
        (gpipe, "the first micro-batch has no gradient", {}),
        (gpipe, "the loss is on the last rank only", {}),
        (one_by_one, "the last micro-batch goes back first", {}),
        (interleaved, "layers of another rank", dict(rounds=2)),
        (interleaved, "gradients of another round", dict(rounds=2)),
        (trained, "a norm of the own stage", {}),
    ]
} | {
    f"tied: {mistake}": lazily(with_tied, mistake)
    for mistake in [
        "the tied gradient is not summed",
        "the sum is a mean",
    ]
}
