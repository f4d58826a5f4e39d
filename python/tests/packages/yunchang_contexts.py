"""yunchang 0.6.4's attention among parts of the sequence: Ulysses, rings, zigzag, stripes, and rings of Ulysses.

The kernels of flash-attn are not there, so plain PyTorch computes what they would, with the logarithms of their sums.
"""

import sys
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from edits import edit

from equipart.torch import assume

NEEDS = "yunchang"
ASSUMED = "attention of plain PyTorch stands for flash-attn's kernels"

import yunchang
from yunchang import kernels
from yunchang.comm import all_to_all
from yunchang.comm.extract_local import EXTRACT_FUNC_DICT
from yunchang.kernels import attention

hybrid, ring, zigzag, stripe, ulysses = (
    sys.modules[f"yunchang.{name}"]
    for name in (
        "hybrid.attn_layer",
        "ring.ring_flash_attn",
        "ring.zigzag_ring_flash_attn",
        "ring.stripe_flash_attn",
        "ulysses.attn_layer",
    )
)
utils = sys.modules["yunchang.ring.utils"]


def forward(q, k, v, dropout_p, softmax_scale, causal, **options):
    """What flash-attn's forward returns of queries, keys and values whose second dimension is the sequence."""
    assume(ASSUMED)
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * softmax_scale
    if causal:
        scores = scores.masked_fill(
            torch.ones(scores.shape[-2:]).tril(scores.shape[-1] - scores.shape[-2]) == 0, -torch.inf
        )
    return torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v), scores.logsumexp(-1), None, None


def backward(dout, q, k, v, out, lse, dq, dk, dv, dropout_p, softmax_scale, causal, *options, **more):
    """Writes the gradients that flash-attn's backward does, of a block whose sums are over all blocks."""
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * softmax_scale
    if causal:
        scores = scores.masked_fill(
            torch.ones(scores.shape[-2:]).tril(scores.shape[-1] - scores.shape[-2]) == 0, -torch.inf
        )
    weights = (scores - lse[..., None]).exp()
    of_scores = (
        weights
        * (torch.einsum("bihd,bjhd->bhij", dout, v) - (dout * out).sum(-1).transpose(1, 2)[..., None])
        * softmax_scale
    )
    dq.copy_(torch.einsum("bhij,bjhd->bihd", of_scores, k))
    dk.copy_(torch.einsum("bhij,bihd->bjhd", of_scores, q))
    dv.copy_(torch.einsum("bhij,bihd->bjhd", weights, dout))


def whole(q, k, v, softmax_scale=None, causal=False, **options):
    """Attention over a whole sequence."""
    assume(ASSUMED)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=softmax_scale).transpose(1, 2)


kernels.HAS_FLASH_ATTN = attention.HAS_FLASH_ATTN = True
attention.flash_attn = SimpleNamespace(__version__="2.8")
attention._flash_attn_forward, attention._flash_attn_backward, kernels.flash_attn_func = forward, backward, whole


class Layer(nn.Module):
    """A layer of attention with heads of width 4."""

    def __init__(self, causal):
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.causal, self.attend, self.mine = causal, whole, lambda x: x

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (4, 4)) for y in self.qkv(self.mine(x)).chunk(3, -1))
        return self.out(self.attend(q, k, v, causal=self.causal).flatten(2))


def summed(model):
    [p.register_post_accumulate_grad_hook(lambda p: dist.all_reduce(p.grad)) for p in model.parameters()]
    return model


def order(kind, ring, length):
    """The places in the sequence that ranks have, one rank after the other."""
    at = torch.arange(length)
    if kind == "strip":
        return at.view(-1, ring).T.flatten()
    chunks = at.chunk(2 * ring)
    return torch.cat([chunks[x] for r in range(ring) for x in (r, 2 * ring - r - 1)]) if kind == "zigzag" else at


