"""Clipping counts the gradients of whole parameters once for each rank.

ROCm/TransformerEngine pull request 715: every weight of `Linear` is marked as split, also those that are whole on each
rank. Megatron-LM adds the squares of split gradients over ranks, so the norm is too large and clipping too hard.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from collectives import Copy, Reduce, mine
from torch import nn

inputs = torch.empty(4, 8)
said = ("after two steps of its own optimizer",)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.up(x)))


class Split(nn.Module):
    def __init__(self, whole, split=("up", "up_bias", "down")):
        super().__init__()
        self.up, self.up_bias = nn.Parameter(mine(whole.up.weight)), nn.Parameter(whole.up.bias)
        self.down, self.split = nn.Parameter(mine(whole.down.weight, 1)), split

    def forward(self, x):
        bias = mine(Copy.apply(self.up_bias))
        return Reduce.apply(F.linear(F.silu(F.linear(Copy.apply(x), self.up, bias)), self.down))


def loss(model, x):
    out = model(x).square().sum()
    out.backward()
    squares = 0
    for name, parameter in model.named_parameters():
        square = parameter.grad.square().sum()
        if name in getattr(model, "split", ()):
            dist.all_reduce(square)
        squares = squares + square
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.5 * parameter.grad * torch.rsqrt(squares)
    return out


unsplit, split = Model, Split


def mended(whole):
    return Split(whole, split=("up", "down"))
