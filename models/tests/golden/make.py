"""Makes the folders beside this file: small random models as Hugging Face saves them, and what they compute.

    pip install torch transformers && python make.py            (all folders)
    python make.py llama gpt2                                    (these)

Needs PyTorch (the CPU is enough) and transformers 5; takes seconds. No test needs it: the folders are committed, and
this file says where they come from. README.md tells what is in them.

Weights and ids come from Python's generator with fixed seeds. The same versions on the same machine write the same
bytes; another processor may round the goldens differently in their last digits.

The goldens are of the weights as the file has them, read back through the config.json beside them, and computed in
float64 throughout; eager attention, each sequence by itself, no padding, no cache, no dropout.
"""
import json
import random
import shutil
import sys
from contextlib import contextmanager
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch.nn.functional import cross_entropy
from transformers import (AutoConfig, AutoModelForCausalLM, DeepseekV2Config, DeepseekV3Config, Gemma2Config, Gemma3TextConfig, GPT2Config, GptOssConfig, LlamaConfig, MistralConfig, MixtralConfig,
                          Olmo2Config, Phi3Config, Qwen2Config, Qwen2MoeConfig, Qwen3Config, Qwen3MoeConfig, SmolLM3Config)

HERE = Path(__file__).parent
LIMIT = 60_000  # bytes of a folder; where float64 does not fit, gradients are float32, and then the logits too
LENGTHS = [21, 13]  # ids of the batch's sequences
PROMPT, NEW = 6, 24
FREE = dict(bos_token_id=None, eos_token_id=None, pad_token_id=None)  # no id is special
COEFFICIENT = 0.5  # of the balance of experts: large enough to be seen in every gradient of a router
BIAS = "e_score_correction_bias"  # of DeepSeek's choice of experts
LEAD = 1e-3  # by which a chosen expert's logit is above any other's: rounding does not choose
LLAMA = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-3,
             max_position_embeddings=64, **FREE)
LATENTS = LLAMA | dict(intermediate_size=12, num_key_value_heads=4, kv_lora_rank=6, qk_nope_head_dim=6,
                       qk_rope_head_dim=4, v_head_dim=5)
GPT2 = dict(n_embd=16, n_layer=2, n_head=4, n_positions=32, layer_norm_epsilon=1e-3, **FREE)


def rope(theta, kind="default", **numbers):
    return dict(rope_theta=theta, rope_type=kind, **numbers)


