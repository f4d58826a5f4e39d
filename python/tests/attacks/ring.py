"""Context parallelism: rings of attention, gathered keys, zigzags, and losses over parts of sequences."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from .attention import HEAD, WIDTH, Attention, rotated
from .common import Copy, alone, ids, joined, lazily, rank, shard, size, summed, whole

LONG = 8


def passed(*tensors, back=False, how="batched"):
    """Tensors of the rank before in the ring, or of the one after."""
    to, source = (rank() + 1) % size(), (rank() - 1) % size()
    to, source = (source, to) if back else (to, source)
    tensors = [x.contiguous() for x in tensors]
    news = [torch.empty_like(x) for x in tensors]
    if how == "batched":
        ops = [op for x, new in zip(tensors, news)
               for op in (dist.P2POp(dist.isend, x, to), dist.P2POp(dist.irecv, new, source))]  # fmt: skip
        [work.wait() for work in dist.batch_isend_irecv(ops)]
    else:
        for x, new in zip(tensors, news):
            first, second = (dist.send, to), (dist.recv, source)
            for call, other in (first, second) if rank() % 2 == 0 else (second, first):
                call(x if call is dist.send else new, other)
    return news


def block(q, k, v, bars):
    """Attention to one block, and its log-sum-exp."""
    scores = (q @ k.mT * HEAD**-0.5).masked_fill(bars, -torch.inf)
    lse = scores.logsumexp(-1, keepdim=True)
    return (scores - lse).exp() @ v, lse


def positions(at, rows, zigzag=False):
    """The positions of a rank's rows."""
    if not zigzag:
        return torch.arange(rows) + at * rows
    half = rows // 2
    return torch.cat([torch.arange(half) + i * half for i in (at, 2 * size() - 1 - at)])


class Ring(torch.autograd.Function):
    """Causal attention to keys and values that go around; in the backward pass so do their gradients."""

    @staticmethod
    def forward(ctx, q, k, v, zigzag, how, mistake):
        ctx.of = zigzag, how, mistake
        mine = positions(rank(), q.shape[-2], zigzag)
        out = lse = None
        keys, values = k, v
        for step in range(size()):
            at = (rank() - step) % size()
            bars = positions(at, q.shape[-2], zigzag) > mine[:, None]
            if mistake == "the diagonal's mask on each block":
                bars = torch.ones_like(bars).triu(1)
            if not bars.all():
                kept = ~bars.all(-1)
                o, l = block(q[..., kept, :], keys, values, bars[kept])
                if out is None:
                    out, lse = o, l
                else:
                    new, sums = merged(out[..., kept, :], lse[..., kept, :], o, l, mistake)
                    out, lse = out.clone(), lse.clone()
                    out[..., kept, :], lse[..., kept, :] = new, sums
            if step + 1 < size():
                keys, values = passed(keys, values, how=how)
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    def backward(ctx, gradient):
        q, k, v, out, lse = ctx.saved_tensors
        zigzag, how, mistake = ctx.of
        mine = positions(rank(), q.shape[-2], zigzag)
        shift = (gradient * out).sum(-1, keepdim=True)
        of_q, of_k, of_v = (torch.zeros_like(x) for x in (q, k, v))
        for step in range(size()):
            at = (rank() - step) % size()
            bars = positions(at, q.shape[-2], zigzag) > mine[:, None]
            scores = (q @ k.mT * HEAD**-0.5).masked_fill(bars, -torch.inf)
            weights = (
                (scores - lse).exp()
                if mistake != "weights of one block in the backward pass"
                else shifted_weights(scores)
            )
            of_v = of_v + weights.mT @ gradient
            of_scores = weights * (gradient @ v.mT - shift) * HEAD**-0.5
            of_q = of_q + of_scores @ k
            if mistake != "keys' gradients stay where they are computed" or step == 0:
                of_k = of_k + of_scores.mT @ q
            k, v, of_k, of_v = passed(k, v, of_k, of_v, how=how)
            if mistake == "gradients stop one rank early" and step == size() - 1:
                of_k, of_v = passed(of_k, of_v, back=True)
        return of_q, of_k, of_v, None, None, None


