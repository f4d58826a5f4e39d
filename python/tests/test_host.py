"""A script as torchrun starts it: its own process group, and a host where it says CUDA."""

import os

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from checks import prove
from by_hand import Copy, Reduce
from models import Mlp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from equipart.torch import Different

X = torch.empty(4, 8)


class Script(nn.Module):
    """Half of a layer on each rank, on the device of its rank; gradients are summed in a stream of their own."""

    def __init__(self, whole, wrong=False):
        super().__init__()
        rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        dist.init_process_group("nccl", rank=rank, world_size=ranks)
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        self.device = torch.device("cuda", torch.cuda.current_device())
        self.group = dist.new_group(list(range(ranks)), backend="nccl")
        self.up = nn.Linear(8, 16, device="cuda")
        self.down = nn.Linear(16, 8, bias=False).to(self.device)
        self.bias, self.stream, self.wrong = nn.Parameter(whole.down.bias.cuda()), torch.cuda.Stream(), wrong
        self.up.weight.data = whole.up.weight.data.chunk(ranks)[rank].to("cuda")
        self.up.bias.data = whole.up.bias.data.chunk(ranks)[rank].cuda(0)
        self.down.weight.data = whole.down.weight.data.chunk(ranks, 1)[rank].to(0, non_blocking=True)

    def forward(self, x):
        begin, end, states = torch.cuda.Event(enable_timing=True), torch.cuda.Event(), torch.cuda.get_rng_state()
        y = self.down(F.silu(self.up(Copy.apply(x.cuda()))))
        begin.record()
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            y = y if self.wrong else Reduce.apply(y)
            y.record_stream(self.stream)
            scale = torch.ones(8, device=self.device) + torch.tensor([0.0], device="cuda:0").pin_memory()
        end.record(self.stream)
        torch.cuda.synchronize()
        assert begin.elapsed_time(end) >= 0 and end.query()
        torch.cuda.set_rng_state(states)
        with torch.device("cuda"):
            return y * scale + self.bias + torch.zeros(8)


def test_a_script_of_torchrun():
    prove(Mlp, Script, inputs=X)
    with pytest.raises(Different, match="partial sum"):
        prove(Mlp, lambda whole: Script(whole, wrong=True), inputs=X)


def test_a_mesh_of_cuda():
    def split(module):
        mesh = init_device_mesh("cuda", (2,))
        return parallelize_module(module, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})

    def ends(module, x):
        loss = module(x).square().mean()
        dist.destroy_process_group()
        return loss

    prove(Mlp, split, inputs=X, loss=ends)


def test_the_process_that_proves_is_as_before():
    import math
    import sys

    before = sys.excepthook, math.isnan, torch.cuda.Stream, dist.new_group, torch.zeros
    prove(Mlp, Script, inputs=X)
    assert before == (sys.excepthook, math.isnan, torch.cuda.Stream, dist.new_group, torch.zeros)
    assert not dist.is_initialized()