# Folder -> configuration, dtype of the file, bytes of a shard, and twins: what is changed in the configuration and must
# change the logits, so that a reader that overlooks it is seen.
MODELS = {
    # Wavelengths 6.3, 19 and 57 of 16 positions: one above the high frequency, one between, one below the low one.
    "llama": (LlamaConfig(**LLAMA, vocab_size=37, intermediate_size=20, head_dim=6, attention_bias=True, mlp_bias=True,
                          rope_parameters=rope(27.0, "llama3", factor=4.0, low_freq_factor=0.5, high_freq_factor=2.0,
                                               original_max_position_embeddings=16)),
              torch.float32, None, [dict(rope_parameters=rope(27.0)),
                                    dict(rope_parameters=rope(27.0, "linear", factor=4.0)), dict(rms_norm_eps=1e-6)]),
    "linear": (LlamaConfig(**LLAMA, vocab_size=51, intermediate_size=24, tie_word_embeddings=True,
                           rope_parameters=rope(100.0, "linear", factor=2.5)),
               torch.float32, None, [dict(rope_parameters=rope(100.0)), dict(rms_norm_eps=1e-6)]),
    "mistral": (MistralConfig(**LLAMA | dict(num_attention_heads=8), vocab_size=50, intermediate_size=24, head_dim=4,
                              sliding_window=5, rope_parameters=rope(50.0)),
                torch.float16, None, [dict(sliding_window=None), dict(sliding_window=4), dict(sliding_window=6),
                                      dict(rope_parameters=rope(1e4)), dict(rms_norm_eps=1e-6)]),
    "qwen2": (Qwen2Config(**LLAMA | dict(num_hidden_layers=3), vocab_size=51, intermediate_size=24,
                          use_sliding_window=True, sliding_window=4, max_window_layers=1, tie_word_embeddings=True,
                          rope_parameters=rope(50.0)),
              torch.bfloat16, None, [dict(layer_types=["full_attention"] * 3),
                                     dict(layer_types=["sliding_attention"] * 3), dict(sliding_window=3),
                                     dict(sliding_window=5), dict(rms_norm_eps=1e-6)]),
    "qwen3": (Qwen3Config(**LLAMA, vocab_size=51, intermediate_size=24, head_dim=6, rope_parameters=rope(50.0),
                          tie_word_embeddings=True),
              torch.float32, "8KB", [dict(rope_parameters=rope(1e4)), dict(rms_norm_eps=1e-6)]),
    "mixtral": (MixtralConfig(**LLAMA, vocab_size=50, intermediate_size=7, num_local_experts=4, sliding_window=6,
                              router_aux_loss_coef=0.0, rope_parameters=rope(50.0)),
                torch.float16, None, [dict(num_experts_per_tok=1), dict(num_experts_per_tok=3),
                                      dict(sliding_window=None), dict(rope_parameters=rope(1e6))]),
    "qwen2-moe": (Qwen2MoeConfig(**LLAMA, vocab_size=51, intermediate_size=20, moe_intermediate_size=6,
                                 shared_expert_intermediate_size=9, num_experts=5, num_experts_per_tok=2,
                                 decoder_sparse_step=2, router_aux_loss_coef=0.0, rope_parameters=rope(50.0)),
                  torch.bfloat16, None, [dict(num_experts_per_tok=3), dict(norm_topk_prob=True)]),
    "qwen3-moe": (Qwen3MoeConfig(**LLAMA, vocab_size=51, intermediate_size=12, head_dim=6, moe_intermediate_size=4,
                                 num_experts=5, num_experts_per_tok=3, norm_topk_prob=True, mlp_only_layers=[1],
                                 tie_word_embeddings=True, router_aux_loss_coef=0.0, rope_parameters=rope(50.0)),
                  torch.float32, "8KB", [dict(num_experts_per_tok=2), dict(norm_topk_prob=False)]),
    "gemma2": (Gemma2Config(**LLAMA, vocab_size=50, intermediate_size=20, head_dim=6, query_pre_attn_scalar=9,
                            sliding_window=4, attn_logit_softcapping=2.0, final_logit_softcapping=3.0,
                            rope_parameters=rope(50.0)),
               torch.bfloat16, None, [dict(attn_logit_softcapping=None), dict(final_logit_softcapping=None),
                                      dict(query_pre_attn_scalar=6), dict(sliding_window=3),
                                      dict(layer_types=["full_attention", "sliding_attention"])]),
    "gemma3": (Gemma3TextConfig(**LLAMA | dict(num_hidden_layers=3), vocab_size=50, intermediate_size=12, head_dim=4,
                                query_pre_attn_scalar=7, sliding_window=4,
                                layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                                rope_parameters=dict(full_attention=rope(80.0, "linear", factor=2.0),
                                                     sliding_attention=rope(20.0))),
               torch.bfloat16, None, [dict(query_pre_attn_scalar=4), dict(sliding_window=5),
                                      dict(rope_parameters=dict(full_attention=rope(80.0),
                                                                sliding_attention=rope(20.0))),
                                      dict(rope_parameters=dict(full_attention=rope(80.0, "linear", factor=2.0),
                                                                sliding_attention=rope(80.0)))]),
    "olmo2": (Olmo2Config(**LLAMA, vocab_size=50, intermediate_size=20, rope_parameters=rope(50.0)),
              torch.float32, None, [dict(rms_norm_eps=1e-6), dict(rope_parameters=rope(1e4))]),
    "phi3": (Phi3Config(**LLAMA, vocab_size=50, intermediate_size=20, head_dim=6, sliding_window=7,
                        rope_parameters=rope(50.0, partial_rotary_factor=0.7)),
             torch.float16, None, [dict(rope_parameters=rope(50.0, partial_rotary_factor=1.0)),
                                   dict(sliding_window=6), dict(rms_norm_eps=1e-6)]),
    "phi3-long": (Phi3Config(**LLAMA, vocab_size=50, intermediate_size=20, original_max_position_embeddings=5,
                             rope_parameters=rope(50.0, "longrope", short_factor=[1.0, 1.5], long_factor=[2.0, 5.0],
                                                  original_max_position_embeddings=5)),
                  torch.float32, None, [dict(original_max_position_embeddings=64,
                                             rope_parameters=rope(50.0, "longrope", short_factor=[1.0, 1.5],
                                                                  long_factor=[2.0, 5.0],
                                                                  original_max_position_embeddings=64)),
                                        dict(rope_parameters=rope(50.0))]),
    "smollm3": (SmolLM3Config(**LLAMA | dict(num_hidden_layers=3), vocab_size=50, intermediate_size=20,
                              no_rope_layer_interval=2, use_sliding_window=True, sliding_window=4,
                              rope_parameters=rope(50.0)),
                torch.bfloat16, None, [dict(no_rope_layers=[1, 1, 1]), dict(layer_types=["full_attention"] * 3),
                                       dict(sliding_window=3), dict(rope_parameters=rope(2e6))]),
    "deepseek-v2": (DeepseekV2Config(**LATENTS, vocab_size=41, moe_intermediate_size=4, n_routed_experts=6,
                                     n_shared_experts=1, num_experts_per_tok=2, first_k_dense_replace=1, n_group=3,
                                     topk_group=1, topk_method="group_limited_greedy", routed_scaling_factor=1.5,
                                     q_lora_rank=None, rope_parameters=rope(50.0)),
                    torch.bfloat16, None, [dict(topk_method="greedy"), dict(routed_scaling_factor=1.0),
                                           dict(topk_group=2), dict(rope_parameters=rope(1e4))]),
    "deepseek-v3": (DeepseekV3Config(**LATENTS, vocab_size=41, moe_intermediate_size=4, n_routed_experts=6,
                                     n_shared_experts=1, num_experts_per_tok=2, first_k_dense_replace=1, n_group=2,
                                     topk_group=1, routed_scaling_factor=2.0, q_lora_rank=7, num_mtp_layers=0,
                                     rope_parameters=rope(50.0, "yarn", factor=4.0, mscale=0.8, mscale_all_dim=0.6,
                                                          beta_fast=2.0, beta_slow=0.5,
                                                          original_max_position_embeddings=16)),
                    torch.bfloat16, None, [dict(norm_topk_prob=False), dict(topk_group=2),
                                           dict(rope_interleave=False), dict(rope_parameters=rope(50.0)),
                                           dict(rope_parameters=rope(50.0, "yarn", factor=4.0, beta_fast=2.0,
                                                                     beta_slow=0.5, attention_factor=1.0,
                                                                     original_max_position_embeddings=16))]),
    "gpt-oss": (GptOssConfig(**LLAMA | dict(num_attention_heads=8), vocab_size=41, intermediate_size=5, head_dim=4,
                             num_local_experts=5, num_experts_per_tok=2, sliding_window=4, router_aux_loss_coef=0.0,
                             rope_parameters=rope(50.0, "yarn", factor=4.0, beta_fast=2.0, beta_slow=0.5,
                                                  truncate=False, original_max_position_embeddings=16)),
                torch.bfloat16, None, [dict(num_experts_per_tok=3), dict(sliding_window=3), dict(swiglu_limit=0.5),
                                       dict(layer_types=["full_attention"] * 2), dict(rope_parameters=rope(50.0))]),
    "gpt2": (GPT2Config(**GPT2, vocab_size=43, resid_pdrop=0.0, attn_pdrop=0.0, embd_pdrop=0.0),
             torch.float16, None, [dict(activation_function="gelu"), dict(layer_norm_epsilon=1e-6)]),
    "gpt2-erf": (GPT2Config(**GPT2, vocab_size=39, n_inner=24, activation_function="gelu", tie_word_embeddings=False),
                 torch.float32, None, [dict(activation_function="gelu_new"), dict(layer_norm_epsilon=1e-6)]),
}


