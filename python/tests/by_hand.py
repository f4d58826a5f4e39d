"""Megatron-LM's layers, written by hand."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


def mine(x, dim=0):
    """This rank's part of a tensor."""
    return x.chunk(dist.get_world_size(), dim)[dist.get_rank()].contiguous()


class Copy(torch.autograd.Function):
    """Whole on each rank; gradients are summed."""

    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient


class Reduce(torch.autograd.Function):
    """Summed over ranks; the gradient is whole on each."""

    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def gathered(x, dim):
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.contiguous())
    return torch.cat(parts, dim)


def scattered(x, dim):
    out = mine(torch.empty_like(x), dim)
    dist.reduce_scatter(out, [part.contiguous() for part in x.chunk(dist.get_world_size(), dim)])
    return out


class Gather(torch.autograd.Function):
    """Parts along a dimension become the whole; gradients are cut."""

    @staticmethod
    def forward(ctx, x, dim):
        ctx.dim = dim
        return gathered(x, dim)

    @staticmethod
    def backward(ctx, gradient):
        return mine(gradient, ctx.dim), None


class Scatter(torch.autograd.Function):
    """The whole becomes this rank's part; gradients are gathered."""

    @staticmethod
    def forward(ctx, x, dim):
        ctx.dim = dim
        return mine(x, dim)

    @staticmethod
    def backward(ctx, gradient):
        return gathered(gradient, ctx.dim), None


class GatherSequence(torch.autograd.Function):
    """Parts of the sequence become the whole; gradients are summed and cut."""

    @staticmethod
    def forward(ctx, x):
        return gathered(x, 0)

    @staticmethod
    def backward(ctx, gradient):
        return scattered(gradient, 0)


class ScatterSequence(torch.autograd.Function):
    """Partial sums become parts of the sequence; gradients are gathered."""

    @staticmethod
    def forward(ctx, x):
        return scattered(x, 0)

    @staticmethod
    def backward(ctx, gradient):
        return gathered(gradient, 0)


class ParallelMlp(nn.Module):
    """A column-parallel and a row-parallel layer; `sequence` keeps parts of the sequence outside of them."""

    def __init__(self, whole, sequence=False):
        super().__init__()
        self.sequence = sequence
        self.up, self.up_bias = nn.Parameter(mine(whole.up.weight)), nn.Parameter(mine(whole.up.bias))
        self.down, self.down_bias = nn.Parameter(mine(whole.down.weight, 1)), nn.Parameter(whole.down.bias)

    def forward(self, x):
        x = GatherSequence.apply(Scatter.apply(x, 0)) if self.sequence else Copy.apply(x)
        y = F.linear(F.silu(F.linear(x, self.up, self.up_bias)), self.down)
        if not self.sequence:
            return Reduce.apply(y) + self.down_bias
        y = ScatterSequence.apply(y) + Copy.apply(self.down_bias)
        return Gather.apply(y, 0)


class ParallelVocabulary(nn.Module):
    """An embedding and a head split by the vocabulary, and Megatron's cross-entropy between ranks."""

    shares_maxima = True

    def __init__(self, whole):
        super().__init__()
        self.embedding = nn.Parameter(mine(whole.embedding.weight))
        self.head = nn.Parameter(mine(whole.head.weight))
        self.first = dist.get_rank() * len(self.embedding)

    def forward(self, ids, targets):
        x = Reduce.apply(self.rows(self.embedding, ids))
        logits = F.linear(Copy.apply(x), self.head)
        with torch.no_grad():
            most = logits.detach().max(-1).values
            if self.shares_maxima:
                dist.all_reduce(most, op=dist.ReduceOp.MAX)
        logits = logits - most[:, None]
        total = Reduce.apply(logits.exp().sum(-1))
        return (total.log() - Reduce.apply(self.rows(logits, targets, along=1))).mean()

    def rows(self, table, ids, along=0):
        """The rows, or the elements of rows, that this rank has; 0 for others."""
        outside = (ids < self.first) | (ids >= self.first + len(self.embedding))
        ids = (ids - self.first).masked_fill(outside, 0)
        if along:
            return table.gather(1, ids[:, None])[:, 0].masked_fill(outside, 0.0)
        return F.embedding(ids, table).masked_fill(outside[:, None], 0.0)


class Vocabulary(nn.Module):
    """What `ParallelVocabulary` splits."""

    def __init__(self, vocabulary=12, width=8):
        super().__init__()
        self.embedding, self.head = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids, targets):
        return F.cross_entropy(self.head(self.embedding(ids)), targets)
