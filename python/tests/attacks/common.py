"""Helpers that all families use."""

import functools

import torch
import torch.distributed as dist
from torch import nn

lazily = functools.partial


def rank(group=None):
    return dist.get_rank(group)


def size(group=None):
    return dist.get_world_size(group)


def alone():
    """True in the unsplit program."""
    return dist.get_world_size() == 1


def whole(module):
    """A split whose ranks all hold the whole module."""
    return module


def shard(x, dim=0, at=None, of=None):
    """A rank's part of a tensor."""
    return x.chunk(of or size(), dim)[rank() if at is None else at].contiguous()


def part(x, dim=0, at=None, of=None):
    """A rank's part as a parameter."""
    return nn.Parameter(shard(x, dim, at, of))


def summed(x, group=None, op=dist.ReduceOp.SUM):
    """The sum over ranks, as a new tensor."""
    x = x.detach().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(x, op=op, group=group)
    return x


def joined(x, dim=0, group=None):
    """The parts of all ranks, one after another."""
    parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(size(group))]
    dist.all_gather(parts, x.detach().contiguous(), group=group)
    return torch.cat(parts, dim)


class Copy(torch.autograd.Function):
    """Whole on each rank of a group; gradients are summed."""

    @staticmethod
    def forward(ctx, x, group=None):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return summed(gradient, ctx.group), None


class Reduce(torch.autograd.Function):
    """Summed over a group; the gradient is whole on each."""

    @staticmethod
    def forward(ctx, x, group=None):
        return summed(x, group)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class SumBoth(torch.autograd.Function):
    """Summed over a group, forward and backward, as `torch.distributed.nn` does."""

    @staticmethod
    def forward(ctx, x, group=None):
        ctx.group = group
        return summed(x, group)

    @staticmethod
    def backward(ctx, gradient):
        return summed(gradient, ctx.group), None


class AllToAll(torch.autograd.Function):
    """Blocks of rows change places between ranks, and go back in the backward pass."""

    @staticmethod
    def forward(ctx, x, received=None, sent=None, group=None):
        ctx.of = received, sent, group
        rows = sum(received) if received is not None else len(x)
        out = x.new_empty(rows, *x.shape[1:])
        dist.all_to_all_single(out, x.contiguous(), received, sent, group=group)
        return out

    @staticmethod
    def backward(ctx, gradient):
        received, sent, group = ctx.of
        return AllToAll.apply(gradient, sent, received, group), None, None, None


def synced(model, mean=False, group=None):
    """Sums or averages all gradients over ranks."""
    for p in model.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad, group=group)
            if mean:
                p.grad /= size(group)


def ids(*shape, top=12, seed=0):
    """Token ids."""
    return torch.randint(0, top, shape, generator=torch.Generator().manual_seed(seed))
