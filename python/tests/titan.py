"""torchtitan's models made tiny, and its trainer over them: of a whole model, or of a rank's part."""

import functools
import importlib
from types import SimpleNamespace

import torch
import torch.distributed as dist

VOCABULARY, DIM, HEADS, EXPERTS = 32, 16, 4, 4
TOKENS, LABELS = (torch.arange(32).view(4, 8) * factor % VOCABULARY for factor in (5, 11))
LABELS[0, :3] = LABELS[3, 5] = -100  # tokens that do not count
POSITIONS = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 0, 1, 2, 3, 4]] * 2)  # of packed documents


def parts(model):
    """What every decoder of torchtitan is configured with."""
    from torchtitan.models.common import Embedding, Linear, RMSNorm

    return dict(
        dim=DIM,
        vocab_size=VOCABULARY,
        tok_embeddings=Embedding.Config(num_embeddings=VOCABULARY, embedding_dim=DIM),
        norm=RMSNorm.Config(normalized_shape=DIM),
        lm_head=Linear.Config(in_features=DIM, out_features=VOCABULARY),
    )


def llama3(module, tied=False, layers=2):
    from torchtitan.models.common import ComplexRoPE

    layers = module._build_llama3_layers(
        n_layers=layers, dim=DIM, n_heads=HEADS, hidden_dim=32, attn_backend="flex",
        rope=ComplexRoPE.Config(dim=DIM // HEADS, max_seq_len=16, theta=500000, scaling="llama"),
    )  # fmt: skip
    return module.Llama3Model.Config(**parts(module), layers=layers, enable_weight_tying=tied)


def qwen3(module, fused=True, experts=False):
    from torchtitan.models.common import CosSinRoPE

    rope = CosSinRoPE.Config(dim=4, max_seq_len=16, theta=1000000.0)
    shared = dict(n_layers=2, dim=DIM, n_heads=HEADS, n_kv_heads=2, head_dim=4, fuse_qkv=fused)
    shared |= dict(attn_backend="flex", rope=rope)
    if experts:
        of = dict(moe_hidden_dim=8, num_experts=EXPERTS, top_k=2, moe_comm_backend="standard")
        layers = module._build_qwen3_moe_layers(**shared, **of)
    else:
        layers = module._build_qwen3_layers(**shared, hidden_dim=32)
    return module.Qwen3Model.Config(**parts(module), layers=layers, enable_weight_tying=not experts)


def deepseek_v3(module):
    from torchtitan.models.common import ComplexRoPE

    layers = module._build_dsv3_layers(
        n_layers=2, n_dense_layers=1, dim=DIM, n_heads=HEADS, q_lora_rank=8, kv_lora_rank=8, qk_nope_head_dim=4,
        qk_rope_head_dim=2, v_head_dim=4, mscale=0.70, dense_hidden_dim=32, moe_hidden_dim=8, num_experts=EXPERTS,
        num_shared_experts=1, router_top_k=2, router_score_func="sigmoid", router_route_scale=2.5, attn_backend="flex",
        moe_comm_backend="standard", non_blocking_capacity_factor=None,
        rope=ComplexRoPE.Config(
            dim=2, max_seq_len=16, theta=10000.0, scaling="yarn", rope_factor=4.0, original_seq_len=8
        ),
    )  # fmt: skip
    return module.DeepSeekV3Model.Config(**parts(module), layers=layers)


def gpt_oss(module):
    from torchtitan.models.common import CosSinRoPE

    attention = functools.partial(module._make_gptoss_attn_config, n_heads=HEADS, n_kv_heads=2, head_dim=4)
    module._make_gptoss_attn_config = attention
    layers = module._build_gptoss_layers(
        n_layers=2, dim=DIM, hidden_dim=8, num_experts=EXPERTS, top_k=2, load_balance_coeff=1e-3, attn_backend="flex",
        moe_comm_backend="standard", rope=CosSinRoPE.Config(dim=4, max_seq_len=16, theta=150000.0),
    )  # fmt: skip
    return module.GptOssModel.Config(**parts(module), layers=layers)


class Job(torch.nn.Module):
    """A model, and torchtitan's trainer over it, whose own step is taken: of the whole model, or of a rank's part."""

    def __init__(self, make, backend, degrees, model, tasks, options):
        super().__init__()
        self.spec = importlib.import_module(f"torchtitan.models.{make.__name__}")
        self.make, self.backend, self.degrees, self.of = make, backend, degrees, model
        self.tasks, self.options = tasks, options
        self.trainer, self.split = None, False
        self.parts = torch.nn.ModuleList([self.configured(**degrees).build()])

    def parallelism(self, **degrees):
        from torchtitan.config import ParallelismConfig

        names = {"shard": "data_parallel_shard", "replicate": "data_parallel_replicate"}
        degrees = {"shard": 1} | degrees
        given = {f"{names.get(name, name + '_parallel')}_degree": degree for name, degree in degrees.items()}
        backend = self.backend if self.split else "partial_dtensor"
        return ParallelismConfig(**given, spmd_backend=backend, **self.options)

    def configured(self, **degrees):
        config = self.make(self.spec, **self.of)
        for layer in config.layers:
            layer.attention.inner_attention.block_size = 2
        config.update_from_config(config=SimpleNamespace(parallelism=self.parallelism(**degrees)))
        return config

    def of_training(self):
        from torchtitan.config import TrainingConfig

        rows = len(TOKENS) // (self.degrees.get("shard", 1) * self.degrees.get("replicate", 1))
        return TrainingConfig(mixed_precision_param="float32", local_batch_size=rows)

    def trained(self, degrees):
        """A trainer of torchtitan that was given a model in place of files."""
        from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
        from torchtitan.distributed import ParallelDims, utils
        from torchtitan.trainer import Trainer

        trainer = object.__new__(Trainer)
        parallelism = self.parallelism(**degrees)
        trainer.config = SimpleNamespace(parallelism=parallelism, training=self.of_training())
        trainer.parallel_dims = ParallelDims.from_config(parallelism, dist.get_world_size())
        utils.set_spmd_backend(parallelism.spmd_backend)
        config = CrossEntropyLoss.Config(global_vocab_size=VOCABULARY)
        chunked = ChunkedLossWrapper.Config(num_chunks=2, loss_fn=config)
        trainer.loss_fn = (chunked if self.tasks.get("chunked") else config).build()
        trainer.model_config, trainer.model_parts = self.configured(**degrees), list(self.parts)
        trainer.device, trainer.ntokens_seen = torch.device("cpu"), 0
        trainer.train_context = utils.get_spmd_context(parallel_dims=trainer.parallel_dims, spmd_typechecking=False)
        trainer.fwd_bwd_fn = trainer._forward_backward_body
        return trainer

    def parallelized(self):
        """This rank's part, by torchtitan's `parallelize` or `pipeline`."""
        from torchtitan.config import CompileConfig

        self.split = True
        trainer = self.trainer = self.trained(self.degrees)
        (model,) = self.parts
        for part, new in zip(model.modules(), self.configured(**self.degrees).build().modules(), strict=True):
            if "_sharding_config" in vars(new):
                part._sharding_config = new._sharding_config
        name = self.make.__name__.replace("_", "").replace("llama3", "llama")
        shared = dict(
            parallel_dims=trainer.parallel_dims, training=trainer.config.training, ac_config=None, dump_folder="",
            parallelism=trainer.config.parallelism, compile_config=CompileConfig(),
        )  # fmt: skip
        parallelize = getattr(self.spec, f"parallelize_{name}")
        if trainer.parallel_dims.pp_enabled:
            trainer.pp_schedule, parts, trainer.pp_has_first_stage, trainer.pp_has_last_stage = self.spec.pipeline_llm(
                model, **shared, device=trainer.device, model_config=trainer.model_config, parallelize_fn=parallelize,
                loss_fn=trainer.loss_fn,
            )  # fmt: skip
            self.parts, trainer.model_parts = torch.nn.ModuleList(parts), parts
            return self
        parallelize(model, **shared)
        if model.enable_weight_tying:
            model.tok_embeddings.weight = model.lm_head.weight  # as init_states does after it
        return self

    def step(self, tokens, labels, positions):
        """The trainer's step up to the optimizer's: of this rank's rows, the loss over all ranks."""
        from torchtitan.components.optimizer import register_moe_load_balancing_hook
        from torchtitan.distributed import utils

        trainer = self.trainer = self.trainer or self.trained({})
        dims = trainer.parallel_dims
        batch = dims.get_optional_mesh("batch")
        rows = (tokens, labels, positions)
        if batch is not None:
            rows = [x.chunk(batch.size())[batch.get_local_rank()] for x in rows]
        count = utils.dist_sum_tensor((rows[1] != -100).sum(), batch)
        if self.tasks.get("chunked"):
            trainer.loss_fn.set_lm_head(self.parts[0].lm_head)
            self.parts[0]._skip_lm_head = True
        rows = zip(*(x.split(1 if dims.pp_enabled else len(x)) for x in rows))
        inputs, labels = zip(*(({"input": ids, "positions": positions}, labels) for ids, labels, positions in rows))
        given = (list(inputs), list(labels)) if dims.pp_enabled else (inputs[0], labels[0])
        loss = trainer.forward_backward_step(input_dict=given[0], labels=given[1], global_valid_tokens=count).detach()
        if dims.pp_enabled:  # the last stage has the loss
            loss = utils.dist_sum_tensor(loss.reshape(()) * trainer.pp_has_last_stage, dims.get_mesh("pp"))
        optimizers = SimpleNamespace(register_step_pre_hook=lambda hook: hook())  # which would step now
        register_moe_load_balancing_hook(optimizers, list(self.parts), dims)
        loss = utils.dist_sum_tensor(loss, dims.get_optional_mesh("loss"))
        if not self.tasks.get("clipped"):
            return loss
        of = dict(foreach=True, pp_mesh=dims.get_optional_mesh("pp"), ep_enabled=dims.ep_enabled)
        return loss, utils.clip_grad_norm_(list(self.parts.parameters()), 1.0, **of)


def program(make, ranks, backend="partial_dtensor", **options):
    """A model of torchtitan, whole and split, and its trainer's step."""
    take = lambda *names: {name: options.pop(name) for name in names if name in options}
    degrees = take("tensor", "expert", "context", "pipeline", "shard", "replicate")
    model, tasks = take("tied", "fused", "experts", "layers"), take("chunked", "clipped")
    return dict(
        unsplit=lambda: Job(make, backend, degrees, model, tasks, options),
        split=lambda job: job.parallelized(),
        ranks=ranks,
        inputs=(TOKENS, LABELS, POSITIONS),
        loss=lambda job, *inputs: job.step(*inputs),
    )
