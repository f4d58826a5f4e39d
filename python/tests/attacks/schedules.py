"""`torch.distributed.pipelining`: its schedules over stages by hand, and a model that is cut by it."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.pipelining import (
    PipelineStage, Schedule1F1B, ScheduleDualPipeV, ScheduleGPipe, ScheduleInterleaved1F1B, ScheduleInterleavedZeroBubble,
    ScheduleLoopedBFS, ScheduleZBVZeroBubble, SplitPoint, pipeline,
)  # fmt: skip

from equipart.torch.private import VERSION

from .common import alone, lazily, rank, size
from .sharded import X, Y, Block, Net, fully_shard, mesh


class Deep(Net):
    def __init__(self, blocks=4):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))


class Stage(nn.Module):
    """Some of the blocks, and what is before the first and after the last."""

    def __init__(self, whole, at, count, of=None):
        super().__init__()
        each, of = len(whole.blocks) // count, at if of is None else of(at)
        self.embedding = whole.embedding if at == 0 else None
        self.blocks = nn.ModuleList(whole.blocks[of * each : (of + 1) * each])
        self.head = whole.head if at == count - 1 else None

    def forward(self, x):
        x = x if self.embedding is None else self.embedding(x)
        for block in self.blocks:
            x = block(x)
        return x if self.head is None else self.head(x)


def cross(y, wanted):
    return F.cross_entropy(y.flatten(0, 1), wanted.flatten())


def around(at):
    return rank() + size() * at


def there_and_back(at):
    return rank() if at == 0 else 2 * size() - 1 - rank()


def staged(schedule, stages=1, order=around, parts=4, loss=cross, of=None, **options):
    """A split whose rank has some stages, in this order, perhaps with the blocks of others."""

    def split(whole):
        mine, count = [order(at) for at in range(stages)], stages * size()
        model = nn.ModuleList(Stage(whole, at, count, of) for at in mine)
        every = [PipelineStage(part, at, count, torch.device("cuda")) for part, at in zip(model, mine)]
        model.schedule = schedule(every if stages > 1 else every[0], parts, loss_fn=loss, **options)
        model.is_first, model.is_last = 0 in mine, count - 1 in mine
        return model

    return split


def cut(whole):
    """A model that PyTorch traces and cuts before its third block."""
    traced = pipeline(whole, mb_args=(X[:2],), split_spec={"blocks.2": SplitPoint.BEGINNING})
    stage = traced.build_stage(rank(), torch.device("cuda"))
    model = nn.ModuleList([stage.submod])
    model.schedule = ScheduleGPipe(stage, 4, loss_fn=cross)
    model.is_first, model.is_last = rank() == 0, rank() == size() - 1
    return model


def replicated(whole):
    """Stages on one dimension of a mesh, shards on the other."""
    both = mesh(2, 2)
    at = both["first"].get_local_rank()
    part = Stage(whole, at, 2)
    for block in part.blocks:
        fully_shard(block, mesh=both["second"])
    fully_shard(part, mesh=both["second"])
    stage = PipelineStage(part, at, 2, torch.device("cuda"), group=both["first"].get_group())
    model = nn.ModuleList([part])
    model.schedule = Schedule1F1B(stage, 2, loss_fn=cross)
    model.is_first, model.is_last, model.at = at == 0, at == 1, both["second"].get_local_rank()
    return model


def loss(model, x, y):
    """The loss of all parts, which the last stage has."""
    if alone():
        out = cross(model(x), y)
        out.backward()
        return out.detach()
    at, parts = getattr(model, "at", 0), 2 if hasattr(model, "at") else 1
    x, y, losses = x.chunk(parts)[at], y.chunk(parts)[at], []
    given = (x,) if model.is_first else ()
    model.schedule.step(*given, **dict(target=y, losses=losses) if model.is_last else {})
    out = torch.stack(losses).mean().detach() / parts if model.is_last else torch.zeros(())
    dist.all_reduce(out)
    return out


def program(split, ranks=2, blocks=4):
    return dict(unsplit=lazily(Deep, blocks), split=split, ranks=ranks, inputs=(X, Y), loss=loss)


RIGHT = {
    "GPipe": lazily(program, staged(ScheduleGPipe)),
    "1F1B on 4 ranks": lazily(program, staged(Schedule1F1B), 4),
    "1F1B, parts of one row": lazily(program, staged(Schedule1F1B, parts=8)),
    "interleaved": lazily(program, staged(ScheduleInterleaved1F1B, 2)),
    "breadth first": lazily(program, staged(ScheduleLoopedBFS, 2)),
    "zero bubble": lazily(program, staged(ScheduleInterleavedZeroBubble, 2)),
    "cut by PyTorch": lazily(program, cut),
    "over shards": lazily(program, replicated, 4),
}
if VERSION > (2, 10):  # where the rank at the turn sends to itself what its stages are given
    RIGHT |= {
        "zero bubble in a V": lazily(program, staged(ScheduleZBVZeroBubble, 2, there_and_back)),
        "both ways in a V": lazily(program, staged(ScheduleDualPipeV, 2, there_and_back)),
    }
WRONG = {
    "gradients of parts are summed": lazily(program, staged(ScheduleGPipe, scale_grads=False)),
    "a loss that sums": lazily(program, staged(Schedule1F1B, loss=lambda y, wanted: 2 * cross(y, wanted))),
    "blocks by rank, not around ranks": lazily(
        program, staged(ScheduleInterleaved1F1B, 2, of=lambda at: 2 * (at % size()) + at // size())
    ),
    "blocks of the other stage": lazily(program, staged(ScheduleGPipe, of=lambda at: 1 - at)),
    "another rank's rows": lazily(program, lambda m: setattr(model := replicated(m), "at", 0) or model, 4),
}
