"""Collectives built of others: rings, trees, hierarchies, products on a square of ranks, hybrid shards."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from .common import (
    Copy,
    alone,
    joined,
    lazily,
    part,
    rank,
    shard,
    size,
    summed,
    whole,
)

X = torch.empty(4, 8)


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return self.down(torch.tanh(self.up(x)))


def swap(sent, to, source, tag=0):
    """Sends one tensor, and receives one of the same shape."""
    new = torch.empty_like(sent)
    works = [dist.isend(sent, to, tag=tag), dist.irecv(new, source, tag=tag)]
    [work.wait() for work in works]
    return new


def ring(x, mistake):
    """A ring of partial sums, then one of whole sums."""
    n, r = size(), rank()
    parts = [p.clone() for p in x.view(-1).chunk(n)]
    for step in range(n - 1):
        at = (r - step) % n
        new = swap(parts[at], (r + 1) % n, (r - 1) % n)
        at = (r - step - 1) % n
        if mistake == "a part is replaced, not added" and step == n - 2:
            parts[at] = new
        else:
            parts[at] = parts[at] + new
    for step in range(n - 1 if mistake != "a ring that ends early" else n - 2):
        at = (r + 1 - step) % n
        new = swap(parts[at], (r + 1) % n, (r - 1) % n, tag=1)
        parts[(r - step) % n] = new
    return torch.cat(parts).view(x.shape)


def doubling(x, mistake):
    """Each rank adds what another one has, at distances of 1, 2, .."""
    step = 1
    while step < size():
        new = swap(x.contiguous(), rank() ^ step, rank() ^ step)
        x = x + new if mistake != "one rank keeps its own" or rank() else x
        step *= 2
    return x


def tree(x, mistake):
    """Sums go up a tree to rank 0, and the whole comes down."""
    n, r = size(), rank()
    x = x.contiguous().clone()
    step = 1
    while step < n:
        if r % (2 * step) == step:
            dist.send(x, r - step)
        elif r % (2 * step) == 0 and r + step < n:
            new = torch.empty_like(x)
            dist.recv(new, r + step)
            x = x + new
        step *= 2
    if mistake != "nothing comes down":
        dist.broadcast(x, 0)
    return x


def hierarchy(x, mistake):
    """Reduced and scattered in a node, summed between nodes, gathered in the node."""
    n, r = size(), rank()
    per = 2
    make = lambda rows: [g for row, g in [(row, dist.new_group(row)) for row in rows] if r in row][0]
    inner = make([list(range(i, i + per)) for i in range(0, n, per)])
    outer = make([list(range(i, n, per)) for i in range(per)])
    row = x.contiguous().view(-1)
    own = torch.empty_like(row[: len(row) // per])
    dist.reduce_scatter_tensor(own, row, group=inner)
    if mistake != "nodes are not summed":
        dist.all_reduce(own, group=outer if mistake != "summed in the node, again" else inner)
    out = torch.empty_like(row)
    dist.all_gather_into_tensor(out, own, group=inner if mistake != "gathered between nodes" else outer)
    return out.view(x.shape)


def leader(x, mistake):
    """A reduction to the first rank of each group, between them, and back."""
    n, r = size(), rank()
    rows = [list(range(i, i + 2)) for i in range(0, n, 2)]
    groups = [dist.new_group(row) for row in rows]
    heads = dist.new_group([row[0] for row in rows])
    mine = groups[r // 2]
    x = x.contiguous().clone()
    dist.reduce(x, rows[r // 2][0], group=mine)
    if r % 2 == 0:
        dist.all_reduce(x, group=heads)
    if mistake == "sent by the second":
        dist.broadcast(x, rows[r // 2][1], group=mine)
    else:
        dist.broadcast(x, group=mine, group_src=0)
    return x


def by_gather(x, mistake):
    """Uneven parts are padded to the longest one, gathered, and cut."""
    lengths, row = [torch.zeros(1, dtype=torch.int64) for _ in range(size())], x.reshape(-1)
    own = row[: len(row) - rank()]
    dist.all_gather(lengths, torch.tensor([len(own)]))
    lengths = [int(n) for n in lengths]
    every = joined(F.pad(own, (0, max(lengths) - len(own)))).chunk(size())
    cut = [y[: n if mistake != "the shortest length" else min(lengths)] for y, n in zip(every, lengths)]
    total = sum(F.pad(y, (0, len(row) - len(y))) for y in cut)
    return (total + summed(F.pad(row[len(own) :], (len(own), 0)))).view(x.shape)


def reduced(model, x, how, mistake):
    """Gradients of rows are summed by one of these."""
    loss = model(shard(x)).square().mean()
    loss.backward()
    if not alone():
        for p in model.parameters():
            p.grad = how(p.grad, mistake) / size()
    return loss


class Summa(nn.Module):
    """A product on a square of ranks, as Colossal-AI's 2D layers: blocks of both are broadcast in turn."""

    def __init__(self, mlp, mistake=""):
        super().__init__()
        self.side = int(size() ** 0.5)
        self.i, self.j, self.mistake = rank() // self.side, rank() % self.side, mistake
        pick = lambda rows: [g for row, g in [(row, dist.new_group(row)) for row in rows] if rank() in row][0]
        side = self.side
        self.row = pick([[i * side + j for j in range(side)] for i in range(side)])
        self.column = pick([[i * side + j for i in range(side)] for j in range(side)])
        block = lambda w: nn.Parameter(w.T.chunk(side)[self.i].chunk(side, 1)[self.j].T.contiguous())
        self.up, self.down = block(mlp.up.weight), block(mlp.down.weight)
        self.up_bias, self.bias = part(mlp.up.bias, 0, self.j, side), part(mlp.down.bias, 0, self.j, side)

    def forward(self, x):
        x = x.chunk(self.side)[self.i].chunk(self.side, 1)[self.j]
        y = torch.tanh(
            Product.apply(x, self.up.T, self, self.mistake) + Copy.apply(self.up_bias, self.column)
        )
        return Product.apply(y, self.down.T, self, "") + (
            self.bias
            if self.mistake == "a bias whose gradient stays local"
            else Copy.apply(self.bias, self.column)
        )