@contextmanager
def float64_throughout():
    """transformers takes rotary angles, RMSNorm and softmax to float32, of any model; in here to float64."""
    single, short = torch.float32, torch.Tensor.float
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double
    try:
        yield
    finally:
        torch.float32 = torch.float = single
        torch.Tensor.float = short


def normal(rng, shape):
    """Python's numbers, which no version of PyTorch changes."""
    return torch.tensor([rng.gauss(0.0, 1.0) for _ in range(shape.numel())], dtype=torch.float64).view(shape)


def fill(model, rng):
    """Draws all parameters: matrices 0.3·n, gains of norms 1 + 0.2·n, biases 0.1·n, with n standard normal.

    Gemma's files have gains less 1. The bias of DeepSeek's choice is a buffer.
    """
    one = 0 if model.config.model_type.startswith("gemma") else 1
    for name, parameter in model.named_parameters():
        n = normal(rng, parameter.shape)
        if n.dim() >= 2:
            parameter.data = 0.3 * n
        else:
            parameter.data = one + 0.2 * n if name.endswith("weight") else 0.1 * n
    for name, buffer in model.named_buffers():
        if name.endswith(BIAS):
            buffer.copy_(0.3 * normal(rng, buffer.shape))


def save(folder, config, dtype, shard, rng):
    """Writes config.json and the weights as save_pretrained does, and nothing else that it writes."""
    shutil.rmtree(folder, ignore_errors=True)
    model = AutoModelForCausalLM.from_config(config)
    fill(model, rng)
    model.to(dtype).save_pretrained(folder, **dict(max_shard_size=shard) if shard else {})
    (folder / "generation_config.json").unlink()
    if folder.name == "linear":
        as_version_4(folder / "config.json")


