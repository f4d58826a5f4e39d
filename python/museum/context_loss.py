"""The loss is scaled by the number of context ranks, and gradients are averaged without them.

Megatron-LM issue 906: each context rank multiplies its loss by their number, to make up for an average of the gradients over
data and context ranks. The average goes over data ranks only, so the gradients are as many times too large.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

inputs = torch.arange(8) % 5, (torch.arange(8) * 3) % 5
outputs = "mean"
said = ("the gradient of",)


def unsplit():
    return nn.Sequential(nn.Embedding(5, 6), nn.Linear(6, 5))


def split(whole):
    whole.scale = dist.get_world_size()
    return whole


def mended(whole):
    whole.scale = 1
    return whole


def loss(model, ids, targets):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mean = F.cross_entropy(model(ids.chunk(ranks)[rank]), targets.chunk(ranks)[rank])
    (mean * getattr(model, "scale", 1) / ranks).backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    return mean
