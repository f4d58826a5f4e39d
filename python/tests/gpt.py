"""Programs of Megatron-core's GPTModel, split by its own layers, schedules, gradient buffers and distributed optimizer.

The unsplit program is the same model on one rank, whose loss, gradients and steps are those of plain PyTorch.
Transformer Engine and Apex are not there, so norms, attention and Adam are the plain ones of Megatron and of PyTorch;
where Megatron has no plain one, it stands here.
"""

import copy
import importlib

import torch
import torch.distributed as dist
import torch.nn.functional as F
from edits import edit
from torch import nn

from equipart.torch import assume

from megatron.core import parallel_state as groups
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig, clip_grads, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.dot_product_attention import DotProductAttention
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.torch_norm import WrappedTorchNorm
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.utils import get_batch_on_this_cp_rank

IDS = torch.tensor([[0, 5, 11, 31], [16, 15, 8, 23], [7, 24, 1, 30], [17, 9, 22, 12]])
MASK = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]])
LLAMA = dict(
    position="rope",
    num_query_groups=4,
    gated_linear_unit=True,
    activation_func=F.silu,
    normalization="RMSNorm",
    add_bias_linear=False,
)
EXPERTS = dict(
    num_moe_experts=4, moe_router_topk=2, add_bias_linear=False, moe_aux_loss_coeff=0.5, width=16, num_layers=1
)
SMALL = dict(
    width=8, heads=4, vocabulary=8, num_layers=1
)  # as two steps of Adam, or of clipped gradients, are of a high degree
ALSO = {}  # options that a mistake adds to a split model
MODEL = """position tied width heads vocabulary num_layers qk_layernorm calculate_per_token_loss num_query_groups
gated_linear_unit activation_func normalization add_bias_linear num_moe_experts moe_router_topk moe_aux_loss_coeff
moe_shared_expert_intermediate_size""".split()  # options that say what is computed; all others say how it is split


ASSUMED = "norms, attention and Adam of plain PyTorch stand for those of Apex and Transformer Engine"


def norm(cls, config, hidden_size, eps=1e-5, **options):
    """PyTorch's norm in place of Apex's, whose parameters say that their gradients are sums over the sequence."""
    assume(ASSUMED)
    out = (nn.RMSNorm if config.normalization == "RMSNorm" else nn.LayerNorm)(hidden_size, eps)
    [setattr(of, "sequence_parallel", config.sequence_parallel) for of in out.parameters()]
    return out


class ContextAttention(DotProductAttention):
    """Attention among parts of the sequence in place of Transformer Engine's: keys and values are gathered."""

    def __init__(self, config, *args, **options):
        alone = copy.copy(config)
        alone.context_parallel_size = 1
        super().__init__(alone, *args, **options)

    def forward(self, query, key, value, attention_mask, **options):
        group = groups.get_context_parallel_group()
        at = torch.arange(len(query) * group.size())[None]
        mine, others = [
            torch.cat([get_batch_on_this_cp_rank({"at": at}, Group(rank, group.size()))["at"][0] for rank in ranks])
            for ranks in ([group.rank()], range(group.size()))
        ]
        key, value = (gather_from_sequence_parallel_region(x, group=group) for x in (key, value))
        return super().forward(query, key, value, mine[:, None] < others, **options)


class Group:
    """What is asked of a group: a rank, and how many there are."""

    def __init__(self, rank, size):
        self.rank, self.size = lambda: rank, lambda: size


finalizing = importlib.import_module("megatron.core.distributed.finalize_model_grads")
WrappedTorchNorm.__new__ = norm
moe_utils.te_general_gemm = None  # where Transformer Engine is missing, this name is, too
edit(clip_grads, "clip_grad_by_total_norm_fp32", "clip_coeff < 1.0", "True")()  # gradients are longer than they may be
clip_grads.l2_norm_impl = lambda size, buffer, lists, each: (
    torch.stack([x.norm() for x in lists[0]]).norm()[None],
    None,
)


