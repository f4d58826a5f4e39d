"""Functions, maxima and comparisons: what is equal in floats by more than one way is, and what only looks alike is not."""

import math

import pytest
import torch
import torch.nn.functional as F

from equipart.torch.field import Degree, P, wrap
from equipart.torch.running import Run


@pytest.fixture(autouse=True)
def run():
    Run(11).enter()


def drawn(*shape, seed=0):
    torch.manual_seed(seed)
    return wrap(torch.randint(0, P, shape, dtype=torch.int64), Degree(1.0))


def most(x):
    return x.amax(-1, keepdim=True)


def scored(x, block):
    """A block of scores: its maximum, and sums of exponentials and of values weighted by them."""
    x, v = x[:, block], drawn(1, 6, seed=5)[:, block]
    m = most(x)
    e = (x - m).exp()
    return m, e.sum(-1, keepdim=True), (e * v).sum(-1, keepdim=True)


def online(x, rescales=(True, True)):
    m, weight, out = scored(x, slice(0, 2))
    for at in (2, 4):
        n, w, o = scored(x, slice(at, at + 2))
        k = torch.maximum(m, n)
        old, new = (m - k).exp(), (n - k).exp()
        weight = (weight * old if rescales[0] else weight) + w * new
        out = (out * old if rescales[1] else out) + o * new
        m = k
    return out / weight, m + weight.log()


def blocks(x):
    for at in (0, 2, 4):
        m, w, o = scored(x, slice(at, at + 2))
        yield o / w, m + w.log()


def by_sigmoids(x):
    """As rings of attention merge blocks."""
    (out, lse), *rest = blocks(x)
    for o, l in rest:
        out, lse = out - torch.sigmoid(l - lse) * (out - o), lse - F.logsigmoid(lse - l)
    return out, lse


def by_exponentials(x):
    (out, lse), *rest = blocks(x)
    for o, l in rest:
        new = lse + torch.log(1 + torch.exp(l - lse))
        out, lse = torch.exp(lse - new) * out + torch.exp(l - new) * o, new
    return out, lse


def by_logaddexp(x):
    (out, lse), *rest = blocks(x)
    for o, l in rest:
        new = torch.logaddexp(lse, l)
        out, lse = torch.exp(lse - new) * out + torch.exp(l - new) * o, new
    return out, lse


def whole(x):
    return (torch.softmax(x, -1) * drawn(1, 6, seed=5)).sum(-1, keepdim=True), x.logsumexp(-1, keepdim=True)


