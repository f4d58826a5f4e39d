"""FSDP1: `FullyShardedDataParallel`, whose flat parameters are freed and taken again."""

import contextlib

import torch
from torch import nn
from torch.distributed.fsdp import (
    CPUOffload, FullStateDictConfig, FullyShardedDataParallel, MixedPrecision, ShardingStrategy, StateDictType,
)  # fmt: skip
from torch.distributed.fsdp._flat_param import FlatParamHandle
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from .common import alone, lazily, rank, size
from .sharded import Block, cross, loss, mesh, program

WRAP = dict(auto_wrap_policy=ModuleWrapPolicy({Block}))


def flat(**options):
    return lambda model: FullyShardedDataParallel(model, device_id=torch.cuda.current_device(), **WRAP, **options)


def replicas(model):
    return flat(sharding_strategy=ShardingStrategy.HYBRID_SHARD, device_mesh=mesh(2, 2))(model)


def clipped(model, x, y, mistake=""):
    if not hasattr(model, "optimizer"):
        model.optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    out = loss(model, x, y)
    model.optimizer.zero_grad()
    out.backward()
    if alone() or mistake == "clipped by a local norm":
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    else:
        norm = model.clip_grad_norm_(1.0)
    model.optimizer.step()
    return norm


def accumulated(model, x, y, mistake=""):
    x, y = (x, y) if alone() else (x.chunk(size())[rank()], y.chunk(size())[rank()])
    for at in range(2):
        with model.no_sync() if at == 0 and not alone() else contextlib.nullcontext():
            (cross(model, x.chunk(2)[at], y.chunk(2)[at]) / (1 if mistake and not alone() else 2)).backward()


def stepped(model, x, y, mistake=""):
    """A step, whose gradients are cleared. Returns the loss that has gone backward, and what a checkpoint would hold."""
    if not hasattr(model, "optimizer"):
        model.optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    out = loss(model, x, y, at=0 if mistake and not alone() else None)
    out.backward()
    model.optimizer.step()
    model.optimizer.zero_grad()
    if alone():
        return out, model.state_dict()
    kind = StateDictType.FULL_STATE_DICT, FullStateDictConfig(offload_to_cpu=True, rank0_only=False)
    with FullyShardedDataParallel.state_dict_type(model, *kind):
        return out, model.state_dict()


def gathered(times):
    """A split whose weights are gathered so many times only, though their memory is given back after each."""

    def split(model):
        gather, counts = FlatParamHandle._all_gather_flat_param, {}

        def some(self, padded):
            counts[self] = counts.get(self, 0) + 1
            return gather(self, padded) if counts[self] <= times else padded

        FlatParamHandle._all_gather_flat_param = some
        return flat()(model)

    return split


RIGHT = {
    "one flat parameter": lazily(program, lambda m: FullyShardedDataParallel(m)),
    "blocks": lazily(program, flat()),
    "blocks with their own parameters": lazily(program, flat(use_orig_params=True)),
    "gradients and states": lazily(program, flat(sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)),
    "narrow": lazily(program, flat(mixed_precision=MixedPrecision(param_dtype=torch.bfloat16))),
    "offloaded": lazily(program, lambda m: FullyShardedDataParallel(m, cpu_offload=CPUOffload(True), **WRAP)),
    "replicas of shards": lazily(program, replicas, ranks=4),
    "clipping": lazily(program, flat(), clipped),
    "accumulation": lazily(program, flat(), accumulated),
    "a step and a checkpoint": lazily(program, flat(use_orig_params=True), stepped),
}
WRONG = {
    "weights are not gathered": lazily(program, gathered(0)),
    "weights are not gathered again": lazily(program, gathered(1)),
    "clipped by a local norm": lazily(program, flat(), lazily(clipped, mistake="clipped by a local norm")),
    "parts are not averaged": lazily(program, flat(), lazily(accumulated, mistake="parts are not averaged")),
    "a step of other rows": lazily(program, flat(use_orig_params=True), lazily(stepped, mistake="other rows")),
    "other rows": lazily(program, flat(), lambda m, x, y: loss(m, x, y, at=0)),
}
