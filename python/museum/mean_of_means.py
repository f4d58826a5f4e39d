"""Each rank's mean over its own tokens is averaged, though ranks have other numbers of them.

transformers pull requests 34191 and 34373: the loss of a step was the mean of its parts' means. A part with few tokens that
count weighs as much as one with many. Right is the sum over all tokens by their number.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

inputs = torch.arange(8) % 5, torch.tensor([1, -100, -100, -100, 4, 2, 0, 3])
outputs = "sum"
said = ("the output as the sum over ranks differs",)


def unsplit():
    return nn.Sequential(nn.Embedding(5, 6), nn.Linear(6, 5))


def split(whole):
    whole.counted = False
    return whole


def mended(whole):
    whole.counted = True
    return whole


def loss(model, ids, targets):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    count = (targets != -100).sum()
    logits, targets = model(ids.chunk(ranks)[rank]), targets.chunk(ranks)[rank]
    if getattr(model, "counted", False):
        mean = F.cross_entropy(logits, targets, reduction="sum") / count
    else:
        mean = F.cross_entropy(logits, targets) / ranks
    mean.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    return mean
