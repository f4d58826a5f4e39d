"""accelerate 1.15's own loop over replicas and over shards: it prepares, accumulates, clips and steps.

The unsplit program is the loop of plain PyTorch.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from edits import edit

NEEDS = "accelerate"

import accelerate
from accelerate import Accelerator
from accelerate.utils import FullyShardedDataParallelPlugin

X, Y = torch.empty(8, 8), torch.arange(8) * 5 % 6
CLIP = 0.5


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        return x + self.down(F.silu(self.up(self.norm(x))))


class Net(nn.Module):
    _no_split_modules = ["Block"]

    def __init__(self):
        super().__init__()
        self.blocks, self.head = nn.Sequential(Block(), Block()), nn.Linear(8, 6)

    def forward(self, x):
        return self.head(self.blocks(x))


def optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.25, momentum=0.5, weight_decay=0.125)


def prepared(model, pieces, shards=None):
    """A model whose accelerator and optimizer are beside it."""
    if shards:  # which accelerate has on a card only
        torch.cuda.is_available = lambda: True
    plugin = shards and FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="transformer_based_wrap", **shards
    )
    accelerator = Accelerator(gradient_accumulation_steps=pieces, fsdp_plugin=plugin, cpu=not shards)
    model, own = accelerator.prepare(model, optimizer(model))
    model.accelerator, model.optimizer = accelerator, own
    return model


def alone(model, pieces):
    model.optimizer = vars(model).get("optimizer") or optimizer(model)
    return model


def program(pieces=2, ranks=2, clip=True, shards=None):
    """Gradients of some pieces of a batch, summed, clipped and stepped."""

    def loss(model, x, y):
        total, parts = 0.0, list(zip(x.chunk(pieces), y.chunk(pieces)))
        if dist.get_world_size() == 1:
            alone(model, pieces)
            for x, y in parts:
                each = F.cross_entropy(model(x), y) / pieces
                each.backward()
                total = total + each.detach()
            clip and nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            model.optimizer.step()
            model.optimizer.zero_grad()
            return total
        accelerator, rank = model.accelerator, dist.get_rank()
        for x, y in parts:
            with accelerator.accumulate(model):
                each = F.cross_entropy(model(x.chunk(ranks)[rank]), y.chunk(ranks)[rank])
                accelerator.backward(each)
                if clip and accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), CLIP)
                model.optimizer.step()
                model.optimizer.zero_grad()
                total = total + accelerator.reduce(each.detach(), "mean") / pieces
        return total

    return dict(unsplit=Net, split=lambda model: prepared(model, pieces, shards), ranks=ranks, inputs=(X, Y), loss=loss)


RIGHT = {
    "replicas": lambda: program(1, clip=False),
    "replicas, 2 pieces, clipped": lambda: program(2),
    "4 replicas, clipped": lambda: program(1, 4),
    "shards, 2 pieces, clipped": lambda: program(
        2, shards=dict(reshard_after_forward=True, cpu_ram_efficient_loading=False)
    ),
    "shards, from the first rank": lambda: program(
        1, 4, shards=dict(reshard_after_forward=False, cpu_ram_efficient_loading=True)
    ),
}
STEPPED = "after two steps"
loops = accelerate.accelerator.Accelerator
steps = accelerate.optimizer.AcceleratedOptimizer
WRONG = {
    "pieces are not averaged": (
        "replicas, 2 pieces, clipped",
        edit(loops, "backward", "loss = loss / self.gradient_accumulation_steps", "pass"),
        STEPPED,
    ),
    "steps after the wrong piece": (
        "shards, 2 pieces, clipped",
        edit(loops, "_do_sync", ".num_steps) == 0", ".num_steps) == 1"),
        "blocks.0",
    ),
    "never exchanges": (
        "replicas, 2 pieces, clipped",
        edit(
            loops,
            "accumulate",
            "contextlib.nullcontext() if allow_gradient_sync else self.no_sync(m)",
            "self.no_sync(m)",
        ),
        STEPPED,
    ),
    "zeros gradients after each piece": (
        "replicas, 2 pieces, clipped",
        edit(steps, "zero_grad", "if self.gradient_state.sync_gradients:", "if True:"),
        STEPPED,
    ),
    "steps after each piece": (
        "replicas, 2 pieces, clipped",
        edit(steps, "step", "if self.gradient_state.sync_gradients:", "if True:"),
        "optimizer.py",
    ),
    "sums losses": (
        "4 replicas, clipped",
        edit(accelerate.utils.operations, "reduce", "cloned_tensor /= state.num_processes", "pass"),
        "operations.py",
    ),
    "each weight has its own norm": (
        "shards, 2 pieces, clipped",
        edit(
            loops,
            "_clip_grad_norm_dtensor_aware",
            "if len(mesh_groups) + bool(plain_params) <= 1:",
            "for p in parameters: torch.nn.utils.clip_grads_with_norm_([p], max_norm, p.grad.norm())\n        else:",
        ),
        STEPPED,
    ),
    "the first rank gives its weights to nobody": (
        "shards, from the first rank",
        edit(
            accelerate.utils.fsdp_utils,
            "fsdp2_load_full_state_dict",
            "dist.broadcast(full_tensor, src=0, group=dist.group.WORLD)",
            "pass",
        ),
        "fsdp_utils.py",
    ),
}
