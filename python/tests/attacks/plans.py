"""Distributed tensors: plans of `torch.distributed.tensor.parallel`, and layouts by hand."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_tensor,
)
from torch.distributed.tensor.experimental import local_map
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from .common import alone, ids, lazily, size

X = torch.empty(2, 4, 8)


def mesh(*sizes):
    return init_device_mesh("cpu", sizes or (size(),))


class Block(nn.Module):
    def __init__(self, norm=nn.LayerNorm):
        super().__init__()
        self.norm, self.up, self.gate, self.down = (
            norm(8),
            nn.Linear(8, 16),
            nn.Linear(8, 16),
            nn.Linear(16, 8),
        )

    def forward(self, x):
        y = self.norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Model(nn.Module):
    def __init__(self, norm=nn.LayerNorm):
        super().__init__()
        self.embedding, self.block = nn.Embedding(12, 8), Block(norm)
        self.norm, self.head = norm(8), nn.Linear(8, 12, bias=False)

    def forward(self, tokens):
        return self.head(self.norm(self.block(self.embedding(tokens))))


COLUMNS = {"up": ColwiseParallel(), "gate": ColwiseParallel(), "down": RowwiseParallel()}


def planned(plan):
    return lambda model: parallelize_module(model, mesh(), plan)


def sequence(model):
    """A plan as torchtitan's, with a sequence that is split between the layers."""
    plan = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "block": PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Shard(1)),
        "block.norm": SequenceParallel(),
        "block.up": ColwiseParallel(input_layouts=Shard(1)),
        "block.gate": ColwiseParallel(input_layouts=Shard(1)),
        "block.down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    return parallelize_module(model, mesh(), plan)


def parallel_loss(model):
    plan = {"embedding": ColwiseParallel(output_layouts=Replicate()),
            "head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)}  # fmt: skip
    return parallelize_module(model, mesh(), plan | {f"block.{k}": v for k, v in COLUMNS.items()})


def cross_entropy(model, tokens, targets, mistake="", smoothing=0.0):
    if alone():
        return F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten(), label_smoothing=smoothing)
    logits = model(tokens).flatten(0, 1)
    if isinstance(logits, DTensor):
        with loss_parallel():
            loss = F.cross_entropy(logits, targets.flatten())
            loss.backward()
            return loss
    return F.cross_entropy(logits, targets.flatten(), label_smoothing=smoothing)


class ByHand(nn.Module):
    """Layers of distributed tensors, with layouts by hand."""

    def __init__(self, block, mistake="", how="dtensor"):
        super().__init__()
        self.mesh, self.mistake, self.how = mesh(), mistake, how
        put = lambda x, place: nn.Parameter(distribute_tensor(x, self.mesh, [place]))
        self.norm = put(block.norm.weight, Replicate())
        self.norm_bias = put(block.norm.bias, Replicate())
        self.up, self.up_bias = put(block.up.weight, Shard(0)), put(block.up.bias, Shard(0))
        self.gate, self.gate_bias = put(block.gate.weight, Shard(0)), put(block.gate.bias, Shard(0))
        self.down, self.down_bias = put(block.down.weight, Shard(1)), put(block.down.bias, Replicate())

    def forward(self, x):
        return getattr(self, self.how)(x)

    def dtensor(self, x):
        x = DTensor.from_local(x, self.mesh, [Replicate()])
        y = F.layer_norm(x, (8,), self.norm, self.norm_bias)
        y = F.silu(F.linear(y, self.gate, self.gate_bias)) * F.linear(y, self.up, self.up_bias)
        y = F.linear(y, self.down).redistribute(placements=[Replicate()]) + self.down_bias
        return (x + y).to_local()

    def local(self, x):
        """Local tensors of the parameters, and a partial sum that is made a distributed tensor again."""
        wanted = [Replicate()] if self.mistake == "the input's gradient is taken as whole" else [Partial()]
        y = DTensor.from_local(x, self.mesh, [Replicate()])
        y = F.layer_norm(y, (8,), self.norm, self.norm_bias).to_local(grad_placements=wanted)
        up, up_bias, gate, gate_bias, down = (
            p.to_local() for p in (self.up, self.up_bias, self.gate, self.gate_bias, self.down)
        )
        y = F.linear(F.silu(F.linear(y, gate, gate_bias)) * F.linear(y, up, up_bias), down)
        if self.mistake == "a partial sum is taken as whole":
            y = DTensor.from_local(y, self.mesh, [Replicate()])
        elif self.mistake == "a partial mean":
            y = DTensor.from_local(y, self.mesh, [Partial("avg")])
        elif self.mistake == "the bias before the sum":
            y = DTensor.from_local(y + self.down_bias.to_local(), self.mesh, [Partial()])
        else:
            y = DTensor.from_local(y, self.mesh, [Partial()])
        y = y.redistribute(placements=[Replicate()])
        if self.mistake != "the bias before the sum":
            y = y + self.down_bias
        return x + y.to_local()

    def sharded(self, x):
        """Rows of the sequence between layers, reduced and scattered by a change of layout."""
        x = DTensor.from_local(x, self.mesh, [Replicate()]).redistribute(placements=[Shard(1)])
        y = F.layer_norm(x, (8,), self.norm, self.norm_bias).redistribute(placements=[Replicate()])
        y = F.silu(F.linear(y, self.gate, self.gate_bias)) * F.linear(y, self.up, self.up_bias)
        y = F.linear(y, self.down).redistribute(placements=[Shard(1)]) + self.down_bias
        out = x + y
        if self.mistake == "a rank's part is taken as whole":
            return torch.cat([out.to_local()] * size(), 1)
        return out.full_tensor()

    def mapped(self, x):
        """A function of local tensors, by `local_map`."""

        def product(y, gate, up, down):
            return F.linear(F.silu(F.linear(y, gate)) * F.linear(y, up), down)

        x = DTensor.from_local(x, self.mesh, [Replicate()])
        y = F.layer_norm(x, (8,), self.norm, self.norm_bias)
        places = ([Replicate()], [Shard(0)], [Shard(0)], [Shard(1)])
        inner = local_map(product, out_placements=[Partial()], in_placements=places,
                          in_grad_placements=([Partial()], *places[1:]), device_mesh=self.mesh)  # fmt: skip
        y = inner(y, self.gate, self.up, self.down)
        return (x + y.redistribute(placements=[Replicate()])).to_local()


