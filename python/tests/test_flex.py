"""`flex_attention`, whole and split over heads, against attention written by hand."""

import math

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask, flex_attention

from equipart.torch import Different, Refused, prove

BATCH, HEADS, KEY_HEADS, LENGTH, WIDTH = 2, 4, 2, 6, 4
INPUTS = [torch.empty(BATCH, heads, LENGTH, WIDTH, requires_grad=True) for heads in (HEADS, KEY_HEADS, KEY_HEADS)]
DOCUMENTS = torch.tensor([[0, 0, 0, 1, 1, 2], [0, 0, 0, 0, 0, 1]])


def in_document(b, h, q, k):
    return (q >= k) & (DOCUMENTS[b, q] == DOCUMENTS[b, k])


class Given(torch.autograd.Function):
    """Gives a tensor to all ranks, whose gradients are added."""

    forward = staticmethod(lambda ctx, x: x.view_as(x))

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient


class ByHand(nn.Module):
    """Grouped attention with a bias by distance and a slope of each head, within documents."""

    def __init__(self):
        super().__init__()
        self.bias, self.slopes = nn.Parameter(torch.empty(HEADS, LENGTH)), nn.Parameter(torch.empty(HEADS))

    def forward(self, q, k, v):
        k, v = (x.repeat_interleave(HEADS // KEY_HEADS, 1) for x in (k, v))
        scores = q @ k.transpose(-1, -2) / math.sqrt(WIDTH)
        distance = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)
        scores = scores + self.bias[:, distance.clamp(0)] - self.slopes[:, None, None] * distance
        seen = (DOCUMENTS[:, :, None] == DOCUMENTS[:, None]) & (distance >= 0)
        scores = scores.masked_fill(~seen[:, None], -math.inf)
        return scores.softmax(-1) @ v, scores.logsumexp(-1)


class Flex(ByHand):
    """The same by `flex_attention`, of all heads or of a rank's."""

    block = 2

    def __init__(self, whole=None, ranks=1, mask=in_document, score=None):
        super().__init__()
        self.ranks, self.rank, self.mask, self.score = ranks, dist.get_rank() if ranks > 1 else 0, mask, score
        if whole is not None:
            self.bias, self.slopes = (nn.Parameter(x.chunk(ranks)[self.rank]) for x in (whole.bias, whole.slopes))

    def scored(self, score, b, h, q, k):
        return score + self.bias[h, (q - k).clamp(0)] - self.slopes[h] * (q - k)

    def blocks(self):
        return create_block_mask(self.mask, BATCH, None, LENGTH, LENGTH, device="cpu", BLOCK_SIZE=self.block)

    def forward(self, q, k, v):
        q, k, v = (Given.apply(x).chunk(self.ranks, 1)[self.rank] for x in (q, k, v))
        score = self.score or self.scored
        out, aux = flex_attention(q, k, v, score, self.blocks(), enable_gqa=True, return_aux=AuxRequest(lse=True))
        return out, aux.lse


def proven(split, ranks=1):
    return prove(ByHand, split, ranks=ranks, inputs=INPUTS, keys=1, seed=1)


@pytest.mark.parametrize("ranks", (1, 2))
def test_flex_attention_is_attention_by_hand(ranks):
    assert "2 outputs" in str(proven(lambda whole: Flex(whole, ranks), ranks))


WRONG = {
    "keys after the query": dict(mask=lambda b, h, q, k: DOCUMENTS[b, q] == DOCUMENTS[b, k]),
    "the document of the first row": dict(mask=lambda b, h, q, k: (q >= k) & (DOCUMENTS[0, q] == DOCUMENTS[0, k])),
    "no score function": dict(score=lambda score, b, h, q, k: score),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_other_functions_are_different(wrong):
    with pytest.raises(Different):
        proven(lambda whole: Flex(whole, **wrong))


class Blocks(Flex):
    """Attention under a block mask with other blocks than its function has."""

    change = staticmethod(lambda mask: mask)

    def blocks(self):
        return self.change(super().blocks())


def without_full(mask):
    """Lists no blocks in which all is seen."""
    return BlockMask.from_kv_blocks(
        mask.kv_num_blocks, mask.kv_indices, mask.full_kv_num_blocks * 0, mask.full_kv_indices, BLOCK_SIZE=2,
        mask_mod=mask.mask_mod, seq_lengths=(LENGTH, LENGTH),
    )  # fmt: skip


def all_full(mask):
    """Says of blocks in which not all is seen that they are full."""
    none = torch.zeros_like(mask.kv_num_blocks)
    return BlockMask.from_kv_blocks(
        none, mask.kv_indices, mask.kv_num_blocks, mask.kv_indices, BLOCK_SIZE=2, mask_mod=mask.mask_mod,
        seq_lengths=(LENGTH, LENGTH),
    )  # fmt: skip


@pytest.mark.parametrize("change", (without_full, all_full))
def test_blocks_count(change):
    class Changed(Blocks):
        pass

    Changed.change = staticmethod(change)
    with pytest.raises(Different):
        proven(Changed)


def test_blocks_of_backward_are_those_of_forward():
    def turned(mask):
        mask.full_q_num_blocks = mask.full_q_num_blocks * 0
        return mask

    class Changed(Blocks):
        change = staticmethod(turned)

    with pytest.raises(Refused, match="other blocks by queries than by keys"):
        proven(Changed)


class OfKeys(nn.Module):
    """Attention whose first query sees nothing."""

    def __init__(self, whole=None):
        super().__init__()
        self.slope = nn.Parameter(torch.empty(())) if whole is None else whole.slope

    def forward(self, q, k, v):
        weights = (q @ k.mT / math.sqrt(WIDTH) * self.slope).softmax(-1)
        return torch.cat([torch.zeros(BATCH, HEADS, 1, LENGTH), weights[:, :, 1:]], 2) @ v


class OfFlexKeys(OfKeys):
    def forward(self, q, k, v):
        mask = create_block_mask(lambda b, h, q, k: q > 0, None, None, LENGTH, LENGTH, device="cpu")
        return flex_attention(q, k, v, lambda score, b, h, q, k: score * self.slope, mask)


def test_a_row_that_sees_nothing_is_zero():
    inputs = [torch.empty(BATCH, HEADS, LENGTH, WIDTH, requires_grad=True) for _ in range(3)]
    prove(OfKeys, OfFlexKeys, ranks=1, inputs=inputs, keys=1, seed=1)
