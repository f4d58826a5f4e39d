"""What the bound on the probability of error counts, and what the answer says that it does not: rows that no number has
met, and choices by order."""

import by_hand
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from models import Mlp
from torch import nn

from equipart.torch import Different, Refused, prove

X = torch.empty(4, 8)
ROWS = 24


def powered(times):
    def loss(module, x):
        loss = module(x).sum()
        loss.backward()
        for p in module.parameters():
            g = p.grad.clone()
            for _ in range(times if dist.get_world_size() > 1 else 0):
                g = g * g * p.grad / (p.grad * p.grad) if times == 1 else g * g * p.grad
            p.data = p.data - g
        return loss.detach()

    return loss


def test_steps_of_ones_own_are_counted():
    """g to the power of the field's size is g, so by high powers one can write a wrong step that is right in the field."""
    prove(Mlp, lambda whole: whole, inputs=X, loss=powered(1), keys=1)
    with pytest.raises(Refused, match="too deep for a bound"):
        prove(Mlp, lambda whole: whole, inputs=X, loss=powered(60), keys=1)


class Vocabulary(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(ROWS, 8)

    def forward(self, ids):
        return self.embedding(ids)


class Cut(nn.Module):
    """Rows of a vocabulary on each rank; perhaps without the first."""

    def __init__(self, whole, misses):
        super().__init__()
        self.rows, self.misses = nn.Parameter(by_hand.mine(whole.embedding.weight)), misses

    def forward(self, ids):
        first, count = dist.get_rank() * len(self.rows), len(self.rows)
        known = (ids > first if self.misses else ids >= first) & (ids < first + count)
        rows = F.embedding(torch.where(known, ids - first, 0), self.rows)
        return by_hand.Reduce.apply(rows * known[:, None])


@pytest.mark.parametrize("ranks", [2, 4])
def test_rows_that_are_not_met_are_said(ranks):
    ids = torch.tensor([1, 2, 3, 5, 7, 8, 19, 20])
    for misses in (False, True):
        said = str(prove(Vocabulary, lambda whole: Cut(whole, misses), ranks, inputs=ids, keys=1))
        ends = sorted({row % ROWS for end in range(0, ROWS, ROWS // ranks) for row in (end - 1, end)} - set(ids.tolist()))
        assert f"not met: rows {', '.join(map(str, ends))} of the {ROWS} that embedding takes from" in said
        assert f'where parts of {ROWS // ranks} begin or end; `ids="all"` draws them' in said
    assert "not met" not in str(prove(Vocabulary, lambda whole: Cut(whole, False), ranks, inputs=ids, ids="all"))
    with pytest.raises(Different, match="the output of rank 0 differs"):
        prove(Vocabulary, lambda whole: Cut(whole, True), ranks, inputs=ids, ids="all")
    with pytest.raises(ValueError, match="ids is 'some'"):
        prove(Vocabulary, lambda whole: Cut(whole, False), ranks, inputs=ids, ids="some")


def test_few_ids_meet_all_rows_under_several_keys():
    ids = torch.tensor([4, -1, 5]).clamp(min=0)
    assert "not met" in str(prove(Vocabulary, lambda whole: Cut(whole, False), inputs=ids, ids="all", keys=1))
    assert "not met" not in str(prove(Vocabulary, lambda whole: Cut(whole, False), inputs=ids, ids="all", keys=2))


class Router(Mlp):
    def forward(self, x):
        y = super().forward(x)
        weights, at = y.topk(2, -1)
        return torch.zeros_like(y).scatter(1, at, weights.softmax(-1))


def test_choices_are_said():
    proof = prove(Router, lambda whole: whole, inputs=X, log2_error=-16)
    assert proof.keys == 4
    assert "choices by order, at python/tests/test_bound.py:" in str(proof)
    assert "fell as 4 keys drew them: what is wrong for a part p of all choices passes with (1 - p)^4" in str(proof)
    assert prove(Router, lambda whole: whole, inputs=X, keys=1).keys == 1
    assert "choices" not in str(prove(Mlp, lambda whole: whole, inputs=X, keys=1))


def test_what_is_too_deep_is_compared_without_a_bound():
    proof = prove(Mlp, lambda whole: whole, inputs=X, loss=powered(60), keys=1, log2_error=None)
    assert "equal: on 2 ranks" in str(proof) and "too deep for a bound" in str(proof)
