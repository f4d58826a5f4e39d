"""What everybody writes around a layer: buffers that are filled, numbers for a log, losses, masks, complex positions. Each
is proven where the layer is split rightly, and different where its result is doubled."""

import math

import by_hand
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from checks import prove
from models import Mlp
from torch import nn
from torch.utils.checkpoint import checkpoint

from equipart.torch import Different, Refused

X = torch.empty(4, 8)
LEAST = torch.finfo(torch.float32).min
PADDED = torch.ones(4, 4).tril().bool() & (torch.arange(4) > 1)  # the first two rows see nothing


def filled(y, buffer):
    buffer.copy_(y)
    return buffer * 2


def shown(y):
    total = y.sum()
    text = f"loss {total.item():.3f} {total:.2f} {y.tolist()[0][0]} {total}"
    assert "?" in text and math.isfinite(total) and torch.isfinite(y).all()
    return y * total.item()


def gathered(y, *parts):
    every = [torch.empty(4, 8) for _ in range(dist.get_world_size())]
    dist.all_gather(every, y.contiguous())
    joined = torch.empty(4 * dist.get_world_size(), 8)
    dist.all_gather_into_tensor(joined, y.contiguous())
    return every[-1] + joined[-4:] + y


def counted(y):
    count = torch.zeros(4)
    count[0] += 3
    rows = torch.tensor(float(len(y)))
    dist.all_reduce(rows)
    return y * rows / dist.get_world_size() if count[0].item() > 2 else y


def into(y):
    out = torch.empty(4, 8)
    with torch.no_grad():
        torch.mul(y, 2, out=out)
    return out + y


def averaged(y):
    average = torch.zeros(4, 8)
    average.mul_(0.9).add_(y.detach(), alpha=0.1)
    average.lerp_(y.detach(), 0.1)
    return y + average


def viewed(y):
    buffer = torch.ones(4, 16)
    buffer[:, :8] = y
    buffer[:, 8:] += y * 2
    halves = buffer.chunk(2, 1)
    return halves[0] * halves[1]


def rotated(y):
    angles = torch.outer(torch.arange(4.0), torch.tensor([1.0, 0.5, 0.25, 0.125]))
    turns = torch.polar(torch.ones_like(angles), angles)
    pairs = torch.view_as_complex(y.reshape(4, 4, 2)) * turns
    return torch.view_as_real(pairs * pairs.conj() + pairs).flatten(-2)


def attention(y, mask):
    q = y.view(1, 1, 4, 8)
    return F.scaled_dot_product_attention(q, q, q, attn_mask=mask)


def chosen(y):
    weights, at = y.topk(2, -1)
    mask = torch.zeros_like(y).scatter(1, at, 1.0)
    return y.masked_fill(~mask.bool(), 0.0) * mask.sum(-1, keepdim=True).long()


def categories(y):
    drawn = torch.distributions.Categorical(logits=y)
    return drawn.entropy() + drawn.log_prob(torch.arange(4))


