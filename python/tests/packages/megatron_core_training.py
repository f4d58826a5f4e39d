"""Megatron-core's gradient buffers, distributed optimizer and experts, as they are."""

NEEDS = "megatron.core"

from edits import edit
from gpt import ASSUMED, ALSO, EXPERTS, SMALL, finalizing, training  # noqa: F401
from megatron.core.distributed import DistributedDataParallel
from megatron.core.distributed import param_and_grad_buffer as buffers
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.pipeline_parallel import schedules
from megatron.core.tensor_parallel import layers as linears
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.moe.router import Router, TopKRouter
from megatron.core.transformer.moe.token_dispatcher import MoEAlltoAllTokenDispatcher

OVERLAP = dict(overlap_grad_reduce=True, bucket_size=1000)
SEQUENCE = dict(tp=2, sequence_parallel=True)
ALL_TO_ALL = dict(moe_token_dispatcher_type="alltoall")
# What Megatron-core 0.16.1 does wrong: 5047, a balance in a mean over tokens is divided by the ranks of the sequence;
# 1628, gradients of experts that are on all ranks are summed over ranks that split the other layers
BALANCE = edit(
    TopKRouter,
    "attach_and_log_load_balancing_loss",
    "aux_loss * num_tokens",
    "aux_loss * num_tokens * reduce_group.size()",
)
SUMS = [
    edit(of, "__init__", "config.expert_model_parallel_size > 1", "True")
    for of in (linears.ColumnParallelLinear, linears.RowParallelLinear)
]

RIGHT = {
    "data parallelism": lambda: training(2),
    "a mean over tokens": lambda: training(2, calculate_per_token_loss=True),
    "gradients summed while others are computed": lambda: training(2, buffers=OVERLAP),
    "gradients averaged by the call": lambda: training(2, buffers=dict(average_in_collective=True)),
    "steps of Adam": lambda: training(2, steps=True, **SMALL),
    "clipped steps": lambda: training(2, tp=2, steps=True, clip=0.5, **SMALL),
    "distributed optimizer": lambda: training(2, steps="distributed", **SMALL),
    "distributed optimizer with overlap": lambda: training(
        2, steps="distributed", buffers=OVERLAP | dict(overlap_param_gather=True), **SMALL
    ),
    "distributed optimizer with sequence parallelism": lambda: training(4, steps="distributed", **SEQUENCE, **SMALL),
    "distributed optimizer with tied stages": lambda: training(
        4, pp=2, tied=True, steps="distributed", **SMALL | dict(num_layers=2)
    ),
    "experts": lambda: training(2, ep=2, **ALL_TO_ALL, **EXPERTS | dict(num_moe_experts=6)),
    "experts by all-gather": lambda: training(2, ep=2, moe_token_dispatcher_type="allgather", **EXPERTS),
    "experts that are split": lambda: training(2, **ALL_TO_ALL, **SEQUENCE, **EXPERTS),
    "experts beside sequence parallelism": lambda: training(4, ep=2, etp=1, **ALL_TO_ALL, **SEQUENCE, **EXPERTS),
    "experts and a shared one": lambda: training(
        2, moe_shared_expert_intermediate_size=16, **ALL_TO_ALL, **SEQUENCE, **EXPERTS
    ),
    "experts in a mean over tokens": lambda: training(
        2, mends=[BALANCE], calculate_per_token_loss=True, **ALL_TO_ALL, **SEQUENCE, **EXPERTS
    ),
    "whole experts beside sequence parallelism": lambda: training(
        2, mends=SUMS, etp=1, **ALL_TO_ALL, **SEQUENCE, **EXPERTS
    ),
    "experts alone are split": lambda: training(2, mends=SUMS, etp=2, **ALL_TO_ALL, **EXPERTS),
}
SKIPPED = "(lambda *_, **__: None)("
Bucket = buffers._ParamAndGradBucketGroup

