"""Layers and schemes written by hand: each is proven."""

import by_hand
import pytest
import torch
import torch.distributed as dist
from models import IDS, TARGETS, Llama, Mlp, cross_entropy
from torch import nn

from checks import prove, with_all_keys

from equipart.torch import Different

X = torch.empty(4, 8)


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("sequence", [False, True])
def test_columns_and_rows(ranks, sequence):
    proof = with_all_keys(Mlp, lambda whole: by_hand.ParallelMlp(whole, sequence), ranks, inputs=X)
    assert proof.tensors["gradients"] == 4
    assert proof.log2_error <= -60
    assert proof.collectives > 0


def test_a_module_that_builds_itself_is_filled_by_name():
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(8, 16 // dist.get_world_size()), nn.Linear(16 // dist.get_world_size(), 8)

        def forward(self, x):
            y = torch.nn.functional.silu(self.up(by_hand.Copy.apply(x)))
            return by_hand.Reduce.apply(y @ self.down.weight.T) + self.down.bias

    prove(Mlp, lambda: Half(), inputs=X)


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_split_vocabulary(ranks):
    ids = torch.tensor([0, 5, 11, 6, 5]), torch.tensor([11, 4, 0, 7, 6])
    prove(by_hand.Vocabulary, by_hand.ParallelVocabulary, ranks, inputs=ids)

    class NoMaximum(by_hand.ParallelVocabulary):
        shares_maxima = False

    with pytest.raises(Different, match=r"(?s)the first tensor that differs, .*by_hand.py"):
        prove(by_hand.Vocabulary, NoMaximum, ranks, inputs=ids)


def test_gradients_of_inputs():
    proof = prove(Mlp, by_hand.ParallelMlp, inputs=X.clone().requires_grad_())
    assert proof.tensors["gradients"] == 5

    class NoSum(by_hand.ParallelMlp):
        def forward(self, x):
            y = nn.functional.silu(nn.functional.linear(x, self.up, self.up_bias))
            return by_hand.Reduce.apply(nn.functional.linear(y, self.down)) + self.down_bias

    prove(Mlp, NoSum, inputs=X)
    with pytest.raises(Different, match="the gradient of input 0 of rank 0 differs .*: it is a partial sum"):
        prove(Mlp, NoSum, inputs=X.clone().requires_grad_())


def data_parallel(model, ids, targets):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    loss = cross_entropy(model, ids.chunk(ranks)[rank], targets.chunk(ranks)[rank])
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= ranks
    return loss


def test_data_parallelism_by_hand():
    prove(Llama, lambda whole: whole, inputs=(IDS, TARGETS), loss=data_parallel, outputs="mean")


def test_an_average_over_ranks():
    def averaged(model, x):
        y = model(x)
        dist.all_reduce(y, op=dist.ReduceOp.AVG)
        largest = torch.tensor(float(dist.get_rank()))
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        assert largest == dist.get_world_size() - 1
        return y

    with torch.no_grad():
        prove(Mlp, lambda whole: whole, 3, inputs=X, loss=averaged)


def test_a_program_that_clips_and_steps_by_itself():
    def train(model, ids, targets):
        loss = data_parallel(model, ids, targets)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        torch.optim.AdamW(model.parameters(), lr=0.5).step()
        return loss

    proof = prove(Llama, lambda whole: whole, inputs=(IDS, TARGETS), loss=train, outputs="mean")
    assert proof.tensors["parameters after two steps of its own optimizer"] == len(list(Llama().parameters()))


def test_a_pipeline_by_messages():
    def staged(model, x):
        if dist.get_world_size() == 1:
            loss = model(x).sum()
            loss.backward()
            return loss
        if dist.get_rank() == 0:
            y = torch.nn.functional.silu(model.up(x))
            dist.send(y.detach(), 1)
            gradient = torch.empty_like(y)
            dist.recv(gradient, 1)
            y.backward(gradient)
            loss = torch.empty_like(x[0, 0])
            dist.recv(loss, 1)
            return loss
        y = torch.empty_like(x).repeat(1, 2)
        dist.recv(y, 0)
        loss = model.down(y.requires_grad_()).sum()
        loss.backward()
        dist.send(y.grad, 0)
        dist.send(loss.detach(), 0)
        return loss

    class Stage(nn.Module):
        def __init__(self, whole):
            super().__init__()
            name = ("up", "down")[dist.get_rank()]
            setattr(self, name, getattr(whole, name))

    prove(Mlp, Stage, inputs=X, loss=staged)


def test_dropout_is_the_same_in_every_layout():
    class Dropping(Mlp):
        def forward(self, x):
            return nn.functional.dropout(super().forward(x), 0.5)

    class Parallel(by_hand.ParallelMlp):
        def forward(self, x):
            return nn.functional.dropout(super().forward(x), 0.5)

    proof = prove(Dropping, Parallel, inputs=X)
    assert any("dropout" in assumed for assumed in proof.assumptions)


@pytest.mark.parametrize("change", ["recomputed", "compiled", "bf16", "autocast", "accumulated"])
def test_a_program_that_is(change):
    """A program that recomputes activations, is compiled, has another dtype, or writes into zeros of its own."""

    def called(model, x):
        if change == "recomputed":
            return torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False)
        if change == "compiled":
            return torch.compile(model)(x)
        if change == "autocast":
            with torch.autocast("cpu", torch.bfloat16):
                return model(x)
        if change == "accumulated":
            out = torch.zeros(4, 8)
            out += model(x)
            return out
        return model(x)

    dtype = torch.bfloat16 if change == "bf16" else torch.float32
    build = lambda: Mlp().to(dtype)
    prove(build, by_hand.ParallelMlp, inputs=torch.empty(4, 8, dtype=dtype), loss=called)
