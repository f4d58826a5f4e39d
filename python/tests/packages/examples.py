"""Programs that call PyTorch as its examples of tensor parallelism do: a toy by tensor and by sequence parallelism, and
a Llama by both and `fully_shard`."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from edits import edit

NEEDS = "torch.distributed.tensor.parallel"
IDS = torch.arange(32).view(4, 8) * 7 % 24


class Toy(nn.Module):
    def __init__(self):
        super().__init__()
        self.in_proj, self.relu, self.out_proj = nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 5)

    def forward(self, x):
        return self.out_proj(self.relu(self.in_proj(x)))


def toy(ranks, rows=False):
    """A toy whose rows all ranks have, or a part of them."""

    def split(model):
        into = ColwiseParallel(input_layouts=Shard(0)) if rows else ColwiseParallel()
        out = RowwiseParallel(output_layouts=Shard(0)) if rows else RowwiseParallel()
        return parallelize_module(model, init_device_mesh("cuda", (ranks,)), {"in_proj": into, "out_proj": out})

    loss = lambda model, x: model(x.chunk(dist.get_world_size())[dist.get_rank()] if rows else x)
    return dict(unsplit=lambda: Toy().to("cuda"), split=split, ranks=ranks, inputs=torch.empty(8, 10), loss=loss)


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.wide = heads, width // heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x, turns):
        q, k, v = (of(x).view(*x.shape[:2], self.heads, self.wide) for of in (self.wq, self.wk, self.wv))
        q, k = (self.turned(y, turns).transpose(1, 2) for y in (q, k))
        y = F.scaled_dot_product_attention(q, k, v.transpose(1, 2), is_causal=True)
        return self.wo(y.transpose(1, 2).flatten(2))

    def turned(self, x, turns):
        pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * turns[: x.shape[1], None]).flatten(3)


class FeedForward(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.w1, self.w2, self.w3 = (nn.Linear(*of, bias=False) for of in [(width, 24), (24, width), (width, 24)])

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.attention, self.feed_forward = Attention(width, heads), FeedForward(width)
        self.attention_norm, self.ffn_norm = nn.RMSNorm(width, 1e-5), nn.RMSNorm(width, 1e-5)

    def forward(self, x, turns):
        x = x + self.attention(self.attention_norm(x), turns)
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(nn.Module):
    def __init__(self, width=16, heads=4):
        super().__init__()
        self.tok_embeddings, self.norm, self.output = (
            nn.Embedding(24, width),
            nn.RMSNorm(width, 1e-5),
            nn.Linear(width, 24, bias=False),
        )
        self.layers = nn.ModuleList(Block(width, heads) for _ in range(2))
        angles = torch.outer(torch.arange(8.0), 10000.0 ** (-torch.arange(0, width // heads, 2) * heads / width))
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles))

    def forward(self, ids):
        x = self.tok_embeddings(ids)
        for layer in self.layers:
            x = layer(x, self.turns)
        return self.output(self.norm(x)).float()


def two_ways(data, tensor):
    """A Llama by tensor and sequence parallelism, whose parts are sharded among replicas."""

    def split(model):
        mesh = init_device_mesh("cuda", (data, tensor), mesh_dim_names=("dp", "tp"))
        whole = {
            "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "norm": SequenceParallel(),
            "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
        }
        model = parallelize_module(model, mesh["tp"], whole)
        for layer in model.layers:
            plan = {
                "attention_norm": SequenceParallel(),
                "attention": PrepareModuleInput(
                    input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None)
                ),
                "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
                "ffn_norm": SequenceParallel(),
                "feed_forward": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
                "feed_forward.w2": RowwiseParallel(output_layouts=Shard(1)),
            } | {
                name: ColwiseParallel()
                for name in ("attention.wq", "attention.wk", "attention.wv", "feed_forward.w1", "feed_forward.w3")
            }
            layer.attention.heads //= tensor
            parallelize_module(layer, mesh["tp"], plan)
        model.rows = lambda x: x.chunk(data)[mesh["dp"].get_local_rank()]
        return fully_shard(model, mesh=mesh["dp"])

    def loss(model, ids):
        return model(ids if dist.get_world_size() == 1 else model.rows(ids)).square().mean()

    return dict(
        unsplit=lambda: Llama().to("cuda"), split=split, ranks=data * tensor, inputs=IDS, loss=loss, outputs="mean"
    )


RIGHT = {
    "a toy by tensor parallelism": lambda: toy(2),
    "a toy by sequence parallelism": lambda: toy(4, rows=True),
    "Llama, 2 replicas of 2 parts": lambda: two_ways(2, 2),
    "Llama, 1 replica of 4 parts": lambda: two_ways(1, 4),
}
WRONG = {
    "rows are not summed": (
        "a toy by tensor parallelism",
        edit(RowwiseParallel, "_prepare_output_fn", "if outputs.placements != output_layouts:", "if False:"),
        "out_proj",
    ),
    "each rank takes its rows for all": (
        "a toy by sequence parallelism",
        edit(
            ColwiseParallel,
            "_prepare_input_fn",
            "device_mesh,\n                input_layouts,",
            "device_mesh,\n                desired_input_layouts,",
        ),
        "examples.py",
    ),
    "gradients of norms are not summed": (
        "Llama, 2 replicas of 2 parts",
        edit(
            SequenceParallel,
            "_prepare_input_fn",
            "device_mesh, sequence_sharding, run_check",
            "device_mesh, [Replicate()], run_check",
        ),
        "examples.py",
    ),
}
