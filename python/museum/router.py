"""A router's gradient stays a partial sum where each rank has some of the experts.

torchtitan issue 2387 and pull request 2416: the gate is whole on each rank, and each rank weighs the outputs of its own
experts only. So each rank's gradient of the gate lacks the other ranks' experts, and the gate drifts apart.
"""

import torch
import torch.distributed as dist
from collectives import Copy, Reduce
from torch import nn

inputs = torch.empty(4, 8)
said = "the gradient of gate.weight", "a partial sum that nobody summed"


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(8, 4, bias=False)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        weights = torch.softmax(self.gate(x), -1)
        return sum(weights[:, i : i + 1] * expert(x) for i, expert in enumerate(self.experts))


class Split(nn.Module):
    def __init__(self, whole, sums=False):
        super().__init__()
        mine = range(4)[dist.get_rank() :: dist.get_world_size()]
        self.gate, self.sums = whole.gate, sums
        self.experts = nn.ModuleDict({str(i): whole.experts[i] for i in mine})

    def forward(self, x):
        weights = torch.softmax(self.gate(x), -1)
        weights = Copy.apply(weights) if self.sums else weights
        return Reduce.apply(sum(weights[:, int(i) : int(i) + 1] * expert(x) for i, expert in self.experts.items()))


unsplit, split = Experts, Split


def mended(whole):
    return Split(whole, sums=True)
