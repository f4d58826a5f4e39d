"""Families of language models in transformers 5.24, each under the plan of its own configuration, on 2 ranks.

A dozen of different kinds; with EQUIPART_ALL=1 all that have a plan, but for those in `NOT`.
"""

import dataclasses
import importlib
import os
import re
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

NEEDS = "transformers.distributed.tensor_parallel"

from edits import edit

import transformers
from transformers.distributed import DistributedConfig, expert_parallel
from transformers.distributed import tensor_parallel as styles
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

IDS = torch.arange(12).view(2, 6) * 7 % 24
TINY = {  # of fields with these names
    r"vocab_size|vocab_size_per_layer_input|unpadded_vocab_size": 24,
    r"hidden_size|n_embd|dim_model_base|moe_hidden_size|index_head_dim": 16,
    r".*intermediate_size|.*ffn_hidden_size|intermediate_size_mlp|share_expert_dim": 16,
    r"num_hidden_layers|n_layer|num_layers|n_input_layers|n_output_layers": 2,
    r".*num_attention_heads|n_head|index_n_heads|linear_num_value_heads|linear_num_heads|mamba_(n|num)_heads": 4,
    r".*num_key_value_heads|linear_num_key_heads": 2,
    r"(?!qk_head).*head_dim|.*rotary_dim": 4,
    r".*_rank": 8,
    r"(num_local|num|n_routed|moe_num)_experts|zero_expert_num": 4,
    r"num_experts_per_tok|moe_k|moe_topk|topk_group": 2,
    r"n_group|first_k_dense_replace|num_dense_layers|n_groups|num_kv_shared_layers|o_groups": 1,
    r"sliding_window|sliding_window_size|attention_chunk_size|index_topk": 3,
    r"max_position_embeddings|n_positions|n_ctx": 32,
    r"(pad|bos|eos)_token_id": 23,
    r"mlp_only_layers": [0],
    r"hidden_size_per_layer_input|mamba_d_state|ssm_state_size|mamba_head_dim|d_rel": 8,
    r"mamba_chunk_size|chunk_size|block_size": 4,
    r"mamba_d_ssm": 32,
    r"tie_word_embeddings": False,
}


MORE = {  # what some families need besides, and numbers that are not fields
    "bamba": dict(attn_layer_indices=[1]),
    "beam": dict(mlp_layer_types=["dense", "sparse"]),
    "bailing_hybrid": dict(num_hidden_layers=1, layer_group_size=2),
    "cohere_compass_text": dict(
        rope_parameters={
            kind: dict(rope_type="default", rope_theta=10000.0, mrope_section=[1, 1, 0])
            for kind in ("full_attention", "sliding_attention")
        }
    ),
    "deepseek_v4": dict(partial_rotary_factor=0.5),
    "diffusion_gemma_text": dict(top_k_experts=2, global_head_dim=4, num_global_key_value_heads=2),
    "dots1": dict(n_shared_experts=1),
    "embedding_gemma2_text": dict(global_head_dim=4, num_global_key_value_heads=2),
    "ernie4_5_vl_moe_text": dict(moe_intermediate_size=[16, 16]),
    "gemma4_text": dict(global_head_dim=4, num_global_key_value_heads=2),
    "gemma4_unified_text": dict(global_head_dim=4, num_global_key_value_heads=2),
    "glm4v_moe_text": dict(rope_parameters=dict(rope_type="default", rope_theta=10000.0, mrope_section=[1, 0, 0])),
    "glm5_next_text": dict(mlp_layer_types=["dense", "sparse"], index_kpool=3, qk_rope_head_dim=0),
    "jamba": dict(attn_layer_period=2, attn_layer_offset=1),
    "kimi_linear": dict(num_hidden_layers=1),
    "lfm2_moe": dict(layer_types=["conv", "full_attention"]),
    "neomme": dict(head_dim=16),
    "paddleocr_vl_text": dict(rope_parameters=dict(rope_type="default", rope_theta=10000.0, mrope_section=[1, 1, 0])),
    "qwen4_exp_text": dict(
        indexer_n_heads=4,
        indexer_kv_heads=1,
        indexer_budget=4,
        indexer_compress_ratio=2,
        ngram_vocab_size_base=32,
        split_ngram_parts=2,
        make_ngram_vocab_size_divisible_by=2,
        heads_per_ngram=2,
        hc_lowrank=8,
    ),
    "step3p5": dict(mlp_layer_types=["dense", "sparse"]),
    "unlimited_ocr_text": dict(num_key_value_heads=4),
}