EQUAL = {
    "a softmax less its maximum": (lambda x: x.softmax(-1), lambda x: (x - most(x)).exp() / (x - most(x)).exp().sum(-1, True)),
    "its logarithm": (lambda x: x.log_softmax(-1), lambda x: x - most(x) - (x - most(x)).exp().sum(-1, True).log()),
    "the logarithm of a softmax": (lambda x: x.log_softmax(-1), lambda x: x.softmax(-1).log()),
    "its exponential": (lambda x: x.log_softmax(-1).exp(), lambda x: x.softmax(-1)),
    "flash attention's backward": (lambda x: x.softmax(-1), lambda x: (x - x.logsumexp(-1, True)).exp()),
    "that beside a maximum": (lambda x: x.softmax(-1), lambda x: (x - (most(x) + (x - most(x)).exp().sum(-1, True).log())).exp()),
    "entropy": (lambda x: -(x.softmax(-1) * x.log_softmax(-1)).sum(-1), lambda x: x.logsumexp(-1) - (x.softmax(-1) * x).sum(-1)),
    "squared log-sum-exps": (lambda x: x.logsumexp(-1) ** 2, lambda x: (most(x)[:, 0] + (x - most(x)).exp().sum(-1).log()) ** 2),
    "a sigmoid of what a mask hides": (lambda x: x.masked_fill(x.detach() == x, -torch.inf).sigmoid() + x, lambda x: x),
    "a clamp without an end": (lambda x: x.clamp(-torch.inf, torch.inf), lambda x: x),
    "sigmoids of negatives": (lambda x: 1 - x.sigmoid(), lambda x: (-x).sigmoid()),
    "a sigmoid by an exponential": (torch.sigmoid, lambda x: 1 / (1 + (-x).exp())),
    "a sigmoid by another": (torch.sigmoid, lambda x: x.exp() / (1 + x.exp())),
    "tanh is odd": (torch.tanh, lambda x: -torch.tanh(-x)),
    "softplus": (F.softplus, lambda x: x + F.softplus(-x)),
    "log-sigmoid": (F.logsigmoid, lambda x: x.sigmoid().log()),
    "log-sigmoid less x": (F.logsigmoid, lambda x: x + F.logsigmoid(-x)),
    "the logarithm of 1 - sigmoid": (lambda x: (1 - x.sigmoid()).log(), lambda x: F.logsigmoid(-x)),
    "binary cross-entropy": (
        lambda x: F.binary_cross_entropy_with_logits(x, torch.full(x.shape, 0.25)),
        lambda x: -(0.25 * x.sigmoid().log() + 0.75 * (1 - x.sigmoid()).log()).mean(),
    ),
    "logaddexp": (lambda x: torch.logaddexp(x[:, 0], x[:, 1]), lambda x: x[:, :2].logsumexp(-1)),
    "log of exp": (lambda x: x.exp().log(), lambda x: x),
    "exp of a negative": (lambda x: (-x).exp(), lambda x: 1 / x.exp()),
    "silu": (F.silu, lambda x: x * x.sigmoid()),
    "gelu by tanh": (
        lambda x: F.gelu(x, approximate="tanh"),
        lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    ),
    "gelu by erf": (F.gelu, lambda x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))),
    "relu by a comparison": (F.relu, lambda x: x * (x > 0)),
    "relu by where": (F.relu, lambda x: torch.where(x > 0, x, 0.0)),
    "relu by a clamp": (F.relu, lambda x: x.clamp(min=0)),
    "relu of relu": (F.relu, lambda x: F.relu(F.relu(x))),
    "abs": (torch.abs, lambda x: F.relu(x) + F.relu(-x)),
    "abs by sign": (torch.abs, lambda x: x * torch.sign(x)),
    "leaky relu": (lambda x: F.leaky_relu(x, 0.1), lambda x: torch.where(x > 0, x, 0.1 * x)),
    "clamps on both sides": (lambda x: x.clamp(-1, 2), lambda x: -((-(x.clamp(min=-1))).clamp(min=-2))),
    "not less": (lambda x: (x < 1) * x, lambda x: ~(x >= 1) * x),
    "roots": (lambda x: x.sqrt() ** 2, lambda x: x),
    "roots times a root": (lambda x: (x.sqrt() / 2**0.5) ** 2, lambda x: x / 2),
    "rsqrt": (torch.rsqrt, lambda x: 1 / x.sqrt()),
    "a half power": (lambda x: x**-0.5, torch.rsqrt),
    "a maximum of maxima": (lambda x: x.amax(-1), lambda x: torch.maximum(x[:, :2].amax(-1), x[:, 2:].amax(-1))),
    "a maximum of overlapping sets": (lambda x: x.amax(-1), lambda x: torch.maximum(x[:, :4].amax(-1), x[:, 2:].amax(-1))),
    "a minimum": (lambda x: x.amin(-1), lambda x: -((-x).max(-1).values)),
    "an online softmax": (lambda x: whole(x)[0], lambda x: online(x)[0]),
    "its log-sum-exp": (lambda x: whole(x)[1], lambda x: online(x)[1]),
    "blocks merged by sigmoids": (lambda x: whole(x)[0], lambda x: by_sigmoids(x)[0]),
    "blocks merged by exponentials": (lambda x: whole(x)[0], lambda x: by_exponentials(x)[0]),
    "blocks merged by logaddexp": (lambda x: whole(x)[0], lambda x: by_logaddexp(x)[0]),
    "their log-sum-exp by sigmoids": (lambda x: whole(x)[1], lambda x: by_sigmoids(x)[1]),
    "their log-sum-exp by exponentials": (lambda x: whole(x)[1], lambda x: by_exponentials(x)[1]),
    "their log-sum-exp by logaddexp": (lambda x: whole(x)[1], lambda x: by_logaddexp(x)[1]),
    "their log-sum-exp's exponential": (lambda x: whole(x)[1].exp(), lambda x: by_sigmoids(x)[1].exp()),
}