class Product(torch.autograd.Function):
    """c_ij = Σ a_ik b_kj; gradients are c bᵀ and aᵀ c, reduced to their owners."""

    @staticmethod
    def forward(ctx, a, b, at, mistake):
        ctx.save_for_backward(a, b)
        ctx.at, ctx.mistake = at, mistake
        out = None
        for k in range(at.side):
            x = a.contiguous().clone()
            y = b.contiguous().clone()
            dist.broadcast(x, at.i * at.side + k, group=at.row)
            source = k if mistake != "blocks of another row" else (k + 1) % at.side
            dist.broadcast(y, source * at.side + at.j, group=at.column)
            out = x @ y if out is None else out + x @ y
        return out

    @staticmethod
    def backward(ctx, gradient):
        a, b = ctx.saved_tensors
        at = ctx.at
        of_a = of_b = None
        for k in range(at.side):
            y = b.contiguous().clone()
            dist.broadcast(y, k * at.side + at.j, group=at.column)
            mine = gradient @ y.T
            dist.reduce(mine, at.i * at.side + k, group=at.row)
            of_a = mine if at.j == k else of_a
            x = a.contiguous().clone()
            dist.broadcast(x, at.i * at.side + k, group=at.row)
            mine = x.T @ gradient
            if ctx.mistake != "a weight's gradient is not reduced":
                dist.reduce(mine, k * at.side + at.j, group=at.column)
            of_b = mine if at.i == k else of_b
        return of_a, of_b, None, None


def square(model, x, mistake=""):
    """Outputs of blocks are joined, as a program would to print them."""
    y = model(x)
    if alone():
        return y
    rows = GatherDim.apply(y, 1, model.row)
    return GatherDim.apply(rows, 0, model.column)


class GatherDim(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, dim, group):
        ctx.of = dim, group
        return joined(x, dim, group)

    @staticmethod
    def backward(ctx, gradient):
        dim, group = ctx.of
        return shard(gradient, dim, rank(group), size(group)), None, None


class Overlapped(nn.Module):
    """A gathered product whose rows go around a ring while others are multiplied."""

    def __init__(self, mlp, mistake=""):
        super().__init__()
        self.up, self.up_bias, self.mistake = part(mlp.up.weight), part(mlp.up.bias), mistake
        self.down, self.bias = part(mlp.down.weight, 1), mlp.down.bias

    def forward(self, x):
        n, r = size(), rank()
        x, rows = shard(x), [None] * n
        for step in range(n):
            at = (r - step) % n if self.mistake != "rows in the order they come" else step
            works, new = [], torch.empty_like(x)
            if step + 1 < n:
                works = [dist.isend(x, (r + 1) % n), dist.irecv(new, (r - 1) % n)]
            rows[at] = torch.tanh(F.linear(x, self.up, self.up_bias)) @ self.down.T
            [work.wait() for work in works]
            x = new if works else x
        total = None
        for step in range(n):
            at = (r + n - 1 - step) % n
            mine = rows[at].contiguous()
            total = mine if total is None else total + mine
            if step + 1 < n:
                sent = total if self.mistake != "what was received is not passed on" else mine
                total = swap(sent, (r + 1) % n, (r - 1) % n)
        return total + self.bias