def as_version_4(file):
    """Rewrites a configuration as transformers 4 wrote it: rope_theta, rope_scaling, torch_dtype, and no head_dim."""
    config = json.loads(file.read_text())
    scaling = config.pop("rope_parameters")
    config["rope_theta"] = scaling.pop("rope_theta")
    config["rope_scaling"] = dict(type=scaling.pop("rope_type"), **scaling)
    config["torch_dtype"] = config.pop("dtype")
    del config["head_dim"]
    file.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def load(folder, **changes):
    """The model that the folder holds, in float64, with these changes to its configuration."""
    config = AutoConfig.from_pretrained(folder)
    for key, value in changes.items():
        setattr(config, key, value)
    return AutoModelForCausalLM.from_pretrained(folder, config=config, dtype=torch.float64,
                                                attn_implementation="eager", experts_implementation="eager").double().eval()


def as_stored(tensors, model_type):
    """Of all experts in one, as the library holds them, the same expert by expert, as it saves them."""
    stored = dict(tensors) if model_type == "gpt_oss" else {}
    for name, tensor in tensors.items() if not stored else []:
        prefix, _, last = name.partition(".mlp.")
        mixtral = model_type == "mixtral" and last
        prefix += (".block_sparse_moe." if mixtral else ".mlp.") if last else ""
        gate, up, down = ["w1", "w3", "w2"] if mixtral else ["gate_proj", "up_proj", "down_proj"]
        for e in range(len(tensor) if last.startswith("experts.") else 0):
            at = f"{prefix}experts.{e}."
            if last == "experts.gate_up_proj":
                stored[f"{at}{gate}.weight"], stored[f"{at}{up}.weight"] = tensor[e].chunk(2)
            else:
                stored[f"{at}{down}.weight"] = tensor[e]
        if not last.startswith("experts."):
            stored[prefix + last] = tensor
    return stored


