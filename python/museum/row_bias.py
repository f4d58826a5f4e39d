"""A row-parallel layer's bias is divided by the number of ranks, and so is its gradient.

torchtitan pull request 4332: each rank adds its share of the bias before the sum over ranks. The division is a part of what
autograd differentiates, so each rank's gradient of the bias, which is whole on each, is 1/ranks of what it should be.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from collectives import Reduce, mine
from torch import nn

inputs = torch.empty(4, 8)
said = "the gradient of bias", "a mean in place of a sum"


class Row(nn.Module):
    def __init__(self, whole, share):
        super().__init__()
        self.weight, self.bias = nn.Parameter(mine(whole.weight, 1)), nn.Parameter(whole.bias)
        self.share = share

    def forward(self, x):
        bias = self.share(self.bias, dist.get_world_size())
        return Reduce.apply(F.linear(mine(x, 1), self.weight, bias))


def unsplit():
    return nn.Linear(8, 6)


def split(whole):
    return Row(whole, lambda bias, ranks: bias / ranks)


def mended(whole):
    return Row(whole, lambda bias, ranks: bias + (bias / ranks - bias).detach())
