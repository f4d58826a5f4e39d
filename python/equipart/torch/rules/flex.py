"""Attention by functions of the program on scores and masks (`flex_attention`), written out for all elements."""

import math

import torch

from ..field import Refused, run
from ..private import ScalarIndices, over_scores


def attend(self, q, k, v, score_mod, block_mask, scale, options, score_buffers=(), mask_buffers=()):
    """Attention by products and a softmax, which autograd goes through. What is seen is what a kernel goes through: all of
    a full block, and of another one what the mask lets through."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1).expand(len(q), -1, -1, -1) for x in (k, v))
    scores = q @ k.mT * scale
    rows, columns = (-(-n // size) for n, size in zip(scores.shape[2:], block_mask[-3:-1]))
    partial, full = (dense(*block_mask[at : at + 2], columns) for at in (2, 4))
    for seen, at in ((partial, 6), (full, 8)):
        turned = dense(*block_mask[at : at + 2], rows)
        if seen is not None and turned is not None and not torch.equal(seen[..., :rows, :], turned.mT[..., :rows, :]):
            raise Refused(f"a block mask has other blocks by queries than by keys{run().place()}")

    def mask(b, h, query, key, *buffers):
        in_block = lambda x: x[b % x.shape[0], h % x.shape[1], query // block_mask[-3], key // block_mask[-2]]
        seen = in_block(partial) & block_mask[-1](b, h, query, key, *buffers)
        return seen if full is None else seen | in_block(full)

    places = [torch.arange(n) for n in scores.shape]
    with ScalarIndices():
        seen = over_scores(mask, (), (None,) * len(mask_buffers))(*places, *mask_buffers)
        scores = over_scores(score_mod, (0,), (None,) * len(score_buffers))(scores, *places, *score_buffers)
    scores = torch.where(seen, scores, -math.inf)
    out = torch._safe_softmax(scores, -1) @ v
    order = sorted(range(4), key=q.stride, reverse=True)  # results lie in memory as queries do
    out = out.permute(order).contiguous().permute([order.index(dim) for dim in range(4)])
    lse = scores.new_zeros(0)
    if options["OUTPUT_LOGSUMEXP"]:
        lse = scores.masked_fill(~seen.any(-1, True), 0).logsumexp(-1) / math.log(2)
        lse = lse.masked_fill(~seen.any(-1), -math.inf)
    return out, lse, scores.new_zeros(0)


def dense(counts, indices, columns):
    """Where each row of blocks has one of those that its list begins with."""
    if counts is None or indices is None:
        return None
    listed = torch.where(torch.arange(indices.shape[-1]) < counts.unsqueeze(-1), indices.long(), columns)
    return torch.zeros(*indices.shape[:-1], columns + 1, dtype=torch.bool).scatter(-1, listed, True)[..., :columns]
