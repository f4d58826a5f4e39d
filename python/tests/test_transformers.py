"""Models of transformers, unchanged: unsplit against plans of DTensor, and against transformers' own plans."""

import models
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

from checks import prove

from equipart.torch import Different

transformers = pytest.importorskip("transformers")

IDS = torch.arange(12).view(2, 6) * 7 % 24
SIZES = models.SIZES | dict(bos_token_id=None, eos_token_id=None)
ATTENTION = {"q_proj": ColwiseParallel, "k_proj": ColwiseParallel, "v_proj": ColwiseParallel, "o_proj": RowwiseParallel}
MLP = {"gate_proj": ColwiseParallel, "up_proj": ColwiseParallel, "down_proj": RowwiseParallel}


def llama(**more):
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, **more))


def qwen3(**more):
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SIZES, head_dim=4, **more))


def mixtral(**more):
    more = dict(num_local_experts=4, num_experts_per_tok=2, experts_implementation="eager", **more)
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(**SIZES, **more))


def gpt2():
    sizes = dict(vocab_size=24, n_embd=16, n_layer=2, n_head=4, n_positions=32, bos_token_id=None, eos_token_id=None)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))
    return model


def loss(model, ids):
    return model(input_ids=ids, labels=ids, use_cache=False).loss


def plan(model, parts, more={}):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    layers = range(len(model.model.layers))
    styles = {f"model.layers.{i}.{name}": style() for i in layers for name, style in parts.items()}
    return parallelize_module(model, mesh, styles | more)


def tensor_parallel(model):
    parts = {f"self_attn.{name}": style for name, style in ATTENTION.items()}
    return plan(model, parts | {f"mlp.{name}": style for name, style in MLP.items()})


def test_llama():
    proof = prove(llama, tensor_parallel, inputs=IDS, loss=loss)
    assert proof.tensors["gradients"] == 21


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_llama_by_its_own_plan(attention):
    prove(lambda: llama(attn_implementation=attention), own_plan, inputs=IDS, loss=loss)


def own_plan(model):
    tensor_parallel = pytest.importorskip("transformers.distributed.tensor_parallel")
    from transformers.distributed import DistributedConfig

    ranks = dist.get_world_size()
    plan, *_ = model._resolve_parallel_plans(DistributedConfig(tp_size=ranks))
    return tensor_parallel.apply_tensor_parallelism(model, init_device_mesh("cpu", (ranks,)), plan)


@pytest.mark.parametrize("build", [qwen3, mixtral], ids=["qwen3", "mixtral"])
def test_others_by_their_own_plan(build):
    prove(build, own_plan, inputs=IDS, loss=loss)


def test_qwen3_needs_its_norms_of_heads_to_be_summed():
    """A plan for Llama leaves the gradients of `q_norm` and `k_norm` partial: each rank has some of the heads."""
    with pytest.raises(Different) as error:
        prove(qwen3, tensor_parallel, inputs=IDS, loss=loss)
    assert "self_attn.q_norm.weight" in str(error.value)
    assert "partial sum that nobody summed" in str(error.value)

    def split(model):
        parts = {f"self_attn.{name}": style for name, style in ATTENTION.items()}
        parts |= {f"mlp.{name}": style for name, style in MLP.items()}
        heads = lambda: SequenceParallel(sequence_dim=2, use_local_output=True)
        return plan(model, parts | {"self_attn.q_norm": heads, "self_attn.k_norm": heads})

    prove(qwen3, split, inputs=IDS, loss=loss)


def test_mixtral():
    prove(
        mixtral,
        lambda model: plan(model, {f"self_attn.{name}": style for name, style in ATTENTION.items()}),
        inputs=IDS,
        loss=loss,
    )


def test_gpt2():
    """Rows and columns of GPT-2's transposed layers, by hand."""
    import by_hand
    from torch import nn

    class Mlp(nn.Module):
        def __init__(self, whole):
            super().__init__()
            self.act = whole.act
            self.up, self.up_bias = (
                nn.Parameter(by_hand.mine(whole.c_fc.weight, 1)),
                nn.Parameter(by_hand.mine(whole.c_fc.bias)),
            )
            self.down, self.down_bias = (
                nn.Parameter(by_hand.mine(whole.c_proj.weight)),
                nn.Parameter(whole.c_proj.bias),
            )

        def forward(self, x):
            y = self.act(by_hand.Copy.apply(x) @ self.up + self.up_bias)
            return nn.functional.dropout(by_hand.Reduce.apply(y @ self.down) + self.down_bias, 0.1)

    def split(model):
        for block in model.transformer.h:
            block.mlp = Mlp(block.mlp)
        return model

    proof = prove(gpt2, split, inputs=IDS, loss=loss)
    assert proof.tensors["gradients"] == 28


def fully_sharded(model):
    for layer in model.model.layers:
        fully_shard(layer)
    return fully_shard(model)


def of_mine(model, ids):
    return loss(model, ids.chunk(dist.get_world_size())[dist.get_rank()])


def test_llama_fully_sharded():
    prove(llama, fully_sharded, inputs=IDS, loss=of_mine, outputs="mean")
