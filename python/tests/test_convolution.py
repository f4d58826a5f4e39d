"""Convolutions: what they compute of whole numbers is what floats do, and a vision transformer is proven."""

import by_hand
import pytest
import torch
import torch.nn.functional as F
from checks import prove
from torch import nn

from equipart.torch import Different
from equipart.torch.field import P, Degree, wrap
from equipart.torch.running import Run

OPTIONS = [
    (1, dict()),
    (1, dict(stride=2, padding=1)),
    (2, dict(stride=2)),
    (2, dict(padding=(1, 0), dilation=(1, 2))),
    (2, dict(groups=2, padding=1, stride=(2, 1))),
    (3, dict(padding=1)),
]


def small(*shape):
    return torch.randint(-5, 6, shape).double().requires_grad_()


@pytest.mark.parametrize("dims, options", OPTIONS)
def test_it_is_that_of_floats(dims, options):
    Run(3).enter()
    torch.manual_seed(1)
    sizes = [6, 5, 4][:dims]
    floats = small(2, 4, *sizes), small(6, 4 // options.get("groups", 1), *[2] * dims), small(6)
    convolve = getattr(F, f"conv{dims}d")
    words = [wrap(x.detach().long() % P, Degree(1.0), torch.float64).requires_grad_() for x in floats]
    one, other = convolve(*floats, **options), convolve(*words, **options)
    assert torch.equal(one.long() % P, other.residues)
    gradient = torch.randint(-5, 6, one.shape)
    one.backward(gradient.double())
    other.backward(wrap(gradient % P, Degree(1.0), torch.float64))
    for x, y in zip(floats, words):
        assert torch.equal(x.grad.long() % P, y.grad.residues)


class Patches(nn.Module):
    """The first layers of a vision transformer."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 4, stride=4)
        self.place, self.norm = nn.Parameter(torch.zeros(5, 8)), nn.LayerNorm(8)
        self.first = nn.Parameter(torch.zeros(1, 1, 8))
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def mlp(self, x):
        return self.down(F.gelu(self.up(x)))

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(len(x), -1, -1), x], 1) + self.place
        return (x + self.mlp(self.norm(x)))[:, 0]


@pytest.mark.parametrize("summed", [True, False])
def test_a_vision_transformer(summed):
    class Part(Patches):
        def __init__(self, whole):
            super().__init__()
            self.patches, self.place, self.norm, self.first = whole.patches, whole.place, whole.norm, whole.first
            self.up_part, self.up_bias = (nn.Parameter(by_hand.mine(x)) for x in (whole.up.weight, whole.up.bias))
            self.down_part, self.bias = nn.Parameter(by_hand.mine(whole.down.weight, 1)), nn.Parameter(whole.down.bias)
            del self.up, self.down

        def mlp(self, x):
            x = by_hand.Copy.apply(x) if summed else x
            return by_hand.Reduce.apply(F.linear(F.gelu(F.linear(x, self.up_part, self.up_bias)), self.down_part)) + self.bias

    images = torch.empty(2, 3, 8, 8)
    if summed:
        prove(Patches, Part, inputs=images)
        return
    with pytest.raises(Different, match="the gradient of .* of rank 0 differs"):
        prove(Patches, Part, inputs=images)