def hybrid(model, x, mistake=""):
    """HSDP: gradients are scattered in a group of shards, and summed over replicas."""
    loss = model(shard(x)).square().mean()
    loss.backward()
    n = size()
    if alone():
        inner = outer = dist.group.WORLD
    else:
        pick = lambda rows: [g for row, g in [(row, dist.new_group(row)) for row in rows] if rank() in row][0]
        inner = pick([list(range(i, i + 2)) for i in range(0, n, 2)])
        outer = pick([list(range(i, n, 2)) for i in range(2)])
    with torch.no_grad():
        for p in model.parameters():
            row = p.grad.view(-1)
            own = torch.empty_like(row[: len(row) // size(inner)])
            dist.reduce_scatter_tensor(own, row, group=inner)
            if not alone() and mistake != "replicas are not summed":
                dist.all_reduce(own, group=outer)
            own /= n if mistake != "divided by the shards" else size(inner)
            at = rank(inner) if mistake != "a shard by the world's rank" else rank() // 2
            new = shard(p.view(-1), 0, at, size(inner)) - 0.1 * own
            out = torch.empty_like(row)
            dist.all_gather_into_tensor(out, new, group=inner)
            p.copy_(out.view(p.shape))
    model.zero_grad()
    return loss.detach()


def low_rank(model, x, mistake=""):
    """A gradient's projection on few directions, which are averaged, as PowerSGD and GaLore do."""
    loss = model(shard(x)).square().mean()
    loss.backward()
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() == 1:
                p.grad = summed(p.grad) / size()
                continue
            q = torch.eye(8)[:, :2] + 0.5
            a = p.grad @ q
            a = summed(a) / size() if mistake != "local directions" else a
            a = a / (a.square().sum(0, keepdim=True).sqrt() + 1e-8)
            b = p.grad.T @ a
            p.grad = a @ (summed(b) / size()).T
    return loss


def make(f=reduced, ranks=4, mistake="", split=whole, outputs="mean", **options):
    return dict(
        unsplit=Mlp, split=split, ranks=ranks, inputs=X, outputs=outputs,
        loss=lambda model, x: f(model, x, mistake="" if alone() else mistake, **options),
    )  # fmt: skip


def squared(mistake=""):
    return make(square, 4, mistake, lambda mlp: Summa(mlp, mistake), "equal")


def overlapped(ranks=2, mistake=""):
    def loss(model, x, mistake):
        with torch.no_grad():
            return model(x)

    return make(loss, ranks, mistake, lambda mlp: Overlapped(mlp, mistake), "equal")


HOWS = ring, doubling, tree, hierarchy, leader, by_gather
RIGHT = {
    f"{how.__name__}, {ranks} ranks": lazily(make, ranks=ranks, how=how) for how in HOWS for ranks in (2, 4)
} | {
    "a square": squared,
    "overlapped": overlapped,
    "overlapped, 4 ranks": lazily(overlapped, 4),
    "hybrid": lazily(make, hybrid),
    "low rank": lazily(make, low_rank, 2),
    "low rank, 4 ranks": lazily(make, low_rank),
}
WRONG = (
    {
        f"{how.__name__}: {mistake}": lazily(make, how=how, mistake=mistake)
        for how, mistake in [
            (ring, "a part is replaced, not added"),
            (ring, "a ring that ends early"),
            (doubling, "one rank keeps its own"),
            (tree, "nothing comes down"),
            (hierarchy, "nodes are not summed"),
            (hierarchy, "summed in the node, again"),
            (hierarchy, "gathered between nodes"),
            (leader, "sent by the second"),
            (by_gather, "the shortest length"),
        ]
    }
    | {
        f"{f.__name__}: {mistake}": lazily(make, f, mistake=mistake)
        for f, mistake in [
            (hybrid, "replicas are not summed"),
            (hybrid, "divided by the shards"),
            (hybrid, "a shard by the world's rank"),
            (low_rank, "local directions"),
        ]
    }
    | {
        f"a square: {mistake}": lazily(squared, mistake)
        for mistake in [
            "a bias whose gradient stays local",
            "blocks of another row",
            "a weight's gradient is not reduced",
        ]
    }
    | {
        f"overlapped: {mistake}": lazily(overlapped, 4, mistake)
        for mistake in [
            "rows in the order they come",
            "what was received is not passed on",
        ]
    }
)
