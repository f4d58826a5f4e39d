"""Small modules, drawn: split rightly they are proven, and each of ten mistakes is located at its module."""

import os
import random

import by_hand
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from equipart.torch import Different, prove

ACTIVATIONS = [F.silu, F.relu, F.gelu, torch.tanh, torch.sigmoid, lambda x: x * x]
MISTAKES = {
    "no sum forward": "sum",
    "no sum backward": "sum",
    "summed twice": "scale",
    "mean forward": "scale",
    "mean backward": "scale",
    "bias before the sum": "sum",
    "another rank's rows": "",
    "another rank's columns": "",
    "function before the sum": "sum",
    "other scale on one rank": "",
}


class Layer(nn.Module):
    """Columns, a function, rows, and a residual; with a norm in front."""

    def __init__(self, width, inner, activation):
        super().__init__()
        self.norm, self.activation = nn.LayerNorm(width), activation
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x):
        return x + self.down(self.activation(self.up(self.norm(x))))


class Part(nn.Module):
    """A rank's part of a layer, with a mistake or none."""

    def __init__(self, whole, mistake=""):
        super().__init__()
        self.norm, self.activation, self.mistake = whole.norm, whole.activation, mistake
        self.up, self.up_bias = nn.Parameter(by_hand.mine(whole.up.weight)), nn.Parameter(by_hand.mine(whole.up.bias))
        self.down, self.down_bias = nn.Parameter(by_hand.mine(whole.down.weight, 1)), nn.Parameter(whole.down.bias)
        if mistake == "another rank's columns":
            self.up_bias = nn.Parameter(whole.up.bias.chunk(dist.get_world_size())[-1 - dist.get_rank()])
        if mistake == "another rank's rows":
            self.down = nn.Parameter(whole.down.weight.chunk(dist.get_world_size(), 1)[-1 - dist.get_rank()])

    def forward(self, x):
        ranks, mistake = dist.get_world_size(), self.mistake
        y = self.norm(x)
        y = y if mistake == "no sum backward" else by_hand.Copy.apply(y)
        y = Scaled.apply(y, ranks) if mistake == "mean backward" else y
        y = self.activation(F.linear(y, self.up, self.up_bias))
        if mistake == "other scale on one rank" and dist.get_rank() == ranks - 1:
            y = y * 3
        y = F.linear(y, self.down)
        y = y + self.down_bias if mistake == "bias before the sum" else y
        y = torch.sigmoid(y) if mistake == "function before the sum" else y
        y = y if mistake == "no sum forward" else by_hand.Reduce.apply(y)
        y = by_hand.Reduce.apply(y) if mistake == "summed twice" else y
        y = y / ranks if mistake == "mean forward" else y
        return x + (y if mistake == "bias before the sum" else y + self.down_bias)


class Scaled(torch.autograd.Function):
    """Gradients are divided."""

    @staticmethod
    def forward(ctx, x, by):
        ctx.by = by
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient / ctx.by, None


def drawn(seed):
    """A number of ranks, and a module of layers of a drawn size."""
    draw = random.Random(seed)
    ranks = draw.choice([2, 3])
    layers = [(draw.choice([2, 4, 6]), draw.choice(ACTIVATIONS)) for _ in range(draw.randint(1, 2))]
    width, rows = draw.choice([3, 4]), draw.choice([1, 2, 3])
    build = lambda: nn.Sequential(*(Layer(width, inner * ranks, f) for inner, f in layers))
    return ranks, build, torch.empty(rows, width), draw.randrange(len(layers))


def test_right_programs_give_no_alarm():
    """Some of them, or as many as `EQUIPART_PROGRAMS` says."""
    for seed in range(int(os.environ.get("EQUIPART_PROGRAMS", 40))):
        ranks, build, x, _ = drawn(seed)
        prove(build, lambda whole: nn.Sequential(*map(Part, whole)), ranks, inputs=x, seed=seed, log2_error=-16)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_located(mistake):
    for seed in range(2):
        ranks, build, x, at = drawn(seed)
        split = lambda whole: nn.Sequential(*(Part(layer, mistake if i == at else "") for i, layer in enumerate(whole)))
        with pytest.raises(Different) as error:
            prove(build, split, ranks, inputs=x, seed=seed)
        sentence = str(error.value)
        assert "test_mistakes.py:" in sentence or "by_hand.py:" in sentence, sentence
        wrong_later = mistake in ("no sum backward", "mean backward")
        assert wrong_later or f" {at}" in sentence.split("on rank")[1], sentence
        if MISTAKES[mistake] == "sum":
            assert "partial sum" in sentence or mistake == "function before the sum", sentence
        if MISTAKES[mistake] == "scale":
            assert "times" in sentence or "1/" in sentence, sentence