@contextmanager
def leads_of_routers(model):
    """A list that gets, of every token in every block with experts, by how much the last that is chosen leads."""
    leads, hooks = [], []

    def lead(scores, k):
        if k < scores.shape[-1]:
            best = scores.topk(k + 1).values
            leads.extend((best[:, -2] - best[:, -1]).tolist())

    def note(router, _, output):
        scores, groups, bias = output[0], getattr(router, "num_group", None), getattr(router, BIAS, None)
        if bias is not None:
            scores = scores.sigmoid() + bias
        if groups:
            split = scores.unflatten(-1, (groups, -1))
            of_groups = split.topk(1 if bias is None else 2).values.sum(-1)
            lead(of_groups, router.topk_group)
            chosen = torch.zeros_like(of_groups).scatter(1, of_groups.topk(router.topk_group).indices, 1).bool()
            scores = split.masked_fill(~chosen.unsqueeze(-1), float("-inf")).flatten(1)
        lead(scores, router.top_k)
    for module in model.modules():
        if type(module).__name__.lower().endswith("topkrouter"):
            hooks.append(module.register_forward_hook(note))
    try:
        yield leads
    finally:
        for hook in hooks:
            hook.remove()


def logits(model, batch):
    """Those of each sequence by itself, in float64 throughout."""
    with float64_throughout():
        if hasattr(model, "model"):  # not GPT-2
            model.model.rotary_emb = type(model.model.rotary_emb)(model.config)  # its frequencies
        return stock_logits(model, batch)


def stock_logits(model, batch):
    return [model(torch.tensor([ids]), use_cache=False).logits[0] for ids in batch]


def loss_of(outputs, batch):
    """The mean cross entropy of all next tokens of all sequences."""
    nexts = torch.tensor([id for ids in batch for id in ids[1:]])
    return cross_entropy(torch.cat([output[:-1] for output in outputs]), nexts)


@torch.no_grad()
def greedy(model, vocabulary, rng):
    """A prompt, what greedily follows, and the smallest lead of a best logit over the second best."""
    while True:
        ids, lead = [rng.randrange(vocabulary) for _ in range(PROMPT)], float("inf")
        with leads_of_routers(model) as leads:
            for _ in range(NEW):
                best = logits(model, [ids])[0][-1].topk(2)
                ids.append(best.indices[0].item())
                lead = min(lead, (best.values[0] - best.values[1]).item())
        if lead > 1e-2 and min(leads, default=1) > LEAD and len(set(ids[PROMPT:])) >= 6:  # neither may rounding decide, nor does it run in circles
            return dict(prompt=ids[:PROMPT], ids=ids[PROMPT:]), lead


@torch.no_grad()
def check(folder, model, batch, outputs, grads, rng):
    """The library as it is agrees but for its float32, every twin differs, and the gradients are the loss's slopes."""
    def distance(others):
        return max((a - b).abs().max().item() for a, b in zip(outputs, others))
    rounding = distance(stock_logits(load(folder), batch))
    print(f"  float32 in the library: logits differ by {rounding:.1e}")
    assert rounding < 1e-4
    for changes in MODELS[folder.name][3]:
        twin = distance(logits(load(folder, **changes), batch))
        print(f"  {changes}: logits differ by {twin:.1e}")
        assert twin > 1e-4
    named, step, ends = dict(model.named_parameters()), 1e-6, []
    files = {name: tensor for file in folder.glob("model*.safetensors") for name, tensor in load_file(file).items()}
    biases = {name: buffer for name, buffer in model.named_buffers() if name.endswith(BIAS)}
    stored = as_stored(named | biases, model.config.model_type)
    assert set(stored) == set(files) and all((stored[name] == files[name]).all() for name in files)
    assert all(parameter.count_nonzero() == parameter.numel() for parameter in named.values())
    way = {name: normal(rng, parameter.shape) for name, parameter in named.items()}
    for steps in [1, -2]:
        for name, parameter in named.items():
            parameter += steps * step * way[name]
        ends.append(loss_of(logits(model, batch), batch).item())
    slope = sum((grad * way[name]).sum().item() for name, grad in grads.items())
    seen = (ends[0] - ends[1]) / (2 * step)
    print(f"  slope along a random way: {seen:.9f}, by the gradients {slope:.9f}")
    assert abs(seen - slope) < 1e-7 * max(1, abs(slope))


