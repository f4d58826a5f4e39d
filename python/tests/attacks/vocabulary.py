"""Vocabulary-parallel embeddings and cross-entropies."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from .common import Copy, Reduce, alone, ids, lazily, part, rank, size, summed

VOCABULARY, IGNORED = 12, -100


class Words(nn.Module):
    """An embedding, one layer and a head, which may be tied."""

    def __init__(self, tied=False, bias=False):
        super().__init__()
        self.embedding, self.layer = nn.Embedding(VOCABULARY, 8), nn.Linear(8, 8)
        self.head = nn.Linear(8, VOCABULARY, bias=bias)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(torch.tanh(self.layer(self.embedding(tokens))))


class CrossEntropy(torch.autograd.Function):
    """A cross-entropy of logits that are split by the vocabulary, with a backward pass by hand."""

    @staticmethod
    def forward(ctx, logits, targets, smoothing, z, mistake):
        first = rank() * logits.shape[-1]
        most = logits.amax(-1)
        if mistake != "local maxima":
            dist.all_reduce(most, op=dist.ReduceOp.MAX)
        logits = logits - most[:, None]
        outside = (targets < first) | (targets >= first + logits.shape[-1])
        at = (targets - first).masked_fill(outside, 0)
        own = logits.gather(1, at[:, None])[:, 0]
        own = own.masked_fill(outside, 0.0) if mistake != "other ranks' targets are kept" else own
        if mistake != "the target's logit is not summed":
            dist.all_reduce(own)
        e = logits.exp()
        total = e.sum(-1)
        if mistake != "the exponentials are not summed":
            dist.all_reduce(total)
        lse = total.log()
        mean = logits.sum(-1)
        if smoothing and mistake != "smoothing by local logits":
            dist.all_reduce(mean)
        classes = logits.shape[-1] * (1 if mistake == "smoothing by the local number of classes" else size())
        shifted = lse + (most if mistake != "z-loss without the maximum" else 0)
        loss = lse - (1 - smoothing) * own - smoothing * mean / classes + z * shifted**2
        ctx.save_for_backward(e / total[:, None], at, outside, shifted)
        ctx.of = smoothing, z, classes, mistake
        return loss

    @staticmethod
    def backward(ctx, gradient):
        weights, at, outside, shifted = ctx.saved_tensors
        smoothing, z, classes, mistake = ctx.of
        hit = torch.zeros_like(weights)
        ones = torch.ones_like(weights[:, :1])
        if mistake != "other ranks' targets are subtracted":
            ones = ones.masked_fill(outside[:, None], 0.0)
        hit.scatter_(1, at[:, None], ones)
        factor = 1 + 2 * z * shifted[:, None] if mistake != "z-loss without a gradient" else 1
        out = weights * factor - (1 - smoothing) * hit - smoothing / classes
        return out * gradient[:, None], None, None, None, None


class SplitWords(nn.Module):
    """A rank's part of `Words`."""

    def __init__(self, words, mistake=""):
        super().__init__()
        self.layer, self.mistake = words.layer, mistake
        self.embedding = part(words.embedding.weight)
        tied = words.head.weight is words.embedding.weight
        self.head = (
            self.embedding if tied and mistake != "tied weights come apart" else part(words.head.weight)
        )
        self.bias = None if words.head.bias is None else part(words.head.bias)

    def forward(self, tokens):
        rows = len(self.embedding)
        first = rank() * rows + (mistaken := self.mistake == "an offset of one")
        outside = (tokens < first) | (tokens >= first + rows - mistaken)
        x = F.embedding((tokens - first).masked_fill(outside, 0), self.embedding)
        if self.mistake != "other ranks' rows are kept":
            x = x.masked_fill(outside[..., None], 0.0)
        if self.mistake != "embeddings are not summed":
            x = Reduce.apply(x)
        x = torch.tanh(self.layer(x))
        if self.mistake != "the head's input gradient is not summed":
            x = Copy.apply(x)
        return F.linear(x, self.head, self.bias)


