"""Mixtures of experts: routing, expert parallelism by all-to-all, and losses that balance."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from .common import (
    AllToAll,
    Copy,
    Reduce,
    alone,
    joined,
    lazily,
    rank,
    shard,
    size,
    summed,
    synced,
)

EXPERTS, TOP, WIDTH, INNER, TOKENS = 4, 2, 8, 8, 8
X = torch.empty(TOKENS, WIDTH)


class Moe(nn.Module):
    """Experts whose weights are in one tensor, and a router."""

    def __init__(self, shared=False, score="softmax", bias=False, capacity=None, normed=True):
        super().__init__()
        self.before = nn.Linear(WIDTH, WIDTH)
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.up = nn.Parameter(torch.zeros(EXPERTS, WIDTH, INNER))
        self.down = nn.Parameter(torch.zeros(EXPERTS, INNER, WIDTH))
        self.shared = nn.Linear(WIDTH, WIDTH) if shared else None
        self.score, self.capacity, self.normed = score, capacity, normed
        if bias:
            self.register_buffer("bias", torch.zeros(EXPERTS))
            self.register_buffer("seen", torch.zeros(EXPERTS))

    def route(self, x):
        """Scores of all experts, and weights and numbers of the best."""
        logits = self.gate(x)
        scores = logits.sigmoid() if self.score == "sigmoid" else logits.softmax(-1)
        chosen = scores + self.bias if hasattr(self, "bias") else scores
        at = chosen.topk(TOP, -1).indices
        weights = scores.gather(1, at)
        if self.normed:
            weights = weights / weights.sum(-1, keepdim=True)
        return scores, weights, at

    def expert(self, i, x):
        return F.silu(x @ self.up[i]) @ self.down[i]

    def forward(self, x):
        x = self.before(x)
        scores, weights, at = self.route(x)
        out = torch.zeros_like(x)
        for i in range(EXPERTS):
            rows, which = torch.where(at == i)
            if self.capacity is not None:
                rows, which = rows[: self.capacity], which[: self.capacity]
            out = out.index_add(0, rows, self.expert(i, x[rows]) * weights[rows, which, None])
        if self.shared is not None:
            out = out + self.shared(x)
        if hasattr(self, "bias"):
            self.count(at)
        return out, balance(scores, at), zloss(self.gate(x))

    def count(self, at, mistake=""):
        """Counts tokens of experts, and moves the biases of the router."""
        with torch.no_grad():
            seen = F.one_hot(at.flatten(), EXPERTS).sum(0).float()
            if mistake != "counts are local":
                dist.all_reduce(seen)
            self.seen += seen
            sign = torch.sign(seen.mean() - seen - 0.25)
            self.bias += 0.001 * (-sign if mistake == "biases move to the other side" else sign)


def balance(scores, at, mistake="", total=TOKENS):
    """Switch's loss: the share of tokens times the mean probability, summed over experts."""
    counts = F.one_hot(at.flatten(), EXPERTS).sum(0)
    sums = scores.sum(0)
    if not alone():
        if mistake != "shares of tokens are local":
            dist.all_reduce(counts)
        else:
            counts = counts * size()
        if mistake != "a balance of local means":
            sums = Reduce.apply(sums)
        else:
            sums = sums * size()
    return EXPERTS * (counts / (total * TOP) * sums / total).sum()


def zloss(logits):
    return logits.logsumexp(-1).square().sum() / TOKENS


