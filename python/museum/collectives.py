"""Collectives with the gradients that Megatron-LM gives them, for the exhibits."""

import torch
import torch.distributed as dist


def mine(x, dim=0):
    """This rank's part of a tensor."""
    return x.chunk(dist.get_world_size(), dim)[dist.get_rank()]


def summed(x):
    x = x.clone()
    dist.all_reduce(x)
    return x


class Copy(torch.autograd.Function):
    """Whole on each rank; gradients are summed."""

    forward = staticmethod(lambda ctx, x: x)
    backward = staticmethod(lambda ctx, gradient: summed(gradient))


class Reduce(torch.autograd.Function):
    """Summed over ranks; the gradient is whole on each."""

    forward = staticmethod(lambda ctx, x: summed(x))
    backward = staticmethod(lambda ctx, gradient: gradient)


class GatherSequence(torch.autograd.Function):
    """Parts become the whole, on which all ranks compute the same; gradients are cut."""

    @staticmethod
    def forward(ctx, x):
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, gradient):
        return mine(gradient)
