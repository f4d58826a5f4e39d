"""Nothing is proven that was not compared: outputs of any structure, all their elements, buffers, parameters that a program
holds twice, what it writes into `data`, and the state of optimizers."""

from dataclasses import dataclass

import by_hand
import pytest
import torch
import torch.distributed as dist
from models import Mlp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from checks import prove

from equipart.torch import Different, Refused

X = torch.empty(4, 8)


def whole(module):
    return module


def doubled(y):
    """Wrong where there is more than one rank."""
    return y * dist.get_world_size()


@dataclass
class Output:
    loss: torch.Tensor
    note: str = ""


@pytest.mark.parametrize(
    "structure",
    [lambda y: {"a": [y]}, lambda y: Output(y), lambda y: (None, (Output(y),)), lambda y: [y.sum(), y]],
)
def test_outputs_of_any_structure_are_compared(structure):
    right = lambda model, x: structure(model(x))
    prove(Mlp, whole, inputs=X, loss=right)
    with pytest.raises(Different, match="differs from the unsplit one"):
        prove(Mlp, whole, inputs=X, loss=lambda model, x: structure(doubled(model(x))))


def test_numbers_are_compared():
    with pytest.raises(Different, match=r"rank 0 returns \[2\], the unsplit program \[1\]"):
        prove(Mlp, whole, inputs=X, loss=lambda model, x: (model(x), dist.get_world_size()))


@pytest.mark.parametrize("loss", [lambda model, x: None, lambda model, x: {"loss": None}])
def test_nothing_to_compare_is_refused(loss):
    with pytest.raises(Refused, match="there is nothing to compare"):
        prove(Mlp, whole, inputs=X, loss=loss)


def test_a_gradient_that_is_none_is_said_so():
    def frozen(module):
        module.up.requires_grad_(False)
        return module

    with pytest.raises(Different, match="the gradient of up.weight of rank 0 is None, the unsplit one is not"):
        prove(Mlp, frozen, inputs=X)
    proof = prove(lambda: frozen(Mlp()), whole, inputs=X)
    assert proof.tensors["gradients"] == 2
    assert "not compared: parameters without a gradient: up.weight, up.bias" in str(proof)


@pytest.mark.parametrize("ranks, parts", [(2, 4), (4, 8)])
def test_each_element_is_on_some_rank(ranks, parts):
    """A half of a zigzag's parts."""
    loss = lambda model, x: model(x) if dist.get_world_size() == 1 else model(x).chunk(parts)[dist.get_rank()]
    with torch.no_grad(), pytest.raises(Different, match=r"the output has elements that no rank has, the first at \[\d, 0\]"):
        prove(Mlp, whole, ranks, inputs=torch.empty(8, 8), loss=loss)


@pytest.mark.parametrize("rows, ranks", [(5, 2), (4, 2), (2, 2), (7, 3), (1, 2)])
def test_parts_of_any_length(rows, ranks):
    """Data parallelism by rows, of which ranks have uneven numbers: outputs, drawn gradients, and their sum."""

    def loss(model, x):
        y = model(x.tensor_split(dist.get_world_size())[dist.get_rank()])
        return y

    class Shared(Mlp):
        def __init__(self, whole):
            super().__init__()
            self.up, self.down = whole.up, whole.down
            [p.register_post_accumulate_grad_hook(lambda p: dist.all_reduce(p.grad)) for p in whole.parameters()]

    prove(Mlp, Shared, ranks, inputs=torch.empty(rows, 8), loss=loss)
    with pytest.raises(Different, match="the gradient of"):
        prove(Mlp, whole, ranks, inputs=torch.empty(rows, 8), loss=loss)


@pytest.mark.parametrize("dims", [("dp", "tp"), ("tp", "dp")])
def test_parts_on_a_mesh_of_two_axes(dims):
    mesh = lambda: init_device_mesh("cpu", (2, 2), mesh_dim_names=dims)

    def loss(model, x):
        if dist.get_world_size() > 1:
            of = mesh()["dp"]
            x = x.chunk(2)[of.get_local_rank()]
        return model(x)

    with torch.no_grad():
        prove(Mlp, whole, 4, inputs=X, loss=loss)


