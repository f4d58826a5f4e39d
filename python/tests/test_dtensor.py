"""Plans of `torch.distributed.tensor`: each is proven."""

import pytest
import torch
import torch.distributed as dist
from models import IDS, TARGETS, Llama, Mlp, cross_entropy, sequence_parallel, tensor_parallel
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, loss_parallel, parallelize_module

from checks import prove

from equipart.torch import Different


@pytest.mark.parametrize("plan", [tensor_parallel, sequence_parallel])
def test_a_plan(plan):
    proof = prove(Llama, plan, inputs=(IDS, TARGETS), loss=cross_entropy)
    assert proof.tensors["gradients"] == len(list(Llama().parameters()))


def test_a_parallel_loss():
    def loss(model, ids, targets):
        if dist.get_world_size() == 1:
            return cross_entropy(model, ids, targets)
        with loss_parallel():
            out = cross_entropy(model, ids, targets)
            out.backward()
            return out

    split = lambda model: sequence_parallel(model, loss_parallel=True)
    prove(Llama, split, inputs=(IDS, TARGETS), loss=loss)


def test_two_dimensions_by_hand():
    """Data along one dimension of the mesh, columns and rows along the other."""

    def split(model):
        model.mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        put = lambda x, place: nn.Parameter(distribute_tensor(x, model.mesh, [Replicate(), place]))
        model.up.weight, model.up.bias = put(model.up.weight, Shard(0)), put(model.up.bias, Shard(0))
        model.down.weight, model.down.bias = put(model.down.weight, Shard(1)), put(model.down.bias, Replicate())
        return model

    def called(model, x):
        if not hasattr(model, "mesh"):
            return model(x)
        return model(distribute_tensor(x, model.mesh, [Shard(0), Replicate()]))

    prove(Mlp, split, 4, inputs=torch.empty(4, 8), loss=called)


def test_a_plan_on_a_part_of_a_mesh():
    def split(model):
        model.mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        return tensor_parallel(model, model.mesh["tp"])

    def loss(model, ids, targets):
        if dist.get_world_size() == 1:
            return cross_entropy(model, ids, targets)
        at, group = model.mesh["dp"].get_local_rank(), model.mesh["dp"].get_group()
        out = cross_entropy(model, ids.chunk(2)[at], targets.chunk(2)[at])
        out.backward()
        for parameter in model.parameters():
            gradient = parameter.grad.to_local() if isinstance(parameter.grad, DTensor) else parameter.grad
            dist.all_reduce(gradient, group=group)
            gradient /= 2
        return out

    prove(Llama, split, 4, inputs=(IDS, TARGETS), loss=loss, outputs="mean")


@pytest.mark.parametrize("foreach", [None, True, False])
def test_gradients_are_clipped(foreach):
    """Norms of parts are roots of partial sums, whose squares are summed."""

    def split(module):
        mesh = init_device_mesh("cpu", (2,))
        return parallelize_module(module, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})

    def train(factor):
        def loss(model, x):
            loss = model(x).square().sum()
            loss.backward()
            most = 1.0 if dist.get_world_size() == 1 else factor
            torch.nn.utils.clip_grad_norm_(model.parameters(), most, foreach=foreach)
            torch.optim.SGD(model.parameters(), lr=0.1).step()
            return loss.detach()

        return loss

    prove(Mlp, split, inputs=torch.empty(4, 8), loss=train(1.0))
    with pytest.raises(Different, match="after two steps of its own optimizer"):
        prove(Mlp, split, inputs=torch.empty(4, 8), loss=train(2.0))
