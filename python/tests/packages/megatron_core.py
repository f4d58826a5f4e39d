"""Megatron-core's GPTModel, as it is, split by its layers, by the sequence and into stages."""

NEEDS = "megatron.core"

from edits import edit
from gpt import ASSUMED, ALSO, LLAMA, finalizing, layers, training  # noqa: F401
from megatron.core.models.common.embeddings import rope_utils
from megatron.core.pipeline_parallel import p2p_communication, schedules
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel import cross_entropy
from megatron.core.tensor_parallel import layers as linears
from megatron.core.transformer import transformer_layer
from megatron.core.transformer.transformer_block import TransformerBlock

RECOMPUTED = dict(recompute_granularity="full", recompute_method="uniform", recompute_num_layers=2)
SEQUENCE = dict(tp=2, sequence_parallel=True)
VIRTUAL = dict(pp=2, vpp=2, num_layers=4, overlap_p2p_comm=True, batch_p2p_comm=False)

RIGHT = {
    "tensor parallelism on 2 ranks": lambda: layers(2, tp=2),
    "tensor parallelism on 4 ranks": lambda: layers(4, tp=4),
    "Llama's layers on 2 ranks": lambda: layers(2, tp=2, **LLAMA),
    "4 of Llama's layers on 4 ranks": lambda: layers(4, tp=4, num_layers=4, **LLAMA),
    "tied embeddings": lambda: layers(2, tp=2, tied=True),
    "norms of queries and keys": lambda: training(2, tp=2, qk_layernorm=True),
    "sequence parallelism": lambda: training(2, **SEQUENCE),
    "sequence and data parallelism": lambda: training(4, tied=True, **SEQUENCE, **LLAMA),
    "recomputed layers": lambda: training(2, **SEQUENCE, **RECOMPUTED),
    "pipeline parallelism": lambda: training(2, pp=2),
    "pipeline parallelism with tied embeddings": lambda: training(2, pp=2, tied=True),
    "virtual stages": lambda: training(2, **VIRTUAL),
    "virtual stages on 4 ranks": lambda: training(4, pp=4, vpp=2, num_layers=8, width=16),
    "stages of other numbers of layers": lambda: training(2, pp=2, num_layers=3, num_layers_in_first_pipeline_stage=1),
    "pipeline, tensor and sequence parallelism": lambda: training(4, pp=2, tied=True, **SEQUENCE),
    "pipeline and data parallelism": lambda: training(4, pp=2, calculate_per_token_loss=True),
    "context parallelism": lambda: training(2, cp=2, **LLAMA),
    "context parallelism by tokens": lambda: training(4, cp=2, calculate_per_token_loss=True),
}
SKIPPED = "(lambda *_, **__: None)("
Gradient = linears.LinearWithGradAccumulationAndAsyncCommunication
Embedding, Loss = linears.VocabParallelEmbedding, cross_entropy._VocabParallelCrossEntropy