class Scaled(nn.Module):
    """Its scale is also in a list."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))
        self.scales = [self.scale]

    def forward(self, x):
        return x * self.scales[0]


def test_a_parameter_that_is_held_twice():
    class Forgets(nn.Module):
        def __init__(self, whole):
            super().__init__()
            self.scale = whole.scale

        def forward(self, x):
            return x

    prove(Scaled, whole, inputs=X)
    with pytest.raises(Different, match="the output of rank 0 differs"):
        prove(Scaled, Forgets, inputs=X)


def tripled(parameter):
    parameter.grad *= 3


def test_attributes_and_hooks_of_parameters_stay():
    class Hooked(Mlp):
        def __init__(self):
            super().__init__()
            self.up.weight.summed = True
            self.up.weight.register_post_accumulate_grad_hook(tripled)
            self.down.weight.register_hook(lambda gradient: gradient * 5)

    def unhooked(module):
        assert module.up.weight.summed
        plain = Mlp()
        for name in ("up", "down"):
            for key in ("weight", "bias"):
                setattr(getattr(plain, name), key, nn.Parameter(getattr(getattr(module, name), key).detach()))
        return plain

    prove(Hooked, whole, inputs=X)
    with pytest.raises(Different, match=r"the gradient of (up|down).weight"):
        prove(Hooked, unhooked, inputs=X)


def test_what_is_written_into_data():
    def scaled(model, x):
        y = model(x)
        y.data = doubled(y.data)
        return y

    def step(model, x):
        loss = model(x).sum()
        loss.backward()
        for p in model.parameters():
            p.data = p.data - 0.1 * p.grad * dist.get_world_size()
        return loss.detach()

    with torch.no_grad(), pytest.raises(Different, match="the output of rank 0 differs"):
        prove(Mlp, whole, inputs=X, loss=scaled)
    with pytest.raises(Different, match="after two steps of its own optimizer, up.weight of rank 0 differs"):
        prove(Mlp, whole, inputs=X, loss=step)
    proof = prove(Mlp, whole, 1, inputs=X, loss=step)
    assert proof.tensors["parameters after two steps of its own optimizer"] == 4


class Balanced(nn.Module):
    """Counts what it has seen in a buffer."""

    shares = True

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("seen", torch.zeros(8))

    def forward(self, x):
        y = self.layer(x)
        with torch.no_grad():
            seen = y.sum(0)
            if self.shares and dist.get_world_size() > 1:
                dist.all_reduce(seen)
            self.seen += seen
        return y


def test_buffers_are_compared():
    def loss(model, x):
        return model(x.chunk(dist.get_world_size())[dist.get_rank()])

    def forgets(module):
        module.shares = False
        return module

    with torch.no_grad():
        assert prove(Balanced, whole, inputs=X, loss=loss).tensors["buffer"] == 1
        with pytest.raises(Different, match="the buffer seen of rank 0 differs from the unsplit one: it is a partial sum"):
            prove(Balanced, forgets, inputs=X, loss=loss)


@pytest.mark.parametrize("loses", [False, True])
def test_the_state_of_an_optimizer(loses):
    """Momentum that only the unsplit program keeps."""

    def optimizer(parameters):
        sgd = torch.optim.SGD(parameters, lr=0.5, momentum=0.5)
        if loses and dist.get_world_size() > 1:
            sgd.register_step_pre_hook(lambda *_: sgd.state.clear())
        return sgd

    if not loses:
        prove(Mlp, by_hand.ParallelMlp, inputs=X, optimizers={"mine": optimizer})
        return
    with pytest.raises(Different, match="after two steps of mine, up of rank 0 differs"):
        prove(Mlp, by_hand.ParallelMlp, inputs=X, optimizers={"mine": optimizer})


@pytest.mark.parametrize("loses", [False, True])
def test_the_state_of_a_programs_own_optimizer(loses):
    """The loss is called twice, for an optimizer that the program keeps between its steps."""

    def train(model, x):
        if not hasattr(model, "optimizer"):
            model.optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)
        elif loses and dist.get_world_size() > 1:
            model.optimizer.state.clear()
        loss = model(x).sum()
        loss.backward()
        model.optimizer.step()
        return loss.detach()

    if not loses:
        prove(Mlp, whole, inputs=X, loss=train)
        return
    with pytest.raises(Different, match="after two steps of its own optimizer, up.weight of rank 0 differs"):
        prove(Mlp, whole, inputs=X, loss=train)
