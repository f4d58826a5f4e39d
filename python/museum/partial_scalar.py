"""A number is added to a partial sum on every rank.

PyTorch issue 163193: a distributed tensor that is a partial sum, plus a number, added the number once for each rank.
"""

import torch
from collectives import Reduce, mine
from torch import nn

inputs = torch.empty(4, 8)
said = "the output of rank 0 differs", "a partial sum that nobody summed"


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 6, bias=False)

    def forward(self, x):
        return self.layer(x) + 10


class Split(nn.Module):
    def __init__(self, whole, late=False):
        super().__init__()
        self.weight, self.late = nn.Parameter(mine(whole.layer.weight, 1)), late

    def forward(self, x):
        partial = mine(x, 1) @ self.weight.T
        return Reduce.apply(partial) + 10 if self.late else Reduce.apply(partial + 10)


unsplit, split = Model, Split


def mended(whole):
    return Split(whole, late=True)