DIFFERENT = {
    "a sum not rescaled": (lambda x: whole(x)[0], lambda x: online(x, (False, True))[0]),
    "an output not rescaled": (lambda x: whole(x)[0], lambda x: online(x, (True, False))[0]),
    "neither rescaled": (lambda x: whole(x)[0], lambda x: online(x, (False, False))[0]),
    "maxima of parts": (lambda x: x.amax(-1), lambda x: x[:, :4].amax(-1)),
    "one maximum for another": (lambda x: x, lambda x: x + (x[:, :3].amax(-1, True) - x[:, 3:].amax(-1, True))),
    "a maximum that is not subtracted again": (lambda x: x.logsumexp(-1), lambda x: (x - most(x)).exp().sum(-1).log()),
    "a maximum as a value": (lambda x: x.amax(-1), lambda x: x[:, 0]),
    "exponentials of sums": (lambda x: (x + 1).exp(), lambda x: x.exp() + 1),
    "a sigmoid's sign": (torch.sigmoid, lambda x: (-x).sigmoid()),
    "tanh of 2x": (torch.tanh, lambda x: torch.tanh(2 * x)),
    "another step": (F.relu, lambda x: x * (x > 1)),
    "the other step": (F.relu, lambda x: x * (x < 0)),
    "another clamp": (lambda x: x.clamp(min=0), lambda x: x.clamp(max=0)),
    "another slope": (lambda x: F.leaky_relu(x, 0.1), lambda x: F.leaky_relu(x, 0.2)),
    "a gate before the sum": (lambda x: x.sum(-1).sigmoid(), lambda x: x.sigmoid().sum(-1)),
    "a logarithm of parts": (lambda x: x.logsumexp(-1), lambda x: x[:, :3].logsumexp(-1) + x[:, 3:].logsumexp(-1)),
}


@pytest.mark.parametrize("name", EQUAL)
def test_it_is_equal(name):
    one, other = EQUAL[name]
    for order in ((one, other), (other, one)):
        Run(11).enter()
        x = drawn(3, 6)
        a, b = (f(x).residues.reshape(-1).tolist() for f in order)
        assert a == b


@pytest.mark.parametrize("name", DIFFERENT)
def test_it_is_different(name):
    one, other = DIFFERENT[name]
    x = drawn(3, 6)
    assert all(a != b for a, b in zip(one(x).residues.reshape(-1).tolist(), other(x).residues.reshape(-1).tolist()))


def test_marks_of_masks():
    x, least = drawn(2, 3), torch.finfo(torch.float32).min
    masked = x.masked_fill(torch.tensor([[True, True, True], [False, True, False]]), -torch.inf)
    assert masked.amax(-1).residues[0] == -1 and torch.isinf(masked).tolist() == (masked.residues == -1).tolist()
    assert masked.logsumexp(-1).residues[0] == -1
    assert (masked > 0).residues[0].tolist() == [0, 0, 0]
    padded = x.masked_fill(torch.tensor([[True, True, True], [False, True, False]]), least)
    third = wrap(torch.tensor(1)) / 3
    assert padded.softmax(-1).residues[0].tolist() == [third.residues.item()] * 3
    assert padded.amax(-1).residues[0] == -2
