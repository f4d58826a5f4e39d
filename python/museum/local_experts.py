"""A distributed tensor is taken apart by `to_local` without saying what its gradient is.

torchtitan issue 1805: under tensor parallelism each rank's experts take the tokens' local tensor. Each rank's gradient of
the tokens is a partial sum, but `to_local` takes it for the whole, and the sum over ranks is missing in backward.
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

inputs = torch.empty(4, 8)
said = "the gradient of before", "a partial sum that nobody summed"


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.up, self.down = nn.Linear(8, 8), nn.Linear(8, 16, bias=False), nn.Linear(16, 8, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.up(torch.sigmoid(self.before(x)))))


class Split(nn.Module):
    def __init__(self, whole, gradients=None):
        super().__init__()
        self.mesh, self.gradients = init_device_mesh("cpu", (torch.distributed.get_world_size(),)), gradients
        put = lambda x, place: nn.Parameter(distribute_tensor(x, self.mesh, [place]))
        self.before, self.bias = put(whole.before.weight, Replicate()), put(whole.before.bias, Replicate())
        self.up, self.down = put(whole.up.weight, Shard(0)), put(whole.down.weight, Shard(1))

    def forward(self, x):
        x = distribute_tensor(x, self.mesh, [Replicate()])
        tokens = torch.sigmoid(F.linear(x, self.before, self.bias)).to_local(grad_placements=self.gradients)
        out = F.linear(F.silu(F.linear(tokens, self.up.to_local())), self.down.to_local())
        return DTensor.from_local(out, self.mesh, [Partial()]).redistribute(self.mesh, [Replicate()])


unsplit, split = Model, Split


def mended(whole):
    return Split(whole, [Partial()])