def tiny(config):
    """A configuration of a family, with small numbers in place of its own."""
    fields = {field.name: field.default for field in dataclasses.fields(config)}
    small = {name: value for name in fields for pattern, value in TINY.items() if re.fullmatch(pattern, name)}
    if "kv_lora_rank" in fields or fields.get("num_key_value_heads", 0) is None:
        small["num_key_value_heads"] = 4  # each of its own
    if "n_group" in fields:
        small["topk_group"] = 1
    if not fields.get("num_kv_shared_layers"):
        small.pop("num_kv_shared_layers", None)
    if "mrope_section" in Path(sys.modules[config.__module__].__file__).read_text():
        small["rope_parameters"] = dict(rope_type="default", rope_theta=10000.0, mrope_section=[1, 1, 0])
    small |= dict(attn_implementation="eager", experts_implementation="eager") | MORE.get(config.model_type, {})
    kinds = set(getattr(config(**small), "layer_types", None) or ())
    if (
        len(kinds) == 1
        and kinds <= {"sliding_attention", "linear_attention", "conv"}
        and small.get("num_kv_shared_layers", small["num_hidden_layers"]) == 2
    ):
        small["layer_types"] = [*kinds, "full_attention"]
    return config(**small)


def families():
    """Configurations of language models that have a plan of their own, by family."""
    out = {}
    for file in sorted(Path(transformers.__file__).parent.glob("models/*/configuration_*.py")):
        if "base_model_tp_plan" in file.read_text():
            module = importlib.import_module(f"transformers.models.{file.parent.name}.{file.stem}")
            for name, of in vars(module).items():
                if (
                    isinstance(of, type)
                    and of.__module__ == module.__name__
                    and name == of.__name__
                    and "Vision" not in name
                ):
                    if getattr(of, "base_model_tp_plan", None) and not of.sub_configs:
                        out[of.model_type or name] = of
    return out


def model_of(config):
    """The causal language model of a configuration, or else its model without a head."""
    if config in MODEL_FOR_CAUSAL_LM_MAPPING:
        return MODEL_FOR_CAUSAL_LM_MAPPING[config]
    module = importlib.import_module(config.__module__.replace("configuration_", "modeling_"))
    own = [of for of in vars(module).values() if isinstance(of, type) and getattr(of, "config_class", None) is config]
    return next(of for of in own if of.__name__.endswith("Model") and "PreTrained" not in of.__name__)


def by_plan(experts):
    """Splits a model by its own plan: its layers among ranks, or its experts, in one of two ways."""

    def split(model):
        ranks = dist.get_world_size()
        mesh = init_device_mesh("cpu", (ranks,))
        plan, of_experts, _ = model._resolve_parallel_plans(
            DistributedConfig(tp_size=ranks, **(dict(ep_size=ranks, ep_implementation=experts) if experts else {}))
        )
        model = styles.apply_tensor_parallelism(model, mesh, plan)
        if experts:
            model = expert_parallel.apply_expert_parallelism(model, mesh, mesh, of_experts, ep_implementation=experts)
        return model

    return split


def loss(model, ids):
    if type(model).__name__.endswith("LM"):
        return model(input_ids=ids, labels=ids, use_cache=False).loss
    return model(input_ids=ids, use_cache=False)[0]


def program(family, experts=None):
    config = CONFIG_MAPPING[family] if family in CONFIG_MAPPING else families()[family]
    deep = dict(log2_error=None) if family in DEEP else {}
    return dict(
        unsplit=lambda: model_of(config)(tiny(config)), split=by_plan(experts), ranks=2, inputs=IDS, loss=loss, **deep
    )