def gpt(
    tp=1,
    pp=1,
    cp=1,
    ep=1,
    etp=None,
    vpp=None,
    position="learned_absolute",
    tied=False,
    width=32,
    heads=8,
    vocabulary=32,
    num_layers=2,
    **more
):
    """The stages that a rank has of a model, on so many ranks of each kind."""
    groups.destroy_model_parallel()
    groups.initialize_model_parallel(
        tp, pp, vpp, context_parallel_size=cp, expert_model_parallel_size=ep, expert_tensor_parallel_size=etp
    )
    model_parallel_cuda_manual_seed(1, force_reset_rng=True)
    config = TransformerConfig(
        num_layers=num_layers,
        hidden_size=width,
        ffn_hidden_size=width,
        num_attention_heads=heads,
        use_cpu_initialization=True,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        tensor_model_parallel_size=tp,
        pipeline_model_parallel_size=pp,
        virtual_pipeline_model_parallel_size=vpp,
        context_parallel_size=cp,
        expert_model_parallel_size=ep,
        expert_tensor_parallel_size=etp,
        pipeline_dtype=torch.float32,
        **more | {name: of for name, of in ALSO.items() if name != "unmended"},
    )
    spec = get_gpt_layer_local_spec(
        config.num_moe_experts, config.moe_grouped_gemm, config.qk_layernorm, normalization=config.normalization
    )
    if cp > 1:
        spec.submodules.self_attention.submodules.core_attention = ContextAttention
    return [
        GPTModel(
            config,
            spec,
            vocabulary,
            IDS.shape[1],
            groups.is_pipeline_first_stage(False, stage),
            groups.is_pipeline_last_stage(False, stage),
            position_embedding_type=position,
            share_embeddings_and_output_weights=tied,
            vp_stage=stage,
        )
        for stage in (range(vpp) if vpp else [None])
    ]


def unsplit(**options):
    """Builds the same model for one rank."""
    return lambda: gpt(**{name: options[name] for name in options if name in MODEL})[0]