def shifted_weights(scores):
    return scores.exp() / (scores.exp().sum(-1, keepdim=True) + 1e-6)


def merged(out, lse, o, l, mistake=""):
    if mistake == "outputs are averaged":
        return (out + o) / 2, torch.logaddexp(lse, l)
    if mistake == "the log-sum-exp is not merged":
        return out - torch.sigmoid(l - lse) * (out - o), lse
    if mistake == "the weight of the other":
        return out - torch.sigmoid(lse - l) * (out - o), torch.logaddexp(lse, l)
    if mistake == "maxima":
        most = torch.maximum(lse, l)
        one, two = (lse - most).exp(), (l - most).exp()
        return (out * one + o * two) / (one + two), most + (one + two).log()
    sums = lse - F.logsigmoid(lse - l) if mistake == "sigmoids" else torch.logaddexp(lse, l)
    return out - torch.sigmoid(l - lse) * (out - o), sums


class GatherKeys(torch.autograd.Function):
    """Gathers keys or values; their gradients are summed and cut."""

    @staticmethod
    def forward(ctx, x, mistake):
        ctx.mistake = mistake
        return joined(x, 2)

    @staticmethod
    def backward(ctx, gradient):
        if ctx.mistake == "gathered keys' gradients are cut only":
            return shard(gradient, 2), None
        return shard(summed(gradient), 2), None


def model_of(model, x, zigzag=False, how="batched", by="ring", mistake=""):
    """The program: attention to a sequence that is split, then a sum of squares."""
    if alone():
        return model(x)
    n = size()
    if zigzag:
        parts = x.chunk(2 * n, 1)
        x = torch.cat([parts[rank()], parts[2 * n - 1 - rank()]], 1)
    else:
        x = shard(x, 1)
    weights = {name: Copy.apply(p) for name, p in model.named_parameters()}
    q, k, v = (model.heads(x @ weights[f"{y}.weight"].T) for y in "qkv")
    at = positions(rank(), x.shape[1], zigzag)
    if mistake == "positions of a plain split":
        at = positions(rank(), x.shape[1])
    if mistake == "positions of parts begin at 0":
        at = torch.arange(x.shape[1])
    q, k = turned(q, at), turned(k, at)
    if by == "ring":
        y = Ring.apply(q, k, v, zigzag, how, mistake)
    else:
        k, v = GatherKeys.apply(k, mistake), GatherKeys.apply(v, mistake)
        if mistake == "keys after the own part are seen":
            at = at + 1
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=torch.arange(k.shape[2]) <= at[:, None])
    y = y.transpose(1, 2).flatten(2) @ weights["o.weight"].T
    return y if not zigzag else Halves.apply(y)


class Halves(torch.autograd.Function):
    """Puts a zigzag's halves in their order, and gives each rank its part of a plain split."""

    @staticmethod
    def forward(ctx, x):
        n = size()
        parts = [half for y in joined(x, 1).chunk(n, 1) for half in y.chunk(2, 1)]
        order = [2 * i if i < n else 2 * (2 * n - 1 - i) + 1 for i in range(2 * n)]
        return shard(torch.cat([parts[i] for i in order], 1), 1)

    @staticmethod
    def backward(ctx, gradient):
        parts = joined(gradient, 1).chunk(2 * size(), 1)
        return torch.cat([parts[rank()], parts[2 * size() - 1 - rank()]], 1)


def turned(x, at):
    """Rotary embeddings at these positions."""
    return torch.cat([rotated(x[..., i : i + 1, :], int(p)) for i, p in enumerate(at)], -2)


def make(ranks=2, mistake="", **options):
    return dict(
        unsplit=lambda: Attention(rope=True), split=whole, ranks=ranks, inputs=torch.empty(1, LONG, WIDTH),
        loss=lazily(model_of, mistake=mistake, **options),
    )  # fmt: skip


