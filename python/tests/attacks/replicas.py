"""`DistributedDataParallel` and trainers around it: hooks, accumulation, unused parameters, norms over batches, optimizers."""

import contextlib

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from .common import alone, lazily, rank, size
from .sharded import X, Net, cross, loss, program

PIECES = 0.0002  # MB of a bucket, so that there are several


class Some(Net):
    """Has a layer that nobody uses, and one for the first rank's rows only."""

    def __init__(self):
        super().__init__()
        self.unused, self.first = nn.Linear(8, 8), nn.Linear(12, 12)

    def forward(self, x):
        y = super().forward(x)
        mine = (x[:, None] == X[:4]).all(-1).any(1)[:, None, None]
        return y + self.first(y) * mine if mine.any() else y


class Twice(Net):
    """Uses its head twice, and a layer never."""

    def __init__(self):
        super().__init__()
        self.unused = nn.Linear(8, 8)

    def forward(self, x):
        y = super().forward(x)
        return y + self.head(F.silu(y[..., :8]))


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(12, 8), nn.Linear(8, 12)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x):
        y = self.norm(self.embedding(x).transpose(1, 2))
        return self.head(y.transpose(1, 2))


def repeated(model, x, y):
    """Two backwards, of which the second knows from the first which parameters to wait for."""
    [loss(model, x, y).backward() for _ in range(2)]


def replica(**options):
    return lambda model: DistributedDataParallel(model.to(f"cuda:{rank()}"), device_ids=[rank()], **options)


def hooked(hook):
    def split(model):
        model = DistributedDataParallel(model, bucket_cap_mb=PIECES)
        model.register_comm_hook(None, hook)
        return model

    return split


def summed(state, bucket):
    """A hook that forgets to divide."""
    return torch.distributed.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda of: of.value()[0])


def alone_hook(state, bucket):
    """A hook that returns what it was given."""
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def accumulated(model, x, y, mistake=""):
    """Gradients of two parts, exchanged once."""
    x, y = (x, y) if alone() else (x.chunk(size())[rank()], y.chunk(size())[rank()])
    for at in range(2):
        waits = at == 0 or mistake == "never exchanged"
        with model.no_sync() if waits and not alone() else contextlib.nullcontext():
            each = cross(model, x.chunk(2)[at], y.chunk(2)[at])
        share = 2 if alone() or mistake != "parts are not averaged" else 1
        (each / share).backward()


def scaled(model, x, y, mistake=""):
    """A loss in half precision, scaled; its gradients are unscaled before they are clipped."""
    if not hasattr(model, "optimizer"):
        model.optimizer, model.scaler = torch.optim.SGD(model.parameters(), lr=0.5), torch.amp.GradScaler("cuda", 1024.0)
    with torch.autocast("cuda", dtype=torch.float16):
        out = loss(model, x, y)
    model.optimizer.zero_grad()
    model.scaler.scale(out).backward()
    if alone() or mistake != "clipped while scaled":
        model.scaler.unscale_(model.optimizer)
    norm = nn.utils.get_total_norm([p.grad for p in model.parameters()])
    [p.grad.mul_(1 / (norm + 1)) for p in model.parameters()]
    model.scaler.step(model.optimizer)
    model.scaler.update()
    return out


def stepped(make, split=None):
    """A trainer with an optimizer of its own; the split one's may be another."""

    def step(model, x, y):
        if not hasattr(model, "optimizer"):
            model.optimizer = (make if alone() else split or make)(model.parameters())
        out = loss(model, x, y)
        model.optimizer.zero_grad()
        out.backward()
        model.optimizer.step()
        return out

    return step


def parted(parameters):
    return ZeroRedundancyOptimizer(parameters, torch.optim.AdamW, lr=0.1)


def unsynchronised(parameters):
    """Steps the parameters of this rank's part, and forgets to broadcast them."""
    made = parted(parameters)
    made._sync_params = lambda: None
    return made


def adam(parameters, **options):
    return torch.optim.AdamW(parameters, lr=0.1, **options)


def muon(parameters):
    return torch.optim.Muon([p for p in parameters if p.dim() == 2], lr=0.1)


def by(module, split=replica(), loss=loss, **more):
    return program(split, loss, **more) | dict(unsplit=module)


def single():
    return nn.Linear(8, 1, bias=False)


def in_backward(model, x, mistake=""):
    """An optimizer that steps as soon as a gradient is there, before ranks have averaged it."""
    weight = getattr(model, "module", model).weight
    if not hasattr(model, "optimizer"):
        model.optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        if mistake and not alone():
            weight.register_post_accumulate_grad_hook(lambda _: model.optimizer.step())
    model.optimizer.zero_grad()
    model(x.chunk(size())[rank()]).square().mean().backward()
    if alone() or not mistake:
        model.optimizer.step()


def synchronised(model):
    return DistributedDataParallel(nn.SyncBatchNorm.convert_sync_batchnorm(model))


OPTIMIZERS = {
    "Adafactor": torch.optim.Adafactor,
    "Muon": muon,
    "fused AdamW": lambda parameters: adam(parameters, fused=True),
    "fused Adagrad": lambda parameters: torch.optim.Adagrad(parameters, fused=True),
    "fused SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.5, fused=True),
    "capturable AdamW": lambda parameters: adam(parameters, capturable=True),
    "foreach AdamW": lambda parameters: adam(parameters, foreach=True, amsgrad=True),
}
RIGHT = {
    "buckets": lazily(program, replica(bucket_cap_mb=PIECES), ranks=4),
    "views of buckets": lazily(program, replica(gradient_as_bucket_view=True)),
    "a static graph": lazily(by, Twice, replica(static_graph=True), repeated),
    "unused parameters": lazily(by, Some, replica(find_unused_parameters=True)),
    "a hook": lazily(program, hooked(default_hooks.allreduce_hook)),
    "a narrow hook": lazily(program, hooked(default_hooks.bf16_compress_hook)),
    "accumulation": lazily(program, replica(), accumulated),
    "a scaled loss": lazily(program, replica(), scaled),
    "norms over all ranks": lazily(by, Normed, synchronised),
    "parts of optimizers": lazily(program, replica(), stepped(adam, parted)),
    "optimizers": lazily(program, replica(), optimizers=OPTIMIZERS),
    "a parameter alone": lazily(dict, unsplit=single, split=replica(), inputs=torch.empty(4, 8), loss=in_backward),
    "fused beside plain": lazily(program, replica(), stepped(adam, OPTIMIZERS["fused AdamW"])),
}
WRONG = {
    "unused parameters are not sought": lazily(by, Some),
    "a hook that sums": lazily(program, hooked(summed)),
    "a hook that does nothing": lazily(program, hooked(alone_hook)),
    "norms over each rank": lazily(by, Normed),
    "parts of optimizers, not broadcast": lazily(program, replica(), stepped(adam, unsynchronised)),
    "another fused optimizer": lazily(program, replica(), stepped(adam, lazily(adam, fused=True, weight_decay=0.5))),
    "a step in the backward": lazily(
        dict, unsplit=single, split=replica(), inputs=torch.empty(4, 8), loss=lazily(in_backward, mistake="in the backward")
    ),
    "clipped while scaled": lazily(program, replica(), lazily(scaled, mistake="clipped while scaled")),
} | {
    f"accumulation, {mistake}": lazily(program, replica(), lazily(accumulated, mistake=mistake))
    for mistake in ("never exchanged", "parts are not averaged")
}
