"""Ranks as processes: what they have of their own, how they end, and calls that end only when they are waited for."""

import os
import signal
import time

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from models import Mlp
from torch import nn

from checks import prove

from equipart.torch import Different, Refused

X = torch.empty(4, 8)
OWN = {}


def whole(module):
    return module


def proven(call, ranks=2, **options):
    """Proves a program that sums its result over ranks, or does nothing where there is one."""

    def loss(model, x):
        y = model(x)
        return y if dist.get_world_size() == 1 else call(y)

    with torch.no_grad():
        return prove(Mlp, whole, ranks, inputs=X, loss=loss, **options)


def shares(y):
    """A part of y, such that all parts have the sum y."""
    return y / dist.get_world_size()


def summed_later(y):
    y = shares(y)
    work = dist.all_reduce(y, async_op=True)
    work.wait()
    return y


def never_waited(y):
    y = shares(y)
    dist.all_reduce(y, async_op=True)
    return y


def read_early(y):
    parts = [torch.empty_like(y) for _ in range(dist.get_world_size())]
    work = dist.all_gather(parts, shares(y), async_op=True)
    total = sum(parts)
    work.wait()
    return total


def neighbours():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    return (rank + 1) % ranks, (rank - 1) % ranks


def turned(y, batched=False):
    """The sum of all parts, passed around a ring, whose receives are posted first."""
    following, before = neighbours()
    total, part = shares(y), shares(y)
    for _ in range(dist.get_world_size() - 1):
        new = torch.empty_like(part)
        if batched:
            ops = [dist.P2POp(dist.isend, part, following), dist.P2POp(dist.irecv, new, before)]
            works = dist.batch_isend_irecv(ops)
        else:
            works = [dist.irecv(new, before), dist.isend(part, following)]
        [work.wait() for work in works]
        total, part = total + new, new
    return total


def overwritten(y):
    following, before = neighbours()
    part, new = shares(y), torch.empty_like(y)
    sending = dist.isend(part, following)
    part.zero_()
    dist.recv(new, before)
    sending.wait()
    return new * dist.get_world_size()


def received_into_use(y):
    following, before = neighbours()
    part, new = shares(y), torch.empty_like(y)
    receiving, sending = dist.irecv(new, before), dist.isend(part, following)
    total = part + new
    receiving.wait(), sending.wait()
    return total


def received_over_the_same(y):
    """What is read early is what will come, as the buffer held it before: a run of floats sees nothing."""
    following, before = neighbours()
    part = shares(y)
    new = part.clone()
    receiving, sending = dist.irecv(new, before), dist.isend(part, following)
    total = part + new
    receiving.wait(), sending.wait()
    return total


def behind_a_barrier(y):
    dist.barrier()
    dist.barrier(async_op=True).wait()
    return y


def of_objects(y):
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, {"rank": dist.get_rank()})
    assert [of["rank"] for of in every] == list(range(dist.get_world_size()))
    return y


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize(
    "call", [summed_later, turned, lambda y: turned(y, True), behind_a_barrier, of_objects], ids=lambda call: call.__name__
)
def test_calls_that_are_waited_for(call, ranks):
    proven(call, ranks)


@pytest.mark.parametrize(
    "call, said",
    [
        (never_waited, r"(?s)nobody waits for all_reduce of float32\[4, 8\], at .*test_ranks.py:\d+, on rank 0"),
        (read_early, "differs from the unsplit one"),
        (received_into_use, "differs from the unsplit one"),
        (received_over_the_same, "differs from the unsplit one"),
        (overwritten, r"what it sends is overwritten before a message to rank \d, at .*, on rank \d is waited for"),
    ],
)
def test_calls_that_are_not(call, said):
    with pytest.raises(Different, match=said):
        proven(call)


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda y: dist.all_reduce(y.double() if dist.get_rank() else y), "calls all_reduce of float"),
        (lambda y: os._exit(3) if dist.get_rank() else dist.barrier(), "rank 1 of the split program exited with code 3"),
        (lambda y: exit(4) if dist.get_rank() else dist.barrier(), "rank 1 of the split program exited with code 4"),
        (
            lambda y: os.kill(os.getpid(), signal.SIGKILL) if dist.get_rank() else dist.barrier(),
            "rank 1 of the split program was ended by SIGKILL",
        ),
        (lambda y: time.sleep(60) if dist.get_rank() else dist.barrier(), "rank 1 has computed for 2 s without a call"),
        (lambda y: dist.recv(y), "received from any rank"),
    ],
)
def test_ranks_that_end_otherwise_are_named(call, said):
    with pytest.raises(Refused, match=said):
        proven(call, timeout=2)