DEEP = ("bailing_hybrid", "deepseek_v4", "kimi_linear")  # compared without a bound
NOT = {
    "apertus": "gradients of its activation's parameters stay partial, by floats, too",
    "apertus1p5_text": "the same as apertus",
    "qwen3_omni_moe_text": "the plan lacks the norms of heads, whose gradients stay partial: by floats, too",
    "qwen3_vl_moe_text": "the same as qwen3_omni_moe_text",
    "sarvam_moe": "the same as qwen3_omni_moe_text",
    "inkling2_text": "the plan cuts packed gates and values as if they were one, and the loss is off, by floats, too",
    "inkling2_loop_text": "the same as inkling2_text",
    "inkling_text": "the norm within its embedding meets a partial sum, which PyTorch does not run",
    "muse_glimmer_text": "the same as inkling_text",
    "muse_spark_text": "the same as inkling_text",
    "doge": "its mask has all heads where a rank has some: PyTorch does not run it",
    "neomme": "its scales have all heads where a rank has some: PyTorch does not run it",
    "esmc": "its norm over all heads meets some: PyTorch does not run it",
    "llama4_text": "writes into a view of a distributed tensor, which PyTorch does not run with gradients",
    "glm5_next_text": "takes elements where a comparison of values says so, which is refused",
    "phimoe": "masks by a comparison of values, which is refused",
    "higgs_audio_v2": "takes codes of sound",
    "muse_glimmer_assistant": "takes hidden states of another model",
    "voxtral_realtime_text": "takes hidden states of another model",
    "qwen3_omni_moe_talker_code_predictor": "takes hidden states of another model",
    "qwen3_omni_moe_talker_text": "its configuration alone does not build a model",
    "deepseek_ocr2_text": "its configuration alone does not build a model",
    "ernie4_5_vl_moe_text": "its configuration alone does not build a model",
    "t5_gemma_module": "has no model of its own",
    "t5gemma2_text": "has no model of its own",
    "t5gemma2_decoder": "has no model of its own",
}
FEW = """llama gemma2 cohere phi3 gpt_neox nemotron olmo2 qwen3 qwen3_moe mixtral deepseek_v2 minimax_m2 gpt_oss bamba
qwen3_next""".split()
PROVEN = sorted(set(families()) - set(NOT))
RIGHT = {name: lambda name=name: program(name) for name in (PROVEN if os.environ.get("EQUIPART_ALL") else FEW)}
RIGHT["mixtral, experts apart"] = lambda: program("mixtral", "all_to_all")
RIGHT["mixtral, experts apart, sums"] = lambda: program("mixtral", "all_reduce")


def of(cls, name, old, new):
    return edit(getattr(styles, cls), name, old, new)


WRONG = {
    "a product is not summed": (
        "llama",
        of(
            "RowwiseParallel",
            "transform_output_post_forward",
            "if output.placements != (self.output_layouts,):",
            "if False:",
        ),
        "tensor_parallel.py",
    ),
    "gradients of heads' norms stay partial": (
        "qwen3",
        of(
            "ReplicatedWithGradAllReduce",
            "install_forward",
            "dist.all_reduce(param.grad, group=mesh.get_group())",
            "pass",
        ),
        "self_attn.q_norm.weight",
    ),
    "experts are not summed": (
        "mixtral",
        of(
            "MoeExpertsParallel",
            "transform_output_post_forward",
            "_AllReduceForward.apply(output, process_group)",
            "output",
        ),
        "mlp",
    ),
    "gradients of what experts take stay partial": (
        "mixtral",
        of(
            "MoeExpertsParallel",
            "transform_inputs_pre_forward",
            "_AllReduceBackward.apply(hidden_states, tp_group)",
            "hidden_states",
        ),
        "mlp",
    ),
    "gradients of experts' weights stay partial": (
        "qwen3_moe",
        of(
            "MoeExpertsParallel",
            "transform_inputs_pre_forward",
            "_AllReduceBackward.apply(top_k_weights, tp_group)",
            "top_k_weights",
        ),
        "mlp.gate",
    ),
    "packed columns are cut as if they were one": (
        "mixtral",
        of(
            "PackedColwiseParallel",
            "shard_param",
            "_StridedShard(dim=shard_dim, split_factor=self.split_factor)",
            "Shard(shard_dim)",
        ),
        "mlp",
    ),
    "gradients of keys' rotated part stay partial": (
        "deepseek_v2",
        of(
            "MlaKvAProjParallel",
            "transform_output_post_forward",
            "_AllReduceBackward.apply(rope_output, mesh.get_group())",
            "rope_output",
        ),
        "modeling_deepseek_v2.py",
    ),
    "a part that is not rotated is summed in its place": (
        "deepseek_v2",
        of(
            "MlaKvAProjParallel",
            "transform_output_post_forward",
            "output.shape[-1] - rope_dim, rope_dim]",
            "rope_dim, output.shape[-1] - rope_dim]",
        ),
        "modeling_deepseek_v2.py",
    ),
    "a part of the vocabulary is not summed": (
        "gpt_oss",
        of(
            "EmbeddingParallel", "transform_output_post_forward", "if output.placements != (Replicate(),):", "if False:"
        ),
        "embed_tokens",
    ),
    "a product of columns is not gathered": (
        "llama",
        of(
            "ColwiseParallel",
            "transform_output_post_forward",
            "if output.placements != (self.output_layouts,):",
            "if False:",
        ),
        "",
    ),
    "all ranks' own experts are counted from 0": (
        "mixtral, experts apart, sums",
        edit(expert_parallel.AllReduceEP, "__call__", "!= self.ep_mesh.get_local_rank()", "!= 0"),
        "mlp",
    ),
    "tokens come back in the order of experts": (
        "mixtral, experts apart",
        edit(
            expert_parallel.AllToAllEP,
            "_combine_tokens",
            "token_outputs[state.order] = recv_out",
            "token_outputs.copy_(recv_out)",
        ),
        "mlp",
    ),
}