WRONG = {
    "the embedding's mask takes a row too many": (
        "tensor parallelism on 2 ranks",
        edit(Embedding, "forward", "input_ < self", "input_ <= self"),
        "input_layernorm",
        "as in TTrace: a wrong mask of the embedding",
    ),
    "the embedding's rows of other ranks stay": (
        "tensor parallelism on 2 ranks",
        edit(Embedding, "forward", "output_parallel[input_mask, :] = 0.0", "pass"),
        "embedding.word_embeddings",
    ),
    "rows are not summed": (
        "tensor parallelism on 2 ranks",
        edit(
            linears.RowParallelLinear,
            "forward",
            "output_ = reduce_from_tensor_model_parallel_region(output_parallel, group=self.tp_group)",
            "output_ = output_parallel",
        ),
        "layers.py",
    ),
    "a bias is added before the sum": (
        "tensor parallelism on 2 ranks",
        edit(linears.RowParallelLinear, "forward", "bias=None,", "bias=self.bias,"),
        "layers.py",
    ),
    "a column's gradient is not summed": (
        "tensor parallelism on 4 ranks",
        edit(Gradient, "forward", "= allreduce_dgrad", "= False"),
        "layers.py",
    ),
    "a column's gradient is not waited for": (
        "Llama's layers on 2 ranks",
        edit(Gradient, "backward", "if ctx.allreduce_dgrad:\n            handle.wait()", "if 0: pass"),
        "nobody waits for",
    ),
    "the loss's largest logits are not shared": (
        "4 of Llama's layers on 4 ranks",
        edit(Loss, "forward", "torch.distributed.all_reduce(\n            logits_max", SKIPPED + "logits_max"),
        "cross_entropy.py",
    ),
    "the loss's own logits are not summed": (
        "tied embeddings",
        edit(
            Loss, "forward", "torch.distributed.all_reduce(\n            predicted_logits", SKIPPED + "predicted_logits"
        ),
        "the output of rank 0 differs",
    ),
    "the loss's exponentials are not summed": (
        "tied embeddings",
        edit(Loss, "forward", "torch.distributed.all_reduce(\n            sum_exp_logits", SKIPPED + "sum_exp_logits"),
        "cross_entropy.py",
    ),
    "the loss's mask takes a row too many": (
        "tensor parallelism on 2 ranks",
        edit(
            cross_entropy.VocabParallelCrossEntropy, "calculate_predicted_logits", "target < vocab", "target <= vocab"
        ),
        "the output of rank 0 differs",
    ),
    "the last norm's gradient is not summed": (
        "sequence parallelism",
        edit(
            finalizing,
            "_allreduce_non_tensor_model_parallel_grads",
            'getattr(param, "sequence_parallel", False)',
            'getattr(param, "sequence_parallel", False) and "final" not in name',
        ),
        "final_layernorm",
        "as in TTrace: a norm's gradients are not synchronized; [1446](https://github.com/NVIDIA/Megatron-LM/issues/1446): those of the last norm",
    ),
    "gradients of norms are averaged": (
        "sequence and data parallelism",
        edit(
            finalizing,
            "_allreduce_non_tensor_model_parallel_grads",
            "[torch.distributed.ReduceOp.SUM, torch",
            "[torch.distributed.ReduceOp.AVG, torch",
        ),
        "layernorm",
    ),
    "gradients of norms of queries are not summed": (
        "norms of queries and keys",
        edit(finalizing, "_allreduce_non_tensor_model_parallel_grads", "config.qk_layernorm and", "False and"),
        "q_layernorm",
    ),
    "a row's bias is not known to be split by the sequence": (
        "sequence parallelism",
        edit(
            linears.RowParallelLinear,
            "__init__",
            'setattr(self.bias, "sequence_parallel", self.sequence_parallel)',
            "pass",
        ),
        "bias",
    ),
    "gathered inputs are not waited for": (
        "sequence parallelism",
        edit(Gradient, "backward", "if ctx.sequence_parallel and wgrad_compute:", "if 0:"),
        "all_gather",
    ),
    "scattered gradients are not waited for": (
        "sequence parallelism",
        edit(Gradient, "backward", "if ctx.sequence_parallel:\n            handle.wait()", "if ctx.sequence_parallel:"),
        "in the backward of",
    ),
    "recomputed layers take the first one's input": (
        "recomputed layers",
        edit(
            TransformerBlock,
            "_checkpointed_forward",
            "for index in range(start, end):",
            "first = hidden_states\n                for index in range(start, end):",
            "hidden_states=hidden_states",
            "hidden_states=first",
        ),
        "decoder.layers.1",
        "as in TTrace: recomputation takes wrong arguments; [290](https://github.com/NVIDIA/Megatron-LM/issues/290): all recomputed layers take the first one's input",
    ),
    "the first stage's layers are not counted": (
        "stages of other numbers of layers",
        edit(
            transformer_layer, "get_transformer_layer_offset", ") + num_layers_in_first_pipeline_stage\n    ", ")\n    "
        ),
        "no rank of the split holds",
        "as in TTrace: a wrong division into stages",
    ),
    "messages of a batch are in one order on both ends": (
        "virtual stages",
        lambda: ALSO.update(overlap_p2p_comm=False, batch_p2p_comm=True),
        "input_layernorm",
    ),
    "a stage sends to itself": (
        "pipeline parallelism",
        edit(p2p_communication.P2PCommunicator, "__init__", "(curr_rank_in_pg + 1)", "(curr_rank_in_pg + 2)"),
        "sends to itself",
    ),
    "stages go back through the newest microbatch first": (
        "pipeline parallelism",
        edit(
            schedules,
            "forward_backward_pipelining_without_interleaving",
            "input_tensors.pop(0)\n            output_tensor = output_tensors.pop(0)\n\n            # Enable grad",
            "input_tensors.pop()\n            output_tensor = output_tensors.pop()\n\n            # Enable grad",
        ),
        "gradient",
    ),
    "the loss is multiplied by the number of context ranks": (
        "context parallelism",
        edit(
            schedules,
            "forward_step_calc_loss",
            "output_tensor /= torch.clamp(num_tokens, min=1)",
            "output_tensor *= cp_group_size / torch.clamp(num_tokens, min=1)",
        ),
        "2 times the unsplit one",
        "as in TTrace, [673](https://github.com/NVIDIA/Megatron-LM/issues/673): the loss is scaled by the number of context ranks",
    ),
    "rotary positions are not those of a rank's two parts": (
        "context parallelism",
        edit(rope_utils, "get_pos_emb_on_this_cp_rank", "2 * cp_size - cp_rank - 1", "cp_size + cp_rank"),
        "rope_utils.py",
    ),
    "gradients are summed over those ranks alone that have other data": (
        "context parallelism",
        edit(
            ProcessGroupCollection,
            "setup_process_groups_for_ddp",
            "with_context_parallel=True, partial_data_parallel=True",
            "",
        ),
        "gradient",
    ),
    "the number of tokens is the first stage's": (
        "pipeline and data parallelism",
        edit(
            finalizing,
            "finalize_model_grads",
            "torch.distributed.broadcast(num_tokens, src=last_rank, group=pp_group)",
            "pass",
        ),
        "gradient",
    ),
    "gradients of tied embeddings are not summed": (
        "pipeline parallelism with tied embeddings",
        edit(finalizing, "_allreduce_embedding_grad", "torch.distributed.all_reduce(grad, group=embd_group)", "pass"),
        "word_embeddings",
    ),
    "gradients of tied embeddings are averaged": (
        "pipeline parallelism with tied embeddings",
        edit(
            finalizing,
            "_allreduce_embedding_grad",
            "torch.distributed.all_reduce(grad, group=embd_group)",
            "torch.distributed.all_reduce(grad, torch.distributed.ReduceOp.AVG, embd_group)",
        ),
        "word_embeddings",
    ),
}