class Language(nn.Module):
    """A model of the next token whose layers see one position each."""

    def __init__(self):
        super().__init__()
        self.embedding, self.places, self.head = nn.Embedding(12, 8), nn.Embedding(LONG, 8), nn.Linear(8, 12)

    def forward(self, tokens, at):
        return self.head(torch.tanh(self.embedding(tokens) + self.places(at)))


def language(model, tokens, mask, mistake=""):
    """A loss of the next token over parts of the sequence, with tokens that do not count."""
    n = size()
    targets = torch.cat([tokens[:, 1:], tokens[:, :1]], 1)
    mask = mask.clone()
    mask[:, -1] = 0
    at = torch.arange(LONG)
    if mistake == "labels are shifted within parts":
        targets = torch.cat([part.roll(-1, 1) for part in tokens.chunk(n, 1)], 1)
    if mistake == "the last token of each part does not count":
        mask.view(2, n, -1)[:, :, -1] = 0
    if n > 1:
        tokens, targets, mask, at = (shard(x, -1) for x in (tokens, targets, mask, at))
        at = at - at[0] if mistake == "positions of parts begin at 0" else at
    every = F.cross_entropy(model(tokens, at).flatten(0, 1), targets.flatten(), reduction="none")
    total, count = (every * mask.flatten()).sum(), mask.sum()
    if n > 1 and mistake != "each part divides by its own count":
        dist.all_reduce(count)
    loss = total / count
    if mistake == "a mean of means":
        loss = total / mask.sum() / n
    loss.backward()
    for p in model.parameters():
        dist.all_reduce(
            p.grad,
            op=dist.ReduceOp.AVG if mistake == "an average of gradients" and n > 1 else dist.ReduceOp.SUM,
        )
    return loss.detach() if mistake == "a local loss" else summed(loss)


def next_token(ranks=2, mistake=""):
    mask = torch.tensor([[1, 0, 1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 1, 0, 1]])
    return dict(
        unsplit=Language,
        split=whole,
        ranks=ranks,
        inputs=(ids(2, LONG), mask),
        loss=lazily(language, mistake=mistake),
    )


RIGHT = {
    "a ring": lazily(make),
    "a ring of 4": lazily(make, 4),
    "a ring by send and recv": lazily(make, 4, how="plain"),
    "a ring, by sigmoids": lazily(make, mistake="sigmoids"),
    "a ring, by maxima": lazily(make, 4, mistake="maxima"),
    "a zigzag": lazily(make, zigzag=True),
    "a zigzag of 4": lazily(make, 4, zigzag=True),
    "gathered keys": lazily(make, by="gather"),
    "gathered keys of 4": lazily(make, 4, by="gather"),
    "gathered keys of a ring's order": lazily(make, 2, by="gather", how="plain"),
    "the next token": lazily(next_token),
    "the next token, 4 ranks": lazily(next_token, 4),
}
WRONG = {
    mistake: lazily(make, mistake=mistake, **options)
    for mistake, options in {
        "the diagonal's mask on each block": {},
        "outputs are averaged": dict(ranks=4),
        "the log-sum-exp is not merged": dict(ranks=4),
        "the weight of the other": {},
        "weights of one block in the backward pass": {},
        "keys' gradients stay where they are computed": {},
        "gradients stop one rank early": dict(ranks=4),
        "positions of a plain split": dict(zigzag=True),
        "positions of parts begin at 0": {},
        "gathered keys' gradients are cut only": dict(by="gather"),
        "keys after the own part are seen": dict(by="gather"),
    }.items()
} | {
    f"the next token: {mistake}": lazily(next_token, mistake=mistake)
    for mistake in [
        "labels are shifted within parts",
        "the last token of each part does not count",
        "positions of parts begin at 0",
        "each part divides by its own count",
        "a mean of means",
        "an average of gradients",
        "a local loss",
    ]
}