def high(x, rank, ring, wide):
    """A rank's part where ranks of a ring are beside each other."""
    return x.chunk(ring * wide, 1)[rank % ring * wide + rank // ring]


def program(kind, ranks, ring, causal=True, low=True):
    """A layer whose attention is a ring over so many ranks, of Ulysses on the others."""
    wide = ranks // ring

    def split(model):
        rank = dist.get_rank()
        yunchang.set_seq_parallel_pg(wide, ring, rank, ranks, use_ulysses_low=low)
        if kind == "ulysses":
            model.attend = yunchang.UlyssesAttention(dist.group.WORLD, attn_type=kernels.AttnType.FA)
        else:
            model.attend = yunchang.LongContextAttention(ring_impl_type=kind, attn_type=kernels.AttnType.FA)
        part = EXTRACT_FUNC_DICT["basic" if kind == "ulysses" else kind]
        model.mine = lambda x: part(x, rank, world_size=ranks, rd=ring, ud=wide) if low else high(x, rank, ring, wide)
        return summed(model)

    def loss(model, x):
        out = model(x)
        return out if dist.get_world_size() > 1 else out[:, order(kind, ring, x.shape[1])]

    # flash-attn takes narrow numbers only; of single precision, a kernel would write into gradients that are being sent
    x = torch.empty(1, 4 * ranks, 16, dtype=torch.bfloat16)
    return dict(unsplit=lambda: Layer(causal).bfloat16(), split=split, ranks=ranks, inputs=x, loss=loss)


RIGHT = {
    "Ulysses on 2 ranks": lambda: program("ulysses", 2, 1),
    "Ulysses on 4 ranks, not causal": lambda: program("ulysses", 4, 1, causal=False),
    "ring on 2 ranks": lambda: program("basic", 2, 2),
    "ring on 4 ranks": lambda: program("basic", 4, 4),
    "ring on 4 ranks, not causal": lambda: program("basic", 4, 4, causal=False),
    "zigzag on 2 ranks": lambda: program("zigzag", 2, 2),
    "zigzag on 4 ranks": lambda: program("zigzag", 4, 4),
    "stripes on 4 ranks": lambda: program("strip", 4, 4),
    "Ulysses in a ring": lambda: program("basic", 4, 2),
    "Ulysses in a ring, ranks of a ring beside each other": lambda: program("basic", 4, 2, low=False),
    "Ulysses in a zigzag": lambda: program("zigzag", 4, 2),
    "Ulysses in stripes": lambda: program("strip", 4, 2),
}


def own_parts():
    """yunchang's own function for a rank's part takes no notice of which ranks are a ring."""
    globals()["high"] = lambda x, rank, ring, wide: EXTRACT_FUNC_DICT["basic"](x, rank, ring * wide)


LATE = edit(utils.RingComm, "wait", "for req in self._reqs:\n            req.wait()", "pass")
COMES = edit(utils.RingComm, "__init__", "self.recv_rank = (self.rank - 1)", "self.recv_rank = (self.rank + 1)")
WRONG = {
    "receives from the next rank": ("ring on 4 ranks", COMES, "utils.py"),
    "does not wait for keys": ("ring on 4 ranks, not causal", LATE, "utils.py"),
    "leaves out the last block": (
        "ring on 4 ranks",
        edit(ring, "ring_flash_attn_forward", "step <= comm.rank", "step < comm.rank or step == 0"),
        "in attend",
    ),
    "masks each block": (
        "ring on 4 ranks",
        edit(ring, "ring_flash_attn_forward", "causal and step == 0", "causal"),
        "in attend",
    ),
    "masks each block in backward": (
        "ring on 2 ranks",
        edit(ring, "ring_flash_attn_backward", "causal and step == 0", "causal"),
        "the gradient of qkv",
    ),
    "adds to its own gradient of keys": (
        "ring on 4 ranks",
        edit(ring, "ring_flash_attn_backward", "block_dk_buffer + next_dk", "block_dk_buffer + dk"),
        "the gradient of qkv",
    ),
    "returns the gradients that it has sent": (
        "ring on 4 ranks",
        edit(ring, "ring_flash_attn_backward", "next_dv.to(q.dtype)", "dv.to(q.dtype)"),
        "the gradient of qkv",
    ),
    "keeps the old sums": (
        "zigzag on 4 ranks",
        edit(utils, "update_out_and_lse", "slice_], lse[slice_] = slice_out, slice_lse", "slice_] = slice_out"),
        "in attend",
    ),
    "the first half asks": (
        "zigzag on 2 ranks",
        edit(zigzag, "zigzag_ring_flash_attn_forward", "q1 = q[:, block_seq_len:]", "q1 = q[:, :block_seq_len]"),
        "in attend",
    ),
    "gradients of the second half go to the first": (
        "zigzag on 2 ranks",
        edit(zigzag, "zigzag_ring_flash_attn_backward", "dq[:, block_seq_len:] +=", "dq[:, :block_seq_len] +="),
        "the gradient of qkv",
    ),
    "sums of the other half": (
        "zigzag on 4 ranks",
        edit(zigzag, "zigzag_ring_flash_attn_backward", "chunk(2, dim=2)[1]", "chunk(2, dim=2)[0]"),
        "the gradient of qkv",
    ),
    "stripes are not shifted": (
        "stripes on 4 ranks",
        edit(stripe, "stripe_flash_attn_forward", "q[:, 1:],", "q[:, :-1],"),
        "in attend",
    ),
    "backward goes the same way": (
        "Ulysses on 2 ranks",
        edit(
            all_to_all.SeqAllToAll4D, "backward", "ctx.gather_idx, ctx.scatter_idx", "ctx.scatter_idx, ctx.gather_idx"
        ),
        "SeqAllToAll4D",
    ),
    "rows in the wrong order": (
        "Ulysses in a ring",
        edit(
            all_to_all,
            "all_to_all_4D",
            "bs, seq_world_size, shard_seqlen, shard_hc, hs)\n            .t",
            "bs, shard_seqlen, seq_world_size, shard_hc, hs).transpose(1, 2)\n            .t",
        ),
        "another rank's part, or another order",
    ),
    "values are keys": (
        "Ulysses in a ring",
        edit(hybrid.LongContextAttention, "forward", "self.ulysses_pg, value,", "self.ulysses_pg, key,"),
        "in attend",
    ),
    "a ring of neighbours": (
        "Ulysses in a ring",
        edit(
            sys.modules["yunchang.globals"],
            "set_seq_parallel_pg",
            "i + offset, sp_degree + offset, num_ring_pgs",
            "i * sp_ring_degree + offset, (i + 1) * sp_ring_degree + offset",
        ),
        "in attend",
    ),
    "Ulysses forgets the mask": (
        "Ulysses on 2 ranks",
        edit(ulysses.UlyssesAttention, "forward", "causal=causal", "causal=False"),
        "in attend",
    ),
    "parts of a rank as if rings were far": (
        "Ulysses in a ring, ranks of a ring beside each other",
        own_parts,
        "in attend",
    ),
}