def fill(stage, whole):
    """Copies a rank's part of the whole model's parameters into a stage."""
    config, whole = stage.config, dict(whole.named_parameters())
    with torch.no_grad():
        for name, mine in stage.named_parameters():
            rank, words = groups.get_tensor_model_parallel_rank(), name.split(".")
            if "layers" in words:
                at = words.index("layers") + 1
                words[at] = str(stage.decoder.layers[int(words[at])].layer_number - 1)
            if "local_experts" in words:
                at, rank = words.index("local_experts") + 1, groups.get_expert_tensor_parallel_rank()
                each = config.num_moe_experts // config.expert_model_parallel_size
                words[at] = str(groups.get_expert_model_parallel_rank() * each + int(words[at]))
            of = whole.get(".".join(words), whole["embedding.word_embeddings.weight"])
            if of.shape != mine.shape:
                dim, halves = mine.partition_dim, 2 if config.gated_linear_unit and "linear_fc1" in words else 1
                of = torch.cat(
                    [half.split(mine.shape[dim] // halves, dim)[rank] for half in of.chunk(halves, dim)], dim
                )
            mine.copy_(of)
    return stage


class Rank(nn.ModuleList):
    """A rank's stages, with Megatron's gradient buffers, and its optimizer if the program steps."""

    def __init__(self, whole, steps=False, buffers={}, clip=0.0, **options):
        stages = [fill(stage, whole) for stage in gpt(**options)]
        settings = DistributedDataParallelConfig(**{"use_distributed_optimizer": steps == "distributed", **buffers})
        super().__init__(DistributedDataParallel(stage.config, settings, stage) for stage in stages)
        for stage in self:
            stage.config.finalize_model_grads_func = finalizing.finalize_model_grads
            stage.config.no_sync_func = [of.no_sync for of in self] if len(self) > 1 else stage.no_sync
        settings = OptimizerConfig(
            optimizer="sgd" if clip else "adam",
            lr=0.25,
            weight_decay=0.125,
            clip_grad=clip,
            use_distributed_optimizer=settings.use_distributed_optimizer,
            overlap_param_gather=settings.overlap_param_gather,
        )
        self.optimizer, self.calls = steps and get_megatron_optimizer(settings, list(self)), 0


def step(batches, stage):
    """What a stage does with a microbatch: the output, and of the last stage the loss and the number of tokens."""
    ids, positions, labels, mask = next(batches)

    def loss(out):
        out = (out * mask).sum()
        return out, mask.sum().int(), out.detach().clone()

    return stage(ids, positions, None, labels=labels), loss


def trained(model, *batch):
    """The loss and gradients of a batch, by Megatron's schedule where there is one."""
    tokens = batch[-1].sum()
    if isinstance(model, GPTModel):
        rows = list(zip(*(x.split(1) for x in batch)))
        moe_utils.MoEAuxLossAutoScaler.set_loss_scale(
            torch.ones(1) / (tokens if model.config.calculate_per_token_loss else len(rows))
        )
        total = 0.0
        for row in rows:
            out, loss = step(iter([row]), model)
            out, each, _ = loss(out)
            (out / (tokens if model.config.calculate_per_token_loss else each * len(rows))).backward()
            total = total + out.detach()
        return total / tokens
    rank, ranks = groups.get_data_parallel_rank(), groups.get_data_parallel_world_size()
    mine = [get_batch_on_this_cp_rank({"x": x})["x"] for x in batch]
    rows = list(zip(*(x.chunk(ranks)[rank].split(1) for x in mine)))
    [stage.zero_grad_buffer() for stage in model]
    model.optimizer and model.optimizer.zero_grad()
    losses = get_forward_backward_func()(
        forward_step_func=step,
        data_iterator=[iter(rows) for _ in model] if len(model) > 1 else iter(rows),
        model=list(model),
        num_microbatches=len(rows),
        seq_length=batch[0].shape[1],
        micro_batch_size=1,
        forward_only=False,
    )
    if model.optimizer:
        model.optimizer.step()
        if model.optimizer.config.overlap_param_gather and model.calls:  # else the next forward gathers them
            [stage.start_param_sync(force_sync=True) for stage in model]
        model.calls += 1
    else:
        for parameter in model.parameters():
            parameter.grad = parameter.main_grad
    total = torch.stack(losses).sum() if losses else torch.zeros(())
    dist.broadcast(total, groups.get_pipeline_model_parallel_last_rank(), groups.get_pipeline_model_parallel_group())
    dist.all_reduce(total, group=groups.get_data_parallel_group(with_context_parallel=True))
    return total / tokens


def stepped(clip):
    """A step of training, by plain PyTorch for the unsplit model."""

    def stepped(model, *batch):
        out = trained(model, *batch)
        if isinstance(model, GPTModel):
            if not hasattr(model, "optimizer"):
                kind, more = (torch.optim.SGD, dict(momentum=0.9)) if clip else (torch.optim.AdamW, {})
                model.optimizer = kind(model.parameters(), lr=0.25, weight_decay=0.125, **more)
            if clip:
                length = torch.stack([x.grad.norm() for x in model.parameters()]).norm()
                [x.grad.mul_(clip / (length + 1e-6)) for x in model.parameters()]
            model.optimizer.step()
            model.optimizer.zero_grad()
        return out

    return stepped


def inputs(vocabulary=32, calculate_per_token_loss=False, cp=1, **options):
    """Tokens, their positions, the tokens that follow, and which of these count."""
    ids = IDS if vocabulary == 32 else IDS[:2, :2] % vocabulary
    return (
        ids,
        torch.arange(ids.shape[1]).expand(ids.shape),
        ids.roll(-1, 1),
        MASK if calculate_per_token_loss else torch.ones_like(ids),
    )


def layers(ranks, **options):
    """A model that is split by its layers alone."""
    return dict(
        unsplit=unsplit(**options),
        split=lambda whole: fill(*gpt(**options), whole),
        ranks=ranks,
        inputs=inputs(**options)[:3],
        loss=lambda model, ids, positions, labels: model(ids, positions, None, labels=labels),
    )


def training(ranks, mends=(), **options):
    """A model that is trained by Megatron's schedules and gradient buffers, where a version's mistakes are mended."""

    def split(whole):
        [mend() for mend in mends if "unmended" not in ALSO]
        return Rank(whole, **options)

    return dict(
        unsplit=unsplit(**options),
        split=split,
        ranks=ranks,
        inputs=inputs(**options),
        loss=stepped(options.get("clip")) if options.get("steps") else trained,
    )
