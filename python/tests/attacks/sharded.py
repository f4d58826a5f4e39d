"""FSDP2 as scripts use it: `fully_shard`, alone, over tensor parallelism, and with the trainer's loop."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from .common import alone, ids, lazily, rank, size

X, Y = ids(8, 5), ids(8, 5, seed=1)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(12, 8), nn.Linear(8, 12)
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x):
        x = self.embedding(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def sharded(model, **options):
    for block in model.blocks:
        fully_shard(block, **options)
    return fully_shard(model, **options)


def cross(model, x, y):
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())


def loss(model, x, y, parts=None, at=None):
    """The loss of this rank's rows."""
    parts, at = (1, 0) if alone() else (parts or size(), rank() if at is None else at)
    return cross(model, x.chunk(parts)[at], y.chunk(parts)[at])


def program(split=sharded, loss=loss, ranks=2, outputs="mean", **more):
    return dict(unsplit=Net, split=split, ranks=ranks, inputs=(X, Y), loss=loss, outputs=outputs, **more)


def mesh(*sizes):
    return init_device_mesh("cuda", sizes, mesh_dim_names=("first", "second")[: len(sizes)])


def over_tensors(model):
    both = mesh(2, 2)
    plan = {"blocks.*.up": ColwiseParallel(), "blocks.*.down": RowwiseParallel()}
    parallelize_module(model, both["second"], plan)
    return sharded(model, mesh=both["first"])


def by_pairs(model, x, y):
    """The rows of a rank's pair of tensor-parallel ranks."""
    return loss(model, x, y, 2, rank() // 2)


def uneven(model):
    return sharded(model, shard_placement_fn=lambda p: Shard(1) if p.dim() == 2 and p.shape[1] % 2 == 0 else None)


def offloaded(model):
    return sharded(model, offload_policy=CPUOffloadPolicy())


def narrow(model):
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return sharded(model, mp_policy=policy)


def from_meta(whole, mistake=""):
    with torch.device("meta"):
        model = sharded(Net())
    model.to_empty(device="cuda")
    state = whole.state_dict()
    if mistake == "two weights are swapped":
        names = [f"blocks.{at}.up.weight" for at in (0, 1)]
        state |= dict(zip(names, (state[name] for name in names[::-1])))
    set_model_state_dict(model, state, options=StateDictOptions(full_state_dict=True))
    return model


def divided(model, factor=1.0):
    for part in (*model.blocks, sharded(model)):
        part.set_gradient_divide_factor(factor)
    return model


def doubled(model, x, y):
    """The loss, with gradients of twice its size on ranks."""
    out = loss(model, x, y)
    return out if alone() else 2 * out - out.detach()


def trained(model, x, y, mistake=""):
    """A step of a trainer: gradients of parts are summed before ranks exchange them, and clipped."""
    if not hasattr(model, "optimizer"):
        model.optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    x, y = (x, y) if alone() else (x.chunk(size())[rank()], y.chunk(size())[rank()])
    model.optimizer.zero_grad()
    for at in range(2):
        if not alone():
            last = at == (0 if mistake == "the last part is not summed" else 1)
            model.set_requires_gradient_sync(last)
        each = cross(model, x.chunk(2)[at], y.chunk(2)[at])
        (each / (1 if mistake == "parts are not averaged" and not alone() else 2)).backward()
    if mistake == "clipped by a local norm" and not alone():
        local = [p.grad.to_local() for p in model.parameters()]
        norm = torch.stack([x.square().sum() for x in local]).sum().sqrt()
        [x.mul_(1 / (norm + 1)) for x in local]
    else:
        norm = nn.utils.get_total_norm([p.grad for p in model.parameters()])
        [p.grad.mul_(1 / (norm + 1)) for p in model.parameters()]
    model.optimizer.step()
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def prefetched(model):
    sharded(model)
    model.set_modules_to_forward_prefetch([model.blocks[0]])
    model.blocks[0].set_modules_to_forward_prefetch([model.blocks[1]])
    model.blocks[1].set_modules_to_backward_prefetch([model.blocks[0]])
    return model


def unshared(model):
    """The last block is left out of what is sharded."""
    fully_shard(model.blocks[0])
    return fully_shard(model, ignored_params=set(model.blocks[1].parameters()))


RIGHT = {
    "shards": lazily(program),
    "shards on 4 ranks": lazily(program, ranks=4),
    "whole until backward": lazily(program, lambda m: sharded(m, reshard_after_forward=False)),
    "in pairs after forward": lazily(program, lambda m: sharded(m, reshard_after_forward=2), ranks=4),
    "replicas of shards": lazily(program, lambda m: sharded(m, mesh=mesh(2, 2)), ranks=4),
    "over tensor parallelism": lazily(program, over_tensors, by_pairs, 4),
    "columns": lazily(program, uneven),
    "narrow weights": lazily(program, narrow),
    "offloaded": lazily(program, offloaded),
    "gradients are divided by a factor": lazily(program, lambda m: divided(m, 4.0), doubled),
    "prefetched": lazily(program, prefetched),
    "from meta": lazily(program, from_meta),
    "a trainer": lazily(program, loss=trained),
    "a trainer on 4 ranks": lazily(program, loss=trained, ranks=4),
}
WRONG = {
    "over tensor parallelism, rows by the wrong group": lazily(
        program, over_tensors, lambda m, x, y: loss(m, x, y, 2, rank() % 2), 4
    ),
    "gradients are summed": lazily(program, divided),
    "gradients are divided twice": lazily(program, lambda m: divided(m, 4.0)),
    "no gradient is exchanged": lazily(program, lambda m: sharded(m).set_requires_gradient_sync(False) or m),
    "replicas do not exchange": lazily(
        program, lambda m: sharded(m, mesh=mesh(2, 2)).set_requires_all_reduce(False) or m, ranks=4
    ),
    "one block is not sharded": lazily(program, unshared),
    "from meta, swapped": lazily(program, lazily(from_meta, mistake="two weights are swapped")),
    "other rows": lazily(program, loss=lambda m, x, y: loss(m, x, y, at=0)),
} | {
    f"a trainer, {mistake}": lazily(program, loss=lazily(trained, mistake=mistake))
    for mistake in ("the last part is not summed", "parts are not averaged", "clipped by a local norm")
}