COMPUTED = {
    "a buffer": lambda y: filled(y, torch.empty(4, 8)),
    "a buffer of ones": lambda y: filled(y, torch.ones(4, 8)),
    "a buffer of numbers": lambda y: filled(y, torch.tensor([[1.0] * 8] * 4)),
    "a running maximum": lambda y: (y - torch.maximum(torch.full((4, 1), -math.inf), y.amax(-1, True))).exp(),
    "numbers for a log": shown,
    "gathered into buffers": gathered,
    "counts": counted,
    "an output that is given": into,
    "an average": averaged,
    "views of a buffer": viewed,
    "complex numbers": rotated,
    "left padding": lambda y: attention(y, torch.zeros(4, 4).masked_fill(~PADDED, LEAST)),
    "left padding by bits": lambda y: attention(y, PADDED),
    "left padding, eager": lambda y: (y @ y.T + torch.zeros(4, 4).masked_fill(~PADDED, LEAST)).softmax(-1) @ y,
    "a router's mask": chosen,
    "a distribution": categories,
    "binary cross-entropy": lambda y: F.binary_cross_entropy_with_logits(y, torch.full((4, 8), 0.25)),
    "that of probabilities": lambda y: F.binary_cross_entropy(y.sigmoid(), torch.full((4, 8), 0.25)),
    "preferences": lambda y: -F.logsigmoid(0.1 * (y[:2] - y[2:])).mean(),
    "normalized rows": lambda y: F.normalize(y, dim=-1),
    "cosines": lambda y: F.cosine_similarity(y[:2], y[2:]),
    "contrasted rows": lambda y: F.cross_entropy(F.normalize(y, dim=-1) @ F.normalize(y, dim=-1).T / 0.07, torch.arange(4)),
    "a deviation": lambda y: (y - y.mean(-1, True)) / (y.std(-1, keepdim=True) + 1e-5),
    "a divergence": lambda y: F.kl_div(y.log_softmax(-1), (y * 2).softmax(-1), reduction="batchmean"),
    "one of logarithms": lambda y: F.kl_div(y.log_softmax(-1), (y * 2).log_softmax(-1), reduction="sum", log_target=True),
    "a smooth difference": lambda y: F.smooth_l1_loss(y, torch.full((4, 8), 0.5)) + F.huber_loss(y, torch.zeros(4, 8)),
    "smoothed labels": lambda y: F.cross_entropy(y, torch.tensor([0, 1, 2, -100]), label_smoothing=0.1),
    "activations": lambda y: F.mish(y) + F.elu(y) + F.hardswish(y) + F.leaky_relu(y) + F.relu6(y) + F.softplus(y),
    "products": lambda y: y.prod(-1) + y.cumprod(-1)[:, 3],
    "powers": lambda y: 2**y + y**3 + torch.exp2(y) + torch.log2(y),
    "batch statistics": lambda y: F.batch_norm(y, torch.zeros(8), torch.ones(8), training=True),
    "scattered sums": lambda y: torch.zeros(4, 8).scatter_reduce(0, torch.zeros(4, 8, dtype=torch.int64), y, "sum"),
    "scattered by a mask": lambda y: y.masked_scatter(torch.eye(4, 8).bool(), y.flatten()[:4]),
    "another precision": lambda y: torch.autocast("cpu", torch.bfloat16)(lambda y: y @ y.T)(y),
    "recomputed": lambda y: checkpoint(lambda z: F.silu(z) * z, y, use_reentrant=False),
}


def program(compute):
    """A module, and a function that splits it, perhaps with a doubled result."""

    class Computes(Mlp):
        def forward(self, x):
            return compute(super().forward(x))

    class Part(by_hand.ParallelMlp):
        def forward(self, x):
            return compute(super().forward(x) * self.factor)

    def split(factor):
        Part.factor = factor
        return Part

    return Computes, split


@pytest.mark.parametrize("name", COMPUTED)
def test_it_is_proven_or_different(name):
    unsplit, split = program(COMPUTED[name])
    prove(unsplit, split(1), inputs=X, optimizers={})
    with pytest.raises(Different):
        prove(unsplit, split(2), inputs=X, optimizers={})


def test_memory_that_nothing_was_written_into():
    unsplit, split = program(lambda y: y * torch.empty(4, 8))
    with pytest.raises(Different, match=r"the output of rank 0 differs"):
        prove(unsplit, split(1), inputs=X)


class Halves(nn.Module):
    """A copy of a layer's halves, as checkpoints are loaded."""

    def __init__(self, whole, by, again=()):
        super().__init__()
        up, down = whole.up, whole.down
        self.up, self.down = nn.Linear(8, up.out_features // 2), nn.Linear(down.in_features // 2, 8)
        rank = dist.get_rank()
        state = {
            "up.weight": up.weight.chunk(2)[rank], "up.bias": up.bias.chunk(2)[rank],
            "down.weight": down.weight.chunk(2, 1)[rank], "down.bias": down.bias,
        }  # fmt: skip
        by(self, state)
        by(self, {name: state[name] for name in again})

    def forward(self, x):
        y = F.linear(F.silu(self.up(by_hand.Copy.apply(x))), self.down.weight)
        return by_hand.Reduce.apply(y) + self.down.bias


def copied(module, state):
    with torch.no_grad():
        for name, x in state.items():
            module.get_parameter(name).copy_(x)


def placed(module, state):
    for name, x in state.items():
        module.get_parameter(name).data = x


def filled_data(module, state):
    for name, x in state.items():
        module.get_parameter(name).data.copy_(x)


@pytest.mark.parametrize("by", [lambda m, s: m.load_state_dict(s, strict=False), copied, placed, filled_data])
def test_parameters_that_are_copied(by):
    prove(Mlp, lambda whole: Halves(whole, by), inputs=X)

    def swapped(whole):
        halves = Halves(whole, by)
        bias = halves.down.bias.detach().clone()
        by(halves, {"down.bias": bias.flip(0)})
        return halves

    with pytest.raises(Different):
        prove(Mlp, swapped, inputs=X)
