"""Modules and plans that tests split."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

VOCABULARY, WIDTH, HEADS, INNER, LENGTH = 24, 16, 4, 24, 6

# of a small model of transformers
SIZES = dict(
    vocab_size=VOCABULARY,
    hidden_size=WIDTH,
    intermediate_size=INNER,
    num_hidden_layers=2,
    num_attention_heads=HEADS,
    num_key_value_heads=2,
    max_position_embeddings=32,
    tie_word_embeddings=False,
)


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        return self.down(F.silu(self.up(x)))


class Attention(nn.Module):
    def __init__(self, width=WIDTH):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.head = width // HEADS

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = (f(x).view(batch, length, -1, self.head).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).reshape(batch, length, -1))


class Gated(nn.Module):
    def __init__(self, width=WIDTH, inner=INNER):
        super().__init__()
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, width=WIDTH, inner=INNER):
        super().__init__()
        self.norm1, self.attention = nn.RMSNorm(width, eps=1e-5), Attention(width)
        self.norm2, self.mlp = nn.RMSNorm(width, eps=1e-5), Gated(width, inner)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Llama(nn.Module):
    def __init__(self, layers=2, width=WIDTH, inner=INNER):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(Block(width, inner) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width, eps=1e-5), nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, ids):
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


torch.manual_seed(0)
IDS, TARGETS = torch.randint(0, VOCABULARY, (2, 2, LENGTH))


def cross_entropy(model, ids, targets):
    return F.cross_entropy(model(ids).flatten(0, 1), targets.flatten())


def tensor_parallel(model, mesh=None):
    """Columns and rows, by DTensor."""
    plan = {}
    for i in range(len(model.blocks)):
        plan |= {f"blocks.{i}.attention.{x}": ColwiseParallel() for x in "qkv"}
        plan |= {f"blocks.{i}.mlp.{x}": ColwiseParallel() for x in ("gate", "up")}
        plan |= {f"blocks.{i}.attention.o": RowwiseParallel(), f"blocks.{i}.mlp.down": RowwiseParallel()}
    return parallelize_module(model, mesh or init_device_mesh("cpu", (dist.get_world_size(),)), plan)


def sequence_parallel(model, mesh=None, loss_parallel=False):
    """Columns, rows and the sequence between them."""
    head = Shard(-1) if loss_parallel else Replicate()
    plan = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=head, use_local_output=not loss_parallel),
    }
    whole = PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate())
    for i in range(len(model.blocks)):
        at = f"blocks.{i}."
        plan |= {at + "norm1": SequenceParallel(), at + "norm2": SequenceParallel()}
        plan |= {at + "attention": whole, at + "mlp": whole}
        plan |= {at + f"attention.{x}": ColwiseParallel() for x in "qkv"}
        plan |= {at + f"mlp.{x}": ColwiseParallel() for x in ("gate", "up")}
        plan |= {at + x: RowwiseParallel(output_layouts=Shard(1)) for x in ("attention.o", "mlp.down")}
    return parallelize_module(model, mesh or init_device_mesh("cpu", (dist.get_world_size(),)), plan)