WRONG = {
    "microbatches are not averaged": (
        "data parallelism",
        edit(
            schedules,
            "forward_step_calc_loss",
            "output_tensor /= torch.clamp(num_tokens, min=1)\n                    output_tensor /= num_microbatches",
            "output_tensor /= torch.clamp(num_tokens, min=1)",
        ),
        "gradient",
    ),
    "gradients are summed, not averaged": (
        "data parallelism",
        edit(Bucket, "start_grad_sync", "bucket.grad_data *= bucket.gradient_scaling_factor", "pass"),
        "2 times the unsplit one",
        "as in TTrace: gradients of data parallelism are scaled wrongly",
    ),
    "gradients are not summed": (
        "data parallelism",
        edit(
            Bucket,
            "start_grad_sync",
            "torch.distributed.all_reduce(\n                        bucket",
            SKIPPED + "bucket",
        ),
        "partial sum",
    ),
    "gradients are not waited for": (
        "gradients summed while others are computed",
        edit(Bucket, "finish_grad_sync", "self.grad_reduce_handle.wait()", "pass"),
        "nobody waits for",
        "as in TTrace: a sum of gradients that overlaps is not waited for",
    ),
    "the last microbatch's gradient alone is kept": (
        "data parallelism",
        edit(DistributedDataParallel, "_make_backward_post_hook", "param.main_grad.add_(", "param.main_grad.copy_("),
        "gradient",
    ),
    "gradients of the step before stay": (
        "steps of Adam",
        edit(buffers._ParamAndGradBuffer, "reset", "self.grad_data.zero_()", "pass"),
        "steps",
    ),
    "the number of tokens is one rank's": (
        "a mean over tokens",
        edit(finalizing, "finalize_model_grads", "torch.distributed.all_reduce(num_tokens, group=dp_cp_group)", "pass"),
        "gradient",
    ),
    "a tied embedding shares its bucket": (
        "distributed optimizer with tied stages",
        edit(buffers._ParamAndGradBuffer, "__init__", 'getattr(param, "shared_embedding", False)\n', "False\n"),
        "embeddings",
        "as in TTrace, [656](https://github.com/NVIDIA/Megatron-LM/issues/656), [844](https://github.com/NVIDIA/Megatron-LM/issues/844): tied embeddings differ, as their gradients lie in other shards",
    ),
    "each rank steps the first shard": (
        "distributed optimizer",
        edit(
            DistributedOptimizer,
            "_build_model_gbuf_range",
            "gbuf_world_all_ranges[data_parallel_rank]",
            "gbuf_world_all_ranges[0]",
        ),
        "word_embeddings",
        "as in TTrace: parameters are not updated",
    ),
    "stepped parameters are not gathered": (
        "distributed optimizer",
        edit(Bucket, "start_param_sync", "dist_all_gather_func(\n                    bucket", SKIPPED + "bucket"),
        "steps",
    ),
    "gathered parameters are not waited for": (
        "distributed optimizer with overlap",
        edit(Bucket, "finish_param_sync", "self.param_gather_handle.wait()", "pass"),
        "is overwritten before all_gather",
    ),
    "shards are in another order": (
        "distributed optimizer",
        edit(
            buffers,
            "shard_buffer",
            "for r in range(data_parallel_world_size)",
            "for r in range(data_parallel_world_size)[::-1]",
        ),
        "steps",
    ),
    "whole parameters count once for each rank in the norm": (
        "clipped steps",
        edit(linears, "param_is_not_tensor_parallel_duplicate", "return tp_group.rank() == 0", "return True"),
        "steps",
    ),
    "the router's gradient is not summed": (
        "experts that are split",
        edit(
            Router,
            "reset_parameters",
            "setattr(self.weight, 'sequence_parallel', self.config.sequence_parallel)",
            "pass",
        ),
        "router",
        "as in TTrace, [599](https://github.com/NVIDIA/Megatron-LM/issues/599) and [619](https://github.com/NVIDIA/Megatron-LM/issues/619): the router's gradients are not synchronized",
    ),
    "the balance is that of a rank's tokens": (
        "experts that are split",
        edit(
            moe_utils,
            "get_tokens_per_expert_and_token_count",
            "reduce_from_tensor_model_parallel_region(\n        local_tokens_per_expert, reduce_group\n    )",
            "local_tokens_per_expert",
        ),
        "gradient",
    ),
    "the balance is divided by a rank's number of tokens": (
        "experts that are split",
        edit(
            moe_utils,
            "get_tokens_per_expert_and_token_count",
            "local_num_tokens * reduce_group.size()",
            "local_num_tokens",
        ),
        "gradient",
    ),
    "the balance is not averaged over microbatches": (
        "experts",
        edit(
            schedules,
            "forward_step_calc_loss",
            "loss_scale * cp_group_size / num_microbatches",
            "loss_scale * cp_group_size",
        ),
        "gradient",
    ),
    "experts' gradients are summed over all ranks": (
        "experts",
        edit(
            linears.ColumnParallelLinear,
            "__init__",
            'setattr(self.weight, "allreduce", not (self.is_expert and self.expert_parallel))',
            'setattr(self.weight, "allreduce", True)',
        ),
        "local_experts",
    ),
    "tokens come back as they went": (
        "experts",
        edit(
            MoEAlltoAllTokenDispatcher,
            "token_combine",
            "hidden_states, self.input_splits, self.output_splits",
            "hidden_states, self.output_splits, self.input_splits",
        ),
        "split_with_sizes",
    ),
    "tokens come back in another order": (
        "experts",
        edit(
            MoEAlltoAllTokenDispatcher,
            "combine_preprocess",
            "self.restore_output_by_local_experts",
            "self.sort_input_by_local_experts",
        ),
        "decoder.layers.0",
    ),
    "a balance in a mean over tokens is that of a part of the sequence": (
        "experts in a mean over tokens",
        lambda: ALSO.update(unmended=True),
        "gradient",
        "what 0.16.1 does, unmended",
    ),
    "gradients of whole experts are not summed over parts of the sequence": (
        "whole experts beside sequence parallelism",
        lambda: ALSO.update(unmended=True),
        "local_experts",
        "what 0.16.1 does, unmended",
    ),
    "parts of experts are summed over ranks with others": (
        "experts alone are split",
        lambda: ALSO.update(unmended=True),
        "local_experts",
        "what 0.16.1 does, unmended",
    ),
}
