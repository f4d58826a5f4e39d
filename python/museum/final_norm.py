"""The final norm's gradient is not summed over ranks under sequence parallelism.

Megatron-LM issue 1446: with tensor and sequence parallelism, `final_layernorm` has another gradient on each rank. Its
weight is whole on each rank, but each rank applies it to its own part of the sequence, so the gradient is a partial sum.
"""

import torch
import torch.distributed as dist
from collectives import GatherSequence, mine
from torch import nn

inputs = torch.empty(4, 8)
said = "the gradient of norm.weight", "it is a partial sum that nobody summed"


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.norm(x))


class Split(nn.Module):
    def __init__(self, whole, sums=False):
        super().__init__()
        self.norm, self.head = whole.norm, whole.head
        if sums:
            for parameter in self.norm.parameters():
                parameter.register_post_accumulate_grad_hook(lambda parameter: dist.all_reduce(parameter.grad))

    def forward(self, x):
        return self.head(GatherSequence.apply(self.norm(mine(x))))


unsplit, split = Model, Split


def mended(whole):
    return Split(whole, sums=True)
