"""What cannot be proven is refused by name, with the line."""

import by_hand
import pytest
import torch
import torch.distributed as dist
from models import Mlp
from torch import nn
from torch.distributed._composable import replicate

from equipart.torch import Different, Refused, prove, rule

X = torch.empty(4, 8)


def refused(compute, split=lambda whole: whole, **options):
    """What is said of a module that computes this from its layer's result."""

    class Computes(Mlp):
        def forward(self, x):
            return compute(super().forward(x))

    with pytest.raises((Refused, Different)) as error:
        prove(Computes, split, inputs=X, **options)
    return str(error.value)


@pytest.mark.parametrize(
    "compute, said",
    [
        (lambda y: y * float(y.sum()), "a value of the program becomes a number of Python"),
        (lambda y: y * int(y.sum()), "a value of the program becomes a number of Python"),
        (lambda y: y.int(), "floats become torch.int32"),
        (lambda y: y.round(), "values are rounded"),
        (lambda y: y + torch.rand_like(y), "random numbers are drawn"),
        (lambda y: y.masked_fill(torch.eye(4, 8).bool(), -torch.inf) * -1, "multiplied by what may be 0 or negative"),
        (lambda y: y - y.masked_fill(torch.eye(4, 8).bool(), -torch.inf), "minus infinity is subtracted"),
        (lambda y: y / 0, "a division by 0"),
        (lambda y: y * float("nan"), "the constant NaN has no place in the field"),
        (lambda y: torch.linalg.inv(y[:, :4]), "aten.linalg_inv_ex.default has no rule"),
        (lambda y: torch.zeros(4, 8, dtype=torch.bool).masked_fill_(y > 0, True), "elements are written into a tensor of torch.bool"),
        (lambda y: y**0.3, "the power 0.3"),
        (lambda y: torch.fft.fft(y), "has no rule"),
        (lambda y: y * torch.tensor(2**61), "an integer overflows the field"),
    ],
)
def test_it_is_named_with_its_line(compute, said):
    sentence = refused(compute)
    assert said in sentence
    assert "test_refused.py:" in sentence, sentence


def test_a_rule_is_added_in_five_lines():
    with pytest.raises(Refused, match="has no rule"):
        prove(Cube, lambda whole: whole, inputs=X)

    @rule("special_erfcx")
    def _(func, args, kwargs):
        return args[0] * args[0] * args[0]

    try:
        prove(Cube, lambda whole: whole, inputs=X)
    finally:
        from equipart.torch.field import RULES

        del RULES[torch.ops.aten.special_erfcx]


class Cube(Mlp):
    def forward(self, x):
        return torch.special.erfcx(super().forward(x))


def test_parameters_without_a_partner_are_named():
    said = refused(lambda y: y, lambda whole: Mlp())
    assert "parameters without a partner: up.weight, up.bias, down.weight, down.bias of the split on rank" in said

    class Scaled(Mlp):
        def __init__(self, whole):
            super().__init__()
            self.load_state_dict(whole.state_dict(), assign=True)
            self.up.weight = nn.Parameter(whole.up.weight.detach() * 2)

    assert "the parameter up.weight of the split on rank 0 has no partner" in refused(lambda y: y, Scaled)

    class Less(nn.Module):
        def __init__(self, whole):
            super().__init__()
            self.up = whole.up

        def forward(self, x):
            return self.up(x)[:, :8]

    assert "the unsplit module's parameter down.weight has elements that no rank" in refused(lambda y: y, Less)


def test_other_shapes_are_named():
    class Cut(by_hand.ParallelMlp):
        def forward(self, x):
            return super().forward(x)[:3, :3]

    assert "; wanted the same, or a part along one dimension" in refused(lambda y: y, Cut)


def test_a_split_that_raises_says_so():
    with pytest.raises(
        Refused, match=r"rank \d of the split program raised ZeroDivisionError: .*, at .*test_refused.py"
    ):
        prove(Mlp, lambda whole: 1 / 0, inputs=X)
    with pytest.raises(Refused, match=r"the unsplit program raised ZeroDivisionError"):
        prove(lambda: 1 / 0, lambda whole: whole, inputs=X)
    with pytest.raises(Refused, match="split returned int; wanted a torch.nn.Module"):
        prove(Mlp, lambda whole: 1, inputs=X)
    with pytest.raises(Refused, match=r"unsplit\(\) returned int"):
        prove(lambda: 1, lambda whole: whole, inputs=X)
    with pytest.raises(ValueError, match="outputs is 'max'"):
        prove(Mlp, lambda whole: whole, inputs=X, outputs="max")
    with pytest.raises(ValueError, match="ranks is 0"):
        prove(Mlp, lambda whole: whole, 0, inputs=X)


@pytest.mark.parametrize(
    "call, said",
    [
        (
            lambda y: dist.all_reduce(y) if dist.get_rank() == 0 else None,
            "wait for others in vain: rank 0 for all_reduce",
        ),
        (
            lambda y: dist.all_reduce(y) if dist.get_rank() == 0 else dist.broadcast(y, 0),
            r"rank \d calls (all_reduce|broadcast) .* where rank \d calls (all_reduce|broadcast)",
        ),
        (
            lambda y: dist.all_reduce(y[dist.get_rank() :]),
            r"calls all_reduce of float32\[\d, 8\], at .* where rank \d calls all_reduce of float32\[\d, 8\]",
        ),
        (
            lambda y: dist.recv(y, 1 - dist.get_rank()),
            r"wait for others in vain: rank 0 for a message from rank 1, at .*test_refused.py:\d+; rank 1",
        ),
    ],
)
def test_ranks_that_wait_in_vain_are_named(call, said):
    class Waits(Mlp):
        def forward(self, x):
            y = super().forward(x)
            if dist.get_world_size() > 1:
                call(y)
            return y

    with pytest.raises(Refused, match=said):
        prove(Waits, lambda whole: whole, inputs=X)


def test_an_old_pytorch_is_refused(monkeypatch):
    from equipart.torch import private

    source = open(private.__file__).read()
    monkeypatch.setattr(torch, "__version__", "2.9.1+cpu")
    with pytest.raises(ImportError, match="wants PyTorch 2.10 or newer; this is 2.9.1"):
        exec(source, {"__name__": "equipart.torch.private"})


def test_what_is_assumed_is_said():
    class Guarded(Mlp):
        def forward(self, x):
            y = super().forward(x)
            return torch.where(torch.isnan(y), 0.0, y)

    proof = prove(Guarded, lambda whole: whole, inputs=X)
    assert "  assumed: no value that the program tests for it is infinite or not a number" in str(proof)