def test_groups_are_called_in_one_order():
    def crossed(y):
        groups = [dist.new_group([0, 1]), dist.new_group([0, 1])]
        if dist.get_rank():
            groups.reverse()
        works = [dist.all_reduce(y.clone(), group=group, async_op=True) for group in groups]
        [work.wait() for work in works]

    with pytest.raises(Refused, match=r"rank \d calls all_reduce .* before all_reduce .*, and rank \d after it"):
        proven(crossed)


def test_a_rank_has_globals_and_an_environment_of_its_own():
    def own(y):
        OWN["rank"] = dist.get_rank()
        dist.barrier()
        names = "RANK", "LOCAL_RANK", "WORLD_SIZE"
        assert [os.environ[name] for name in names] == [str(OWN["rank"]), str(OWN["rank"]), "2"]
        y = y if OWN["rank"] == dist.get_rank() else -y
        return y

    proven(own)
    assert not OWN and "RANK" not in os.environ


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(6, 6) for _ in "qkv")

    def forward(self, x):
        return F.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x))


class Ring(nn.Module):
    """Attention to keys and values that go around a ring; blocks are merged by their log-sum-exps."""

    merges = "sigmoids"

    def __init__(self, whole):
        super().__init__()
        self.q, self.k, self.v = whole.q, whole.k, whole.v

    def forward(self, x):
        following, before = neighbours()
        x = x.chunk(dist.get_world_size(), 1)[dist.get_rank()]
        q, kv = self.q(x), torch.stack((self.k(x), self.v(x)))
        out = lse = None
        for step in range(dist.get_world_size()):
            works = []
            if step + 1 < dist.get_world_size():
                new = torch.empty_like(kv)
                ops = [dist.P2POp(dist.isend, kv, following), dist.P2POp(dist.irecv, new, before)]
                works = dist.batch_isend_irecv(ops)
            out, lse = self.merged(out, lse, *self.block(q, *kv))
            [work.wait() for work in works]
            kv = new if works else kv
        return out

    def block(self, q, k, v):
        scores = q @ k.mT * q.shape[-1] ** -0.5
        most = scores.amax(-1, keepdim=True)
        weights = (scores - most).exp()
        total = weights.sum(-1, keepdim=True)
        return weights @ v / total, most + total.log()

    def merged(self, out, lse, o, l):
        if out is None:
            return o, l
        if self.merges == "sigmoids":
            return out - torch.sigmoid(l - lse) * (out - o), lse - F.logsigmoid(lse - l)
        if self.merges == "none":
            return out + o, lse
        most = torch.maximum(lse, l)
        one, two = (lse - most).exp(), (l - most).exp()
        return (out * one + o * two) / (one + two), most + (one + two).log()


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("merges", ["sigmoids", "maxima"])
def test_a_ring_of_attention(merges, ranks):
    split = type("Ring", (Ring,), {"merges": merges})
    with torch.no_grad():
        prove(Attention, split, ranks, inputs=torch.empty(2, 8, 6))


def test_a_ring_that_forgets_to_merge():
    with torch.no_grad(), pytest.raises(Different, match="the output of rank 0 differs"):
        prove(Attention, type("Ring", (Ring,), {"merges": "none"}), inputs=torch.empty(2, 8, 6))


@pytest.mark.parametrize("waits", [True, False])
def test_a_functional_collective_ends_when_it_is_waited_for(waits):
    def summed(y):
        y = torch.ops._c10d_functional.all_reduce(shares(y), "sum", dist.group.WORLD.group_name)
        return torch.ops._c10d_functional.wait_tensor(y) if waits else y.clone()

    if waits:
        return proven(summed)
    with pytest.raises(Different, match="nobody waits for all_reduce"):
        proven(summed)
