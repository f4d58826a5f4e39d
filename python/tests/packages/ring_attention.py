"""ring-attention-pytorch 0.5.20 on the host: rings of attention, causal, striped, masked, grouped and rotated.

Its backward takes the pair (received, sent) of a pass around the ring for the gradients of keys and of values, and of
more than 2 ranks it receives into the mask that it was given. `mended` takes what was received, and gives it a copy.
The unsplit program is its own regular attention.
"""

import torch
import torch.distributed as dist

from edits import edit

NEEDS = "ring_attention_pytorch"

import ring_attention_pytorch.ring_attention as layers
from ring_attention_pytorch import ring
from ring_attention_pytorch import ring_flash_attention as flash

IDS = torch.arange(16).view(1, 16) * 7 % 24
MASK = torch.arange(16).view(1, 16) % 5 > 0
TINY = dict(dim=8, dim_head=4, heads=2, bucket_size=2, ring_seq_size=4)


def mended():
    received()
    copied()


def received():
    """Takes what was received."""
    flash.ring_pass = lambda passes, x: ring.ring_pass(passes, x)[0]


def copied():
    """Gives away a copy of the mask."""
    flash.all_ring_pass = lambda x, mask, **options: ring.all_ring_pass(
        x, mask if mask is None else mask.clone(), **options
    )


def mine(x, striped):
    """A rank's part of a sequence; of stripes, in the order that all ranks have it in if there is one rank."""
    ranks, length = dist.get_world_size(), x.shape[1]
    x = x[:, torch.arange(length).view(2, -1).T.flatten()] if striped else x
    return x.chunk(ranks, 1)[dist.get_rank()]


def rings(cls, whole, striped, **options):
    """The same module as a ring, whose gradients are summed over ranks, of the same parameters."""
    mended()
    model = cls(ring_attn=True, auto_shard_seq=False, striped_ring_attn=striped, **options)
    for name, parameter in whole.named_parameters():
        owner, _, last = name.rpartition(".")
        setattr(model.get_submodule(owner), last, parameter)
    [p.register_post_accumulate_grad_hook(lambda p: dist.all_reduce(p.grad)) for p in model.parameters()]
    return model


def program(ranks, striped=False, masked=False, **options):
    """A layer of attention."""
    options = TINY | options

    def loss(model, x, mask):
        if dist.get_world_size() == 1:
            return mine(model(x, mask if masked else None), striped)
        return model(mine(x, striped), mine(mask, striped) if masked else None)

    return dict(
        unsplit=lambda: layers.RingAttention(ring_attn=False, force_regular_attn=True, **options),
        split=lambda whole: rings(layers.RingAttention, whole, striped, **options),
        ranks=ranks,
        inputs=(torch.empty(1, 4 * ranks, 8), MASK[:, : 4 * ranks]),
        loss=loss,
    )


def transformer(ranks, striped=False):
    """A transformer of one layer, and its own loss."""
    options = dict(num_tokens=24, depth=1, causal=True, num_grouped_query_heads=2, **TINY)

    def loss(model, ids):
        labels = ids.roll(-1, 1)
        if dist.get_world_size() == 1:
            return model(ids, labels=labels)
        return model(mine(ids, striped), labels=mine(labels, striped)) / ranks

    return dict(
        unsplit=lambda: layers.RingTransformer(ring_attn=False, force_regular_attn=True, **options),
        split=lambda whole: rings(layers.RingTransformer, whole, striped, **options),
        ranks=ranks,
        inputs=IDS[:, : 4 * ranks],
        loss=loss,
        outputs="sum",
    )


RIGHT = {
    "2 ranks": lambda: program(2),
    "4 ranks": lambda: program(4),
    "4 ranks, masked": lambda: program(4, masked=True),
    "2 ranks, causal": lambda: program(2, causal=True),
    "4 ranks, causal, rotated": lambda: program(4, causal=True, rotary_embed=True),
    "4 ranks, causal, grouped queries": lambda: program(4, causal=True, heads=4, num_grouped_query_heads=2),
    "2 ranks, striped": lambda: program(2, striped=True, causal=True),
    "4 ranks, striped, rotated": lambda: program(4, striped=True, causal=True, rotary_embed=True),
    "transformer, 2 ranks": lambda: transformer(2),
    "transformer, striped, 4 ranks": lambda: transformer(4, striped=True),
}


def only(mend):
    """The package with one of its two mistakes."""
    return lambda: globals().update(mended=mend)


def of(name, old, new):
    return edit(flash.RingFlashAttentionFunction, name, old, new)


WRONG = {
    "takes what was sent, too": ("4 ranks", only(copied), "the gradient of to_qkv"),
    "receives into the mask": ("4 ranks, masked", only(received), "ring_flash_attention.py"),
    "no scale in backward": ("2 ranks", of("backward", "ds = p * scale *", "ds = p *"), "ring_flash_attention.py"),
    "gradients of keys by keys": (
        "4 ranks",
        of("backward", "'b h i j, b i h d -> b j h d', ds, qc", "'b h i j, b i h d -> b j h d', ds, doc"),
        "ring_flash_attention.py",
    ),
    "forgets to rescale": (
        "4 ranks",
        of("forward", "oc.mul_(exp_row_max_diff).add_", "oc.add_"),
        "ring_flash_attention.py",
    ),
    "forgets the maximum in the sums": (
        "4 ranks, causal, rotated",
        of("forward", "log() + all_row_maxes", "log()"),
        "the gradient of to_qkv",
    ),
    "masks the diagonal": (
        "2 ranks, causal",
        of("forward", "triu(1 + qk_len_diff)", "triu(0 + qk_len_diff)"),
        "ring_flash_attention.py",
    ),
    "stripes of a later rank see themselves": (
        "4 ranks, striped, rotated",
        of("forward", "int(row_bucket_index >= col_bucket_index)", "1"),
        "ring_flash_attention.py",
    ),
    "the ring goes the other way": (
        "4 ranks, causal, rotated",
        edit(ring, "all_ring_pass", "circular_index_left(curr", "circular_index_right(curr"),
        "ring_flash_attention.py",
    ),
    "sends and receives to the right": (
        "4 ranks, masked",
        edit(
            ring,
            "ring_pass",
            "circular_rank_left(ring_size = ring_size))",
            "circular_rank_right(ring_size = ring_size))",
        ),
        "ring.py",
    ),
    "positions of the first rank": (
        "4 ranks, causal, rotated",
        edit(layers.RingRotaryEmbedding, "forward", "pos += seq * get_rank()", "pass"),
        "ring_attention.py",
    ),
    "heads of a group are beside each other": (
        "4 ranks, causal, grouped queries",
        of(
            "backward",
            "'... (g h) d -> ... h d', g = q_head_groups, reduction = 'sum')\n\n",
            "'... (h g) d -> ... h d', g = q_head_groups, reduction = 'sum')\n\n",
        ),
        "the gradient of to_qkv",
    ),
}
