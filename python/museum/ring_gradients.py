"""What a pass around the ring has received, and what it has sent, are taken for the gradients of keys and of values.

ring-attention-pytorch up to 0.5.20, on the host: `ring_pass` returns the pair (received, sent), and the backward of its
attention unpacks that as the stacked gradients of keys and values, so each is the sum of two others. Its forward is right.
"""

import torch
import torch.distributed as dist
from torch import nn

inputs = torch.empty(1, 8, 4)
said = ("the gradient of key",)


def passed(x):
    """Sends a tensor to the next rank. Returns what has come, and what was sent."""
    rank, ranks, came = dist.get_rank(), dist.get_world_size(), torch.empty_like(x)
    to, source = (rank + 1) % ranks, (rank - 1) % ranks
    ends = [dist.P2POp(dist.isend, x, to), dist.P2POp(dist.irecv, came, source)]
    [call.wait() for call in dist.batch_isend_irecv(ends)]
    return came, x


class Ring(torch.autograd.Function):
    """Linear attention, q·Σ kᵀv: keys and values go around, and so do their gradients."""

    unpacks = staticmethod(lambda pair: pair)

    @staticmethod
    def forward(ctx, q, k, v):
        ctx.save_for_backward(q, k, v)
        both, out = torch.stack((k, v)), torch.zeros_like(q)
        for at in range(dist.get_world_size()):
            out = out + q @ (both[0].mT @ both[1])
            both, _ = passed(both) if dist.get_world_size() > 1 else (both, both)
        return out

    @staticmethod
    def backward(ctx, gradient):
        q, k, v = ctx.saved_tensors
        every, of_q = torch.stack((k, v, torch.zeros_like(k), torch.zeros_like(v))), torch.zeros_like(q)
        for at in range(dist.get_world_size()):
            k, v, of_k, of_v = every
            of_q = of_q + gradient @ (v.mT @ k)
            of_k += v @ (gradient.mT @ q)
            of_v += k @ (q.mT @ gradient)
            last = every[2:]
            every, _ = passed(every) if dist.get_world_size() > 1 else (every, every)
        of_k, of_v = Ring.unpacks(passed(last)) if dist.get_world_size() > 1 else (of_k, of_v)
        return of_q, of_k, of_v


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(4, 4, bias=False) for _ in range(3))

    def forward(self, x):
        return Ring.apply(self.query(x), self.key(x), self.value(x))


def summed(module, unpacks):
    Ring.unpacks = unpacks
    [p.register_post_accumulate_grad_hook(lambda p: dist.all_reduce(p.grad)) for p in module.parameters()]
    return module


def split(module):
    return summed(module, lambda pair: pair)


def mended(module):
    return summed(module, lambda pair: pair[0])


def loss(model, x):
    return model(x.chunk(dist.get_world_size(), 1)[dist.get_rank()])


unsplit = Model
