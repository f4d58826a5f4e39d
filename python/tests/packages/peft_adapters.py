"""peft 0.21.2's adapters: LoRA over transformers' tensor parallelism, and LoRA and DoRA among replicas and shards."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from edits import edit

NEEDS = "peft"

import peft
import transformers
from models import SIZES
from transformers.distributed import DistributedConfig, tensor_parallel

IDS = torch.arange(24).view(4, 6) * 7 % 24
EVERY = "q_proj k_proj v_proj o_proj gate_proj up_proj down_proj".split()


def llama():
    sizes = SIZES | dict(num_hidden_layers=1, bos_token_id=None, eos_token_id=None)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))


def adapted(model, targets=EVERY, **options):
    config = peft.LoraConfig(
        r=2, lora_alpha=6, target_modules=targets, init_lora_weights=not options.get("use_dora"), **options
    )
    return peft.get_peft_model(model, config)


def by_plan(whole, **options):
    """A model that is split by its own plan, then given adapters; the values of all are those of the whole one."""
    model, ranks = llama(), dist.get_world_size()
    model.config.distributed_config = DistributedConfig(tp_size=ranks)
    model._device_mesh = init_device_mesh("cpu", (ranks,))
    plan, *_ = model._resolve_parallel_plans(model.config.distributed_config)
    model = adapted(tensor_parallel.apply_tensor_parallelism(model, model._device_mesh, plan), **options)
    values = dict(whole.named_parameters())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            value = values[name]
            if isinstance(parameter, DTensor):
                value = distribute_tensor(value, parameter.device_mesh, parameter.placements).to_local()
            (parameter.to_local() if isinstance(parameter, DTensor) else parameter).copy_(value)
    return model


def replicas(model):
    return DistributedDataParallel(model)


def sharded(model):
    for layer in model.get_base_model().model.layers:
        fully_shard(layer)
    return fully_shard(model)


def mine(model, ids):
    """The loss of a rank's rows."""
    ids = ids.chunk(dist.get_world_size())[dist.get_rank()]
    return model(input_ids=ids, labels=ids, use_cache=False).loss


def program(split, loss=mine, ranks=2, **options):
    outputs = "mean" if loss is mine else "equal"
    return dict(
        unsplit=lambda: adapted(llama(), **options), split=split, ranks=ranks, inputs=IDS, loss=loss, outputs=outputs
    )


def planned(**options):
    every = lambda model, ids: model(input_ids=ids, labels=ids, use_cache=False).loss
    return program(lambda whole: by_plan(whole, **options), every, **options)


RIGHT = {
    "by a plan": lambda: planned(),
    "by a plan, of a stable rank": lambda: planned(targets=["q_proj", "o_proj"], use_rslora=True),
    "by a plan, of the head": lambda: planned(targets=["lm_head"]),
    "by a plan, of the tokens": lambda: planned(targets=["embed_tokens", "q_proj"]),
    "replicas": lambda: program(replicas),
    "replicas, DoRA": lambda: program(replicas, targets=["q_proj", "down_proj"], use_dora=True),
    "shards": lambda: program(sharded),
    "shards, DoRA": lambda: program(sharded, targets=["q_proj", "down_proj"], use_dora=True),
}
lora, hooks = peft.tuners.lora.layer, peft.tuners.lora.model
WRONG = {
    "no scale": (
        "by a plan",
        edit(
            lora.LoraLayer,
            "update_layer",
            "self.scaling[adapter_name] = lora_alpha / r\n",
            "self.scaling[adapter_name] = 1\n",
        ),
        "q_proj",
    ),
    "a rank of its own root": (
        "by a plan, of a stable rank",
        edit(lora.LoraLayer, "update_layer", "lora_alpha / math.sqrt(r)", "lora_alpha / r"),
        "q_proj",
    ),
    "the second factor is cut along the first's dimension": (
        "by a plan",
        edit(hooks, "add_lora_tp_hooks_dtensor", 'shard_dim = 0 if tp_plan_name == "colwise" else 1', "shard_dim = 0"),
        "tensor_parallel.py",
    ),
    "the adapter has no plan": (
        "by a plan",
        edit(hooks, "add_lora_tp_hooks_dtensor", "style.install_forward(tp_module, device_mesh)", "pass"),
        "lora/layer.py",
    ),
    "takes what the base gives": (
        "replicas",
        edit(
            lora.Linear,
            "forward",
            "result = result + lora_B(lora_A(dropout(x))) * scaling",
            "result = result + lora_B(lora_A(dropout(x)))",
        ),
        "lora",
    ),
    "norms of rows": (
        "replicas, DoRA",
        edit(peft.tuners.lora.dora.DoraLinearLayer, "get_weight_norm", "dim=1", "dim=0"),
        "dora",
    ),
    "trains the base": (
        "by a plan",
        edit(peft.tuners.tuners_utils.BaseTuner, "_mark_only_adapters_as_trainable", "p.requires_grad = False", "pass"),
        "embed_tokens",
    ),
}
