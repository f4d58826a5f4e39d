"""PyTorch's `context_parallel`: a ring in place of attention, with parts of the context in turn."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import _context_parallel, context_parallel
from torch.distributed.tensor.experimental._attention import context_parallel_unshard, set_rotate_method
from torch.nn.attention import SDPBackend, sdpa_kernel

from .common import alone, lazily, size, synced, whole

X = torch.empty(2, 8, 8)
ring = _context_parallel._attention


class Attention(nn.Module):
    def __init__(self, causal=True):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(8, 8, bias=False) for _ in range(4))
        self.causal = causal

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (2, 4)).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return x + self.o(y.transpose(1, 2).flatten(2))


def loss(model, x, rotate="allgather", balance=True, mistake=""):
    if alone():
        return model(x).square().mean()
    places, x = init_device_mesh("cuda", (size(),)), x.clone()
    set_rotate_method(rotate)
    ring._cp_options.enable_load_balance = balance
    with context_parallel(places, buffers=[x], buffer_seq_dims=[1]), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        if mistake:
            x = x.roll(1, 1)
        out = model(x).square().mean()
        out.backward()
    synced(model, mean=True)
    return out.detach()


def gathered(model, x):
    """The output of all parts, in the order of the context."""
    if alone():
        return model(x).detach()
    places, x = init_device_mesh("cuda", (size(),)), x.clone()
    with context_parallel(places, buffers=[x], buffer_seq_dims=[1]):
        out = model(x).detach()
    return context_parallel_unshard(places, [out], [1])[0]


def program(loss=loss, ranks=2, causal=True, split=whole, outputs="mean"):
    return dict(unsplit=lazily(Attention, causal), split=split, ranks=ranks, inputs=X, loss=loss, outputs=outputs)


def patched(owner, name, function):
    """A split that puts a function in place of one of the ring's."""

    def split(model):
        setattr(owner, name, function)
        return model

    return split


def unmerged(self, out, lse, partial):
    self._out, self._lse = (out, lse) if self._out is None else (self._out, self._lse)


def another_way(rank, world_size, i, is_causal):
    return ring._CausalBehavior.NOT_IS_CAUSAL


RIGHT = {
    "turns": lazily(program),
    "turns on 4 ranks": lazily(program, ranks=4),
    "turns by all-to-all": lazily(program, lazily(loss, rotate="alltoall"), 4),
    "parts in order": lazily(program, lazily(loss, balance=False), 4),
    "no mask": lazily(program, lazily(loss, balance=False), causal=False),
    "outputs": lazily(program, gathered, outputs="equal"),
}
WRONG = {
    "a block is not merged": lazily(program, split=patched(ring._SDPAMerger, "_merge_one", unmerged)),
    "no block is masked": lazily(program, split=patched(ring, "_is_causal_behavior", another_way)),
    "another part of the context": lazily(program, lazily(loss, mistake="rolled")),
}
