"""Dropout: masks are the same in every layout, others where a program draws other random numbers."""

import by_hand
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from checks import prove
from models import Mlp
from torch.utils.checkpoint import checkpoint

from equipart.torch import Different

X = torch.empty(4, 8)


def program(unsplit, split):
    """Both programs, with something after the layer."""

    class Unsplit(Mlp):
        def forward(self, x):
            return unsplit(super().forward(x))

    class Split(by_hand.ParallelMlp):
        def forward(self, x):
            return split(super().forward(x))

    return Unsplit, Split


def dropped(y):
    return F.dropout(y, 0.5)


def again(y, keeps):
    return checkpoint(lambda y: dropped(y) * y, y, use_reentrant=False, preserve_rng_state=keeps)


def ranks_own(y):
    torch.manual_seed(7 + dist.get_rank())
    return dropped(y)


@pytest.mark.parametrize(
    "unsplit, split",
    [
        (dropped, dropped),
        (lambda y: dropped(dropped(y)), lambda y: dropped(dropped(y))),
        (lambda y: dropped(y) * y, lambda y: again(y, True)),
        (lambda y: dropped(y) + dropped(y), lambda y: dropped(y) + dropped(y)),
    ],
)
def test_masks_are_the_same(unsplit, split):
    proof = prove(*program(unsplit, split), inputs=X)
    assert "assumed: dropout masks of the split program are those of the unsplit one" in str(proof)


@pytest.mark.parametrize(
    "unsplit, split, said",
    [
        (dropped, lambda y: y, "differs"),
        (lambda y: dropped(y) * y, lambda y: again(y, False), "the gradient of"),
        (lambda y: dropped(y) * 2, lambda y: dropped(y) + dropped(y), "the output"),
        (dropped, ranks_own, "ranks 0 and 1 drop the same elements with different random numbers"),
    ],
)
def test_masks_differ(unsplit, split, said):
    with pytest.raises(Different, match=said):
        prove(*program(unsplit, split), inputs=X)


@pytest.mark.parametrize("own", [False, True])
def test_parts_may_have_seeds_of_their_own(own):
    """Data parallelism: each rank drops other elements."""

    def loss(model, x):
        ranks, rank = dist.get_world_size(), dist.get_rank()
        if own:
            torch.manual_seed(rank)
        loss = dropped(model(x.chunk(ranks)[rank])).square().mean()
        loss.backward()
        [dist.all_reduce(p.grad, dist.ReduceOp.AVG) for p in model.parameters()]
        return loss.detach()

    prove(Mlp, lambda whole: whole, inputs=X, loss=loss, outputs="mean")