class NoBiases(Block):
    def forward(self, x):
        y = self.norm(x)
        return x + F.linear(
            F.silu(F.linear(y, self.gate.weight)) * F.linear(y, self.up.weight), self.down.weight
        )


def features(model):
    """Norms over features that are split: distributed tensors sum over ranks by themselves."""
    model.mesh = mesh()
    return model


def of_features(model, x, mistake=""):
    if not hasattr(model, "mesh"):
        y = model(x)
        return [y.softmax(-1), y.logsumexp(-1), y.mean(), y.var(-1), y.norm(), y.amax(-1)]
    y = DTensor.from_local(model(x), model.mesh, [Replicate()]).redistribute(placements=[Shard(-1)])
    if mistake == "a softmax of parts":
        y = DTensor.from_local(y.to_local(), model.mesh, [Shard(0)])
        y = DTensor.from_local(y.to_local().softmax(-1), model.mesh, [Shard(-1)])
        return [y.full_tensor(), *of_features(model, x)[1:]]
    every = [y.softmax(-1), y.logsumexp(-1), y.mean(), y.var(-1), y.norm(), y.amax(-1)]
    return [z.full_tensor() for z in every]


def clipped(model, x, mistake=""):
    """A norm of gradients of distributed tensors by hand."""
    loss = model(x).square().mean()
    loss.backward()
    squares = 0
    for p in model.parameters():
        g = p.grad
        if isinstance(g, DTensor) and mistake != "norms of local parts":
            squares = squares + g.full_tensor().square().sum()
        else:
            squares = squares + (g.to_local() if isinstance(g, DTensor) else g).square().sum()
    with torch.no_grad():
        for p in model.parameters():
            p.sub_(p.grad * (0.1 / squares.sqrt()))
    return loss.detach()


def make(split, ranks=2, build=Block, inputs=X, loss=None, **options):
    return dict(unsplit=build, split=split, ranks=ranks, inputs=inputs, loss=loss, **options)


def by_hand(how, ranks=2, mistake=""):
    build = NoBiases if how == "mapped" else Block
    return make(lambda block: ByHand(block, mistake, how), ranks, build, X.clone().requires_grad_())


def language(split, ranks=2, norm=nn.LayerNorm, **options):
    return make(
        split, ranks, lazily(Model, norm), (ids(2, 4), ids(2, 4, seed=1)), lazily(cross_entropy, **options)
    )


RIGHT = (
    {
        f"{name}, {ranks} ranks": lazily(make, f, ranks)
        for ranks in (2, 4)
        for name, f in {
            "columns and rows": planned(COLUMNS),
            "rows of replicated inputs": planned({"down": RowwiseParallel(input_layouts=Replicate())}),
            "columns that are gathered": planned({"up": ColwiseParallel(output_layouts=Replicate())}),
        }.items()
    }
    | {
        f"{how} by hand, {ranks} ranks": lazily(by_hand, how, ranks)
        for how in ("dtensor", "local", "sharded", "mapped")
        for ranks in (2, 4)
    }
    | {
        "a sequence": lazily(language, sequence),
        "a sequence, 4 ranks": lazily(language, sequence, 4),
        "a sequence, RMSNorm": lazily(language, sequence, norm=nn.RMSNorm),
        "a sequence, smoothing": lazily(language, sequence, smoothing=0.1),
        "a parallel loss": lazily(language, parallel_loss),
        "a parallel loss, 4 ranks": lazily(language, parallel_loss, 4),
        "features": lazily(make, features, loss=of_features),
        "clipped": lazily(make, planned(COLUMNS), loss=clipped),
    }
)
WRONG = {
    f"{how}: {mistake}": lazily(by_hand, how, mistake=mistake)
    for how, mistake in [
        ("local", "the input's gradient is taken as whole"),
        ("local", "a partial sum is taken as whole"),
        ("local", "a partial mean"),
        ("local", "the bias before the sum"),
        ("sharded", "a rank's part is taken as whole"),
    ]
} | {
    "clipped: norms of local parts": lazily(
        make, planned(COLUMNS), loss=lazily(clipped, mistake="norms of local parts")
    ),
}