class Parallel(nn.Module):
    """Each rank has some of the tokens and some of the experts; tokens go to their experts and come back."""

    def __init__(self, moe, mistake=""):
        super().__init__()
        self.moe, self.mistake = moe, mistake
        self.gate, self.before, self.shared = moe.gate, moe.before, moe.shared
        self.own = EXPERTS // size()
        up, down = shard(moe.up), shard(moe.down)
        if mistake == "experts in another order":
            down = down.flip(0)
        moe.up, moe.down = nn.Parameter(up), nn.Parameter(down)
        [self.register_buffer(name, x) for name, x in moe.named_buffers(recurse=False)]

    def forward(self, x):
        moe, mistake = self.moe, self.mistake
        x = self.before(shard(x))
        scores, weights, at = moe.route(x)
        if mistake == "weights of the other choice":
            weights = weights.flip(-1)
        flat = at.flatten()
        order = flat.argsort(stable=True)
        rows = order // TOP
        counts = torch.bincount(flat, minlength=EXPERTS)
        if moe.capacity is not None:
            order, rows, counts = self.dropped(flat, order, rows, counts)
        tokens = x[rows]
        if mistake == "weighted before the experts":
            tokens = tokens * weights.flatten()[order, None]
        theirs = torch.empty_like(counts)
        dist.all_to_all_single(theirs, counts)
        sent = counts.view(size(), -1).sum(1).tolist()
        received = theirs.view(size(), -1).sum(1).tolist()
        y = AllToAll.apply(tokens, received, sent)
        of = torch.arange(self.own).repeat(size()).repeat_interleave(theirs)
        if mistake == "rows are taken by expert first":
            of = of.sort().values
        out = torch.zeros_like(y)
        for i in range(self.own):
            mine = torch.where(of == i)[0]
            out = out.index_add(0, mine, moe.expert(i, y[mine]))
        if mistake == "tokens come back in another order":
            out = out.flip(0)
        y = AllToAll.apply(out, sent, received)
        if mistake != "weighted before the experts":
            y = y * weights.flatten()[order, None]
        z = torch.zeros_like(x)
        if mistake == "added in the sorted order":
            z = z.index_add(0, torch.arange(len(rows)) // TOP, y)
        else:
            z = z.index_add(0, rows, y)
        if self.shared is not None:
            z = z + self.shared(x) * (size() if mistake == "shared experts are summed, too" else 1)
        if hasattr(moe, "bias"):
            moe.count(at, mistake)
        return z, balance(scores, at, mistake), Reduce.apply(zloss(self.gate(x)))

    def dropped(self, flat, order, rows, counts):
        """What is kept where an expert takes a number of tokens of all ranks, the first ones first."""
        every = joined(counts[None])
        before = (
            every[: rank()].sum(0) if self.mistake != "a capacity for each rank" else torch.zeros_like(counts)
        )
        starts = counts.cumsum(0) - counts
        expert = flat[order]
        place = torch.arange(len(order)) - starts[expert] + before[expert]
        kept = place < self.moe.capacity
        return order[kept], rows[kept], torch.bincount(expert[kept], minlength=EXPERTS)


class Replicated(nn.Module):
    """All ranks have all tokens, and each some of the experts; or each a part of each expert."""

    def __init__(self, moe, mistake="", cut="experts"):
        super().__init__()
        self.moe, self.mistake, self.cut = moe, mistake, cut
        if cut == "experts":
            moe.up, moe.down = nn.Parameter(shard(moe.up)), nn.Parameter(shard(moe.down))
        else:
            moe.up, moe.down = nn.Parameter(shard(moe.up, 2)), nn.Parameter(shard(moe.down, 1))

    def forward(self, x):
        moe, mistake = self.moe, self.mistake
        x = moe.before(x)
        scores, weights, at = moe.route(x)
        y = x if mistake == "tokens' gradients stay local" else Copy.apply(x)
        w = weights if mistake == "weights' gradients stay local" else Copy.apply(weights)
        out = torch.zeros_like(x)
        first = (
            0
            if self.cut != "experts" or mistake == "the first experts on each rank"
            else rank() * len(moe.up)
        )
        for i in range(len(moe.up)):
            rows, which = torch.where(at == i + first)
            out = out.index_add(0, rows, moe.expert(i, y[rows]) * w[rows, which, None])
        out = Reduce.apply(out)
        if mistake == "shared experts are summed, too":
            out = Reduce.apply(out + moe.shared(x)) / size()
        elif moe.shared is not None:
            out = out + moe.shared(x)
        counts, sums = F.one_hot(at.flatten(), EXPERTS).sum(0), scores.sum(0)
        return out, EXPERTS * (counts / (TOKENS * TOP) * sums / TOKENS).sum(), zloss(moe.gate(x))


def train(model, x, mistake=""):
    """A loss with the balance and the z-loss, whose gradients are summed where parameters are whole."""
    out, aux, z = model(x)
    loss = out.square().sum() / TOKENS
    if alone() or isinstance(model, Replicated):
        total = loss + 0.01 * aux + 0.001 * z
        total.backward()
        return [out, loss, aux, z]
    total = (
        loss + 0.01 * (aux / size() if mistake == "the balance's gradient is divided" else aux) + 0.001 * z
    )
    total.backward()
    shares = (
        (model.before, model.shared)
        if mistake == "the router's gradient stays local"
        else (model.before, model.gate, model.shared)
    )
    [synced(part) for part in shares if part is not None]
    if mistake == "experts' gradients are summed":
        [dist.all_reduce(p.grad) for p in (model.moe.up, model.moe.down)]
    return [out, summed(loss), aux, z]


def make(split=Parallel, ranks=2, mistake="", cut=None, **options):
    more = dict(cut=cut) if cut else {}
    return dict(
        unsplit=lambda: Moe(**options), split=lambda moe: split(moe, mistake, **more), ranks=ranks, inputs=X,
        loss=lazily(train, mistake=mistake),
    )  # fmt: skip


RIGHT = {
    "all-to-all": lazily(make),
    "all-to-all, 4 ranks": lazily(make, ranks=4),
    "all-to-all, shared experts": lazily(make, shared=True),
    "sigmoids, 4 ranks": lazily(make, ranks=4, score="sigmoid"),
    "biases": lazily(make, bias=True, score="sigmoid"),
    "biases, 4 ranks": lazily(make, ranks=4, bias=True, shared=True),
    "weights that do not sum to 1": lazily(make, normed=False),
    "capacity": lazily(make, capacity=3),
    "capacity, 4 ranks": lazily(make, ranks=4, capacity=2),
    "replicated tokens": lazily(make, Replicated),
    "replicated tokens, 4 ranks": lazily(make, Replicated, 4, shared=True),
    "experts in parts": lazily(make, Replicated, cut="width"),
    "experts in parts, 4 ranks": lazily(make, Replicated, 4, cut="width", shared=True),
}
WRONG = {
    mistake: lazily(make, mistake=mistake, **options)
    for mistake, options in {
        "experts in another order": {},
        "weights of the other choice": {},
        "weighted before the experts": {},
        "rows are taken by expert first": {},
        "tokens come back in another order": {},
        "added in the sorted order": {},
        "shared experts are summed, too": dict(shared=True),
        "counts are local": dict(bias=True),
        "biases move to the other side": dict(bias=True),
        "shares of tokens are local": {},
        "a balance of local means": {},
        "a capacity for each rank": dict(capacity=2),
        "the balance's gradient is divided": {},
        "the router's gradient stays local": {},
        "experts' gradients are summed": {},
    }.items()
} | {
    f"replicated: {mistake}": lazily(make, Replicated, mistake=mistake, shared=True)
    for mistake in [
        "tokens' gradients stay local",
        "weights' gradients stay local",
        "the first experts on each rank",
        "shared experts are summed, too",
    ]
}
