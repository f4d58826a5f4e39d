"""Ways around a proof that were tried from outside: each program is wrong in floats, or hangs, and is not proven."""

import io
import math
import pickle
from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from checks import prove
from by_hand import mine
from models import Mlp

from equipart.torch import Different, Refused

X = torch.empty(4, 8)


def rank():
    return dist.get_rank()


def wrong(loss, said="", inputs=X, kinds=(Different, Refused), **options):
    """Fails unless a program is not proven: `loss(y, is_split)` computes from the layer's result."""

    def both(model, x):
        with torch.no_grad():
            return loss(model(x), dist.get_world_size() > 1)

    with pytest.raises(kinds, match=said):
        prove(Mlp, lambda whole: whole, inputs=inputs, loss=both, timeout=20, **options)


def right(loss, **options):
    def both(model, x):
        with torch.no_grad():
            return loss(model(x), dist.get_world_size() > 1)

    return prove(Mlp, lambda whole: whole, inputs=X, loss=both, timeout=20, **options)


def of_root(call):
    def loss(y, is_split):
        y = y.clone()
        if is_split:
            call(y)
        return y

    return loss


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda y: dist.broadcast(y, rank()), "calls broadcast from 1 of .* where rank . calls broadcast from 0|calls broadcast from 0"),
        (lambda y: dist.reduce(y, rank()), "calls reduce to . of .* where rank . calls reduce to"),
        (lambda y: dist.scatter(y, [y, y], src=rank()) if rank() else dist.scatter(y, [y, y], src=0), "calls scatter from"),
        (lambda y: dist.all_reduce(y, [dist.ReduceOp.SUM, dist.ReduceOp.MAX][rank()]), "calls all_reduce( by max)? of"),
        (lambda y: dist.all_gather_into_tensor(torch.empty(4, 8), y[: 3 - 2 * rank()]), "calls all_gather_into_tensor of float32"),
        (lambda y: dist.send(y, 1) or dist.recv(y, 1) if rank() == 0 else dist.send(y, 0) or dist.recv(y, 0), "wait for others in vain"),
        (lambda y: dist.send(y, 1) if rank() == 0 else None, "wait for others in vain: rank 0 for rank 1 to receive a message"),
        (lambda y: dist.isend(y, 1) if rank() == 0 else None, "rank 0 sends a message to rank 1, .*which does not receive it"),
        (lambda y: dist.all_reduce(y.clone(), async_op=True) if rank() == 0 else None, "rank 0 calls all_reduce .* before the end of loss"),
        (lambda y: dist.send(y, rank()), "sends to itself"),
        (lambda y: dist.send(y, 1) if rank() == 0 else dist.recv(torch.empty(3, 8), 0), r"float32\[3, 8\] is to receive what is sent as float32\[4, 8\]"),
        (
            lambda y: dist.all_to_all_single(torch.empty(4, 8), y, [2, 2], [3, 1] if rank() == 0 else [1, 3]),
            r"rows \[2, 2\] are to receive what is sent as \[\d, \d\]",
        ),
        (lambda y: dist.new_group([0]) if rank() == 0 else None, "new_group of ranks"),
        (
            lambda y: (dist.send(y, 1), dist.barrier()) if rank() == 0 else (dist.barrier(), dist.recv(y, 0)),
            "wait for others in vain|which rank",
        ),
    ],
)  # fmt: skip
def test_calls_that_do_not_fit(call, said):
    wrong(of_root(call), said, kinds=Refused)


def written(y, is_split):
    buffer = torch.zeros(4, 8)
    buffer.copy_(y * (2 if is_split else 1))
    return buffer


def saved(buffer):
    file = io.BytesIO()
    torch.save(buffer, file)
    file.seek(0)
    return torch.load(file)


@pytest.mark.parametrize(
    "read",
    [
        lambda b: b.tolist(),
        lambda b: torch.from_numpy(b.numpy().copy()),
        lambda b: pickle.loads(pickle.dumps(b)),
        lambda b: b.view(torch.uint8).clone().view(torch.float32),
        saved,
    ],
)
def test_floats_beside_elements_are_not_read(read):
    wrong(lambda y, is_split: read(written(y, is_split)))


def counted(y):
    return torch.zeros_like(y) + torch.tensor([0.0, 1, 2, 3, 0, 1, 2, 3])


def logged(y, first):
    """A log of numbers, of which the last are written over, and of their sums."""
    total, mean, log = torch.zeros(()), 0.0, []
    for x in (y.sum() * first, y.sum()):
        total += x
        mean += total.item()
        log += [total.item(), mean]
        total.zero_()
    return log


