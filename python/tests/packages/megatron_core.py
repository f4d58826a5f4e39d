"""Megatron-core's GPTModel, split by its own layers, schedules, gradient buffers and distributed optimizer.

The unsplit program is the same model on one rank, whose loss, gradients and steps are those of plain PyTorch. Transformer
Engine and Apex are not there: attention, norms and Adam are the plain ones of Megatron and of PyTorch.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

NEEDS = "megatron.core"

from megatron.core import parallel_state as groups
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.transformer_config import TransformerConfig

ROWS, LENGTH, VOCABULARY = 4, 4, 32
IDS = torch.tensor([[0, 5, 11, 31], [16, 15, 8, 23], [7, 24, 1, 30], [17, 9, 22, 12]])
INPUTS = IDS, torch.arange(LENGTH).expand(ROWS, LENGTH), IDS.roll(-1, 1)
LLAMA = dict(position="rope", num_query_groups=4, gated_linear_unit=True, activation_func=F.silu, normalization="RMSNorm", add_bias_linear=False)


def gpt(tp=1, pp=1, cp=1, ep=1, etp=None, vpp=None, position="learned_absolute", tied=False, num_layers=2, **more):
    """The stages that a rank has of a model, on so many ranks of each kind."""
    groups.destroy_model_parallel()
    groups.initialize_model_parallel(
        tp, pp, vpp, context_parallel_size=cp, expert_model_parallel_size=ep, expert_tensor_parallel_size=etp
    )
    model_parallel_cuda_manual_seed(1, force_reset_rng=True)
    config = TransformerConfig(
        num_layers=num_layers, hidden_size=32, ffn_hidden_size=32, num_attention_heads=4 if "num_query_groups" not in more else 8,
        use_cpu_initialization=True, hidden_dropout=0.0, attention_dropout=0.0,
        tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp, virtual_pipeline_model_parallel_size=vpp,
        context_parallel_size=cp, expert_model_parallel_size=ep, expert_tensor_parallel_size=etp, pipeline_dtype=torch.float32,
        **more,
    )  # fmt: skip
    spec = get_gpt_layer_local_spec(
        config.num_moe_experts, config.moe_grouped_gemm, config.qk_layernorm, normalization=config.normalization
    )
    return [
        GPTModel(
            config, spec, VOCABULARY, LENGTH, groups.is_pipeline_first_stage(False, stage), groups.is_pipeline_last_stage(False, stage),
            position_embedding_type=position, share_embeddings_and_output_weights=tied, vp_stage=stage,
        )
        for stage in (range(vpp) if vpp else [None])
    ]  # fmt: skip


def fill(stage, whole):
    """Copies a rank's part of the whole model's parameters into a stage."""
    whole, tp = dict(whole.named_parameters()), groups.get_tensor_model_parallel_rank()
    layers = getattr(stage.decoder, "layers", [])
    with torch.no_grad():
        for name, mine in stage.named_parameters():
            if name.startswith("decoder.layers."):
                _, _, number, rest = name.split(".", 3)
                name = f"decoder.layers.{layers[int(number)].layer_number - 1}.{rest}"
            if "local_experts." in name:
                before, number, rest = name.split("local_experts.")[0], *name.split("local_experts.")[1].split(".", 1)
                first = groups.get_expert_model_parallel_rank() * stage.config.num_moe_experts // stage.config.expert_model_parallel_size
                name = f"{before}local_experts.{first + int(number)}.{rest}"
                tp = groups.get_expert_tensor_parallel_rank()
            else:
                tp = groups.get_tensor_model_parallel_rank()
            if name == "output_layer.weight" and name not in whole:
                name = "embedding.word_embeddings.weight"
            of = whole[name]
            if of.shape != mine.shape:
                dim = mine.partition_dim
                halves = of.chunk(2, dim) if "linear_fc1" in name and stage.config.gated_linear_unit else [of]
                parts = [half.split(mine.shape[dim] // len(halves), dim)[tp] for half in halves]
                of = torch.cat(parts, dim)
            mine.copy_(of)


def layers_only(**options):
    """Tensor parallelism alone: the model's own loss."""

    def split(whole):
        (stage,) = gpt(**options)
        fill(stage, whole)
        return stage

    return split


def loss(model, ids, positions, labels):
    return model(ids, positions, None, labels=labels)


def program(ranks, unsplit=None, **options):
    """A model that is split by its layers alone."""
    named = dict(unsplit or {}, **{name: options[name] for name in options if name not in ("tp", "sequence_parallel")})
    return dict(unsplit=lambda: gpt(**named)[0], split=layers_only(**options), ranks=ranks, inputs=INPUTS, loss=loss)


RIGHT = {
    "tensor parallelism on 2 ranks": lambda: program(2, tp=2),
    "tensor parallelism on 4 ranks": lambda: program(4, tp=4),
    "rotary positions, grouped queries and SwiGLU on 2 ranks": lambda: program(2, tp=2, **LLAMA),
    "rotary positions, grouped queries and SwiGLU on 4 ranks": lambda: program(4, tp=4, num_layers=4, **LLAMA),
    "tied embeddings": lambda: program(2, tp=2, tied=True),
}
WRONG = {}