def write(folder, golden, outputs, grads):
    """golden.json, and golden.safetensors with the widest numbers that the limit lets in."""
    lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in golden.items())
    (folder / "golden.json").write_text("{\n" + lines + "\n}\n")
    f64, f32 = torch.float64, torch.float32
    for wide, narrow in [(f64, f64), (f64, f32), (f32, f32)]:
        tensors = {f"logits.{i}": output.detach().to(wide) for i, output in enumerate(outputs)}
        tensors |= {f"grad.{name}": grad.to(narrow).contiguous() for name, grad in grads.items()}
        save_file(tensors, folder / "golden.safetensors")
        size = sum(file.stat().st_size for file in folder.iterdir())
        if size <= LIMIT:
            break
    print(f"  {size} bytes; logits {wide}, gradients {narrow}")
    assert size <= LIMIT
    for file in folder.iterdir():
        file.chmod(0o644)


def balance(folder, batch):
    """balance.json: what changes where output_router_logits adds the balance of experts. All sequences at once, padded."""
    model = load(folder, output_router_logits=True, router_aux_loss_coef=COEFFICIENT)
    length = max(map(len, batch))

    def padded(rows, padding):
        return torch.tensor([row + [padding] * (length - len(row)) for row in rows])
    with float64_throughout():
        model.model.rotary_emb = type(model.model.rotary_emb)(model.config)
        seen = model(padded(batch, 0), attention_mask=padded([[1] * len(ids) for ids in batch], 0),
                     labels=padded(batch, -100), use_cache=False)
    seen.loss.backward()
    grads = as_stored({name: parameter.grad for name, parameter in model.named_parameters()}, model.config.model_type)
    norm = sum(grad.square().sum().item() for grad in grads.values()) ** 0.5
    routers = {name: grad.flatten().tolist() for name, grad in grads.items() if name.endswith((".gate.weight", ".router.weight"))}
    print(f"  with the balance, {seen.aux_loss:.4f}: loss {seen.loss:.4f}, gradients' norm {norm:.3f}")
    told = dict(coefficient=COEFFICIENT, loss=seen.loss.item(), grad_norm=norm, gradients=routers)
    (folder / "balance.json").write_text(json.dumps(told, indent=1) + "\n")


def make(name):
    print(name)
    folder, (config, dtype, shard, _) = HERE / name, MODELS[name]
    rng = random.Random(name)
    save(folder, config, dtype, shard, rng)
    model = load(folder)
    leads, used = [0], False
    while min(leads, default=1) <= LEAD or not used:  # a model without experts takes its first batch
        batch = [[rng.randrange(config.vocab_size) for _ in range(length)] for length in LENGTHS]
        with leads_of_routers(model) as leads:
            outputs = logits(model, batch)
        loss = loss_of(outputs, batch)
        model.zero_grad()
        loss.backward()
        grads = {name: parameter.grad for name, parameter in model.named_parameters()}
        used = all(grad[e].any() for name, grad in grads.items() if ".experts." in name for e in range(len(grad)))
    norm = sum(grad.square().sum().item() for grad in grads.values()) ** 0.5
    text, lead = greedy(model, config.vocab_size, rng)
    largest = max(output.abs().max().item() for output in outputs)
    print(f"  loss {loss:.4f}, gradients' norm {norm:.3f}, largest logit {largest:.2f}")
    print(f"  smallest lead of a greedy token {lead:.4f}")
    check(folder, model, batch, outputs, grads, rng)
    golden = dict(batch=batch, loss=loss.item(), grad_norm=norm, greedy=text, torch=torch.__version__,
                  transformers=transformers.__version__)
    write(folder, golden, outputs, as_stored(grads, config.model_type))
    if hasattr(config, "router_aux_loss_coef"):
        balance(folder, batch)


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    for name in sys.argv[1:] or MODELS:
        make(name)
