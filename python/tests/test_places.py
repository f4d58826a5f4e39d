"""Where an answer says that a program goes wrong."""

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from checks import prove
from models import Mlp
from torch import nn

from equipart.torch import Different, Refused

X = torch.empty(4, 8)


def whole(module):
    return module


def said(unsplit, split=whole, kind=Different, **options):
    with pytest.raises(kind) as error:
        prove(unsplit, split, **{"inputs": X, **options})
    return str(error.value)


class InPlace(Mlp):
    """Doubles its result, and goes on in place."""

    def forward(self, x):
        y = super().forward(x)
        if dist.get_world_size() > 1:
            y = y.mul(2)  # wrong
        y += x
        return y.masked_fill_(torch.eye(4, 8).bool(), 0.0)


def test_an_operator_in_place_keeps_what_it_read():
    sentence = said(InPlace)
    assert "the first tensor that differs, on rank 0: mul, at python/tests/test_places.py:32" in sentence


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 6)

    def forward(self, x):
        return self.head(F.silu(self.norm(x)))


@pytest.mark.parametrize(
    "forgets, place",
    [
        (("norm.weight", "norm.bias", "head.weight", "head.bias"), "mm in the backward of head"),
        (("norm.weight",), "native_layer_norm_backward in the backward of norm"),
    ],
)
def test_gradients_of_data_parallelism_that_are_not_averaged(forgets, place):
    targets = torch.tensor([0, 1, 2, 3])

    def loss(model, x, y):
        ranks, rank = dist.get_world_size(), dist.get_rank()
        loss = F.cross_entropy(model(x.chunk(ranks)[rank]), y.chunk(ranks)[rank])
        loss.backward()
        for name, p in model.named_parameters():
            if name not in forgets:
                dist.all_reduce(p.grad, dist.ReduceOp.AVG)
        return loss.detach()

    sentence = said(Head, loss=loss, inputs=(X, targets), outputs="mean")
    assert "the gradient of norm.weight of rank 0 differs from the unsplit one: the mean over ranks would be right" in sentence
    assert f"on rank 0: {place}" in sentence
    assert "it is a partial sum that nobody averaged: the mean over ranks would be right" in sentence


def test_a_factor_that_all_ranks_share_is_named_first():
    class Halved(Mlp):
        def forward(self, x):
            return super().forward(x.chunk(2, 0)[dist.get_rank() % 2] if dist.get_world_size() > 1 else x)

    def loss(model, x):
        y = model(x)
        return y / 2 if dist.get_world_size() > 1 else y

    sentence = said(Halved, loss=loss)
    assert "it is 1/2 of what the unsplit program computes: a mean in place of a sum" in sentence


class Shrinks(Mlp):
    def forward(self, x):
        return F.softshrink(super().forward(x))


def test_a_refusal_in_backward_has_the_line_of_the_forward():
    sentence = said(Shrinks, kind=Refused)
    assert "softshrink_backward" in sentence and "in the backward of python/tests/test_places.py:91" in sentence


def test_a_refusal_in_a_step_names_the_optimizer():
    class Rounds(torch.optim.SGD):
        def step(self):
            for group in self.param_groups:
                [p.round_() for p in group["params"]]

    sentence = said(Mlp, kind=Refused, optimizers={"Rounds": Rounds})
    assert "values are rounded" in sentence and sentence.endswith("in a step of Rounds")


@pytest.mark.parametrize(
    "one, other",
    [
        (lambda y: F.relu(2 * y), lambda y: 2 * F.relu(y)),
        (lambda y: (y[0] + y[1]).exp(), lambda y: y[0].exp() * y[1].exp()),
    ],
)
def test_identities_that_are_not_known_are_said(one, other):
    class Computes(Mlp):
        def forward(self, x):
            return (one if dist.get_world_size() == 1 else other)(super().forward(x))

    assert "not known here: that relu(c·x) is c·relu(x)" in said(Computes)


def test_what_no_operator_has_done_has_no_place():
    def frozen(module):
        module.up.requires_grad_(False)
        return module

    assert said(Mlp, frozen) == "the gradient of up.weight of rank 0 is None, the unsplit one is not"
    other = lambda parameters: torch.optim.SGD(parameters, lr=0.5 * dist.get_world_size())
    assert said(Mlp, optimizers={"mine": other}) == "after two steps of mine, up.weight of rank 0 differs from the unsplit one"