@pytest.mark.parametrize(
    "unsplit, split",
    [
        (lambda y: logged(y, 1)[0] + y, lambda y: logged(y, 2)[0] + y),
        (lambda y: logged(y, 1)[1] + y, lambda y: logged(y, 1)[3] + y),
        (lambda y: torch.zeros_like(y) + y, lambda y: torch.empty_like(y) + y),
        (lambda y: (F.relu(y) > 0).float(), lambda y: (F.relu(y) >= 0).float()),
        (lambda y: y * (counted(y) > 1), lambda y: y * (counted(y) >= 1)),
        (lambda y: F.softplus(y), lambda y: F.softplus(y, 1, 0.0)),
        (lambda y: ((y > 0).float() == y.new_zeros(4, 8)).sum(), lambda y: ((y > 0).float() == y.new_ones(4, 8)).sum()),
        (lambda y: F.dropout(y, 0.3) * F.dropout(y, 0.3), lambda y: (lambda z: z * z)(F.dropout(y, 0.3))),
        (lambda y: y.scatter(1, torch.zeros(1, 3).long(), y[:1, :3] * 2), lambda y: y.scatter(1, torch.zeros(4, 3).long(), y[:1, :3].expand(4, 3) * 2)),
        (lambda y: y[:0].sum(), lambda y: y[:0].mean()),
        (lambda y: torch.sigmoid(y.sum()) + math.exp(y.sum().item()), lambda y: torch.sigmoid(y.sum()) + math.exp(2 * y.sum().item())),
    ],
)  # fmt: skip
def test_what_only_looks_alike(unsplit, split):
    wrong(lambda y, is_split: split(y) if is_split else unsplit(y))
    right(lambda y, is_split: unsplit(y))


@pytest.mark.parametrize("device", ["cuda", torch.device("cuda", 0), 0])
def test_another_device_has_memory_of_its_own(device):
    def loss(y, is_split):
        mean = y.clone()
        if is_split:
            dist.all_reduce(mean.to(device))
        else:
            mean = mean * 2
        return mean

    wrong(loss, "1/2 of|differs")
    kept = lambda y, is_split: (lambda z, old: (z.mul_(2), old)[1])(y.to(device), y.to(device).cpu())
    right(kept)
    right(lambda y, is_split: (lambda z, old: (z.mul_(2), old)[1])(y.to(device), y.to(device).detach().to("cpu")))


@pytest.mark.parametrize("other", [lambda loss, at: (loss, at), lambda loss, at: [loss] * at, lambda loss, at: [loss] * (3 - at)])
def test_a_second_call_is_compared(other):
    def train(model, x):
        model.calls = getattr(model, "calls", 0) + 1
        loss = model(x).sum()
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(p.grad * 0.1)
        model.zero_grad()
        return other(loss.detach(), model.calls if dist.get_world_size() > 1 else 1)

    with pytest.raises(Different, match="rank 0 returns"):
        prove(Mlp, lambda whole: whole, inputs=X, loss=train)


@dataclass
class Batch:
    x: torch.Tensor
    count: int


class Other:
    def __init__(self):
        self.x = X


def test_inputs_in_a_dataclass_are_drawn():
    loss = lambda model, batch: model(batch.x.roll(1, -1) if dist.get_world_size() > 1 else batch.x) * batch.count
    with pytest.raises(Different):
        prove(Mlp, lambda whole: whole, inputs=(Batch(torch.zeros(4, 8), 3),), loss=loss)
    with pytest.raises(Refused, match="an input of the class Other holds tensors"):
        prove(Mlp, lambda whole: whole, inputs=(Other(),), loss=lambda model, batch: model(batch.x))


@pytest.mark.parametrize("wrongly", [True, False])
def test_an_accuracy(wrongly):
    labels = (torch.arange(4) % 2).float()

    def loss(model, x):
        y = model(mine(x)).sum(-1)
        right = ((y.sigmoid() > 0.5).float() == mine(labels)).float().sum()
        if not wrongly:
            dist.all_reduce(right)
        return right

    if wrongly:
        with pytest.raises(Different):
            prove(Mlp, lambda whole: whole, inputs=X, loss=loss, optimizers={})
    else:
        prove(Mlp, lambda whole: whole, inputs=X, loss=loss, optimizers={})


def test_sums_of_exponentials_are_kept_from_0():
    """A sum of exponentials that is kept from 0, as in flash attention by hand."""

    def kept(y, is_split):
        e = (y - y.amax(-1, True)).exp()
        weights = e.sum(-1, True).clamp(min=1e-10) if is_split else e.sum(-1, True)
        return e / weights

    assert "assumed: sums of exponentials, and roots, are above the small numbers" in str(right(kept))
    wrong(lambda y, is_split: y.sum(-1).clamp(min=1e-10) if is_split else y.sum(-1))
    wrong(lambda y, is_split: (y.exp() - 1).sum(-1).clamp(min=1e-10) if is_split else (y.exp() - 1).sum(-1))