def loss_of(model, tokens, targets, smoothing=0.0, z=0.0, by="hand", mistake=""):
    logits = model(tokens).flatten(0, 1)
    targets = targets.flatten()
    kept = targets != IGNORED
    if alone():
        loss = F.cross_entropy(logits, targets, label_smoothing=smoothing, ignore_index=IGNORED)
        return loss + z * (logits.logsumexp(-1) ** 2 * kept).sum() / kept.sum()
    labels = targets.masked_fill(~kept, 0)
    if by == "hand":
        every = CrossEntropy.apply(logits, labels, smoothing, z, mistake)
    else:
        every = by_autograd(logits, labels, smoothing, z, by)
    if mistake == "ignored tokens count in the mean":
        return (every * kept).mean()
    if mistake == "ignored tokens have a loss":
        return every.sum() / kept.sum()
    return (every * kept).sum() / kept.sum()


def by_autograd(logits, targets, smoothing, z, by):
    """The same by sums over ranks, whose backward passes autograd finds."""
    first = rank() * logits.shape[-1]
    if by == "maxima":
        most = summed(logits.amax(-1, keepdim=True), op=dist.ReduceOp.MAX)
    elif by == "gathered maxima":
        most = [torch.empty_like(logits[:, :1]) for _ in range(size())]
        dist.all_gather(most, logits.detach().max(-1, keepdim=True)[0])
        most = torch.stack(most).amax(0)
    else:
        most = torch.zeros_like(logits[:, :1])
    hit = F.one_hot(targets, VOCABULARY)[:, first : first + logits.shape[-1]]
    own = Reduce.apply((logits * hit).sum(-1))
    lse = Reduce.apply((logits - most).exp().sum(-1)).log() + most[:, 0]
    return lse - (1 - smoothing) * own - smoothing * Reduce.apply(logits.mean(-1)) / size() + z * lse**2


def make(ranks=2, tied=False, bias=False, mistake="", ignores=False, **options):
    targets = ids(2, 3, seed=1)
    if ignores:
        targets[0, 1] = targets[1, 2] = IGNORED
    return dict(
        unsplit=lambda: Words(tied, bias), split=lambda words: SplitWords(words, mistake), ranks=ranks,
        inputs=(ids(2, 3), targets), loss=lazily(loss_of, mistake=mistake, **options),
    )  # fmt: skip


def named(ranks, **options):
    said = [name if value is True else f"{name} {value}" for name, value in options.items()]
    return ", ".join([f"{ranks} ranks", *said])


RIGHT = {
    named(ranks, **options): lazily(make, ranks, **options)
    for ranks, options in [
        (2, {}),
        (3, {}),
        (4, dict(tied=True)),
        (2, dict(tied=True, bias=True)),
        (2, dict(smoothing=0.1)),
        (4, dict(smoothing=0.1, z=1e-4)),
        (2, dict(z=1e-3)),
        (2, dict(ignores=True)),
        (3, dict(ignores=True, smoothing=0.1, z=1e-3, tied=True)),
        (2, dict(by="maxima")),
        (4, dict(by="maxima", z=0.01)),
        (2, dict(by="gathered maxima", smoothing=0.2, ignores=True)),
        (2, dict(by="no maxima", smoothing=0.1)),
    ]
}
WRONG = {
    mistake: lazily(make, mistake=mistake, **options)
    for mistake, options in {
        "local maxima": {},
        "other ranks' targets are kept": {},
        "the target's logit is not summed": {},
        "the exponentials are not summed": {},
        "smoothing by local logits": dict(smoothing=0.1),
        "smoothing by the local number of classes": dict(smoothing=0.1),
        "z-loss without the maximum": dict(z=0.01),
        "z-loss without a gradient": dict(z=0.01),
        "other ranks' targets are subtracted": {},
        "tied weights come apart": dict(tied=True),
        "an offset of one": {},
        "other ranks' rows are kept": {},
        "embeddings are not summed": {},
        "the head's input gradient is not summed": {},
        "ignored tokens count in the mean": dict(ignores=True),
        "ignored tokens have a loss": dict(ignores=True),
    }.items()
}
