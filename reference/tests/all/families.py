"""Prints the numbers in families.rs: three training steps of Hugging Face's GPT-2, Mistral, Qwen2 and Qwen3 in
float64, with PyTorch's AdamW.

    pip install torch transformers && python families.py
"""
import torch
from transformers import (GPT2Config, GPT2LMHeadModel, MistralConfig, MistralForCausalLM, Qwen2Config,
                          Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM)

D, BLOCKS, Q, K, DIM, F, V, EPS = 8, 2, 4, 2, 4, 6, 11, 0.0625
BATCHES = [[[1, 5, 2, 7], [9]], [[3, 3, 0, 10, 4, 8]]]  # targets: (3·id + place) mod V, of place 2 ignored


def draw(shapes):
    """[(name, rows, cols)] in program order -> name: [rows, cols]; the same generator as in families.rs."""
    state, w = 2024, {}
    for name, rows, cols in shapes:
        numbers = []
        for _ in range(rows * cols):
            state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
            numbers.append((state >> 40) / 2**23 - 1.0)
        w[name] = torch.tensor(numbers, dtype=torch.float64).reshape(rows, cols)
    return w


def gpt2():
    shapes = [("embedding", V, D), ("positions", 7, D)]
    for i in range(BLOCKS):
        shapes += [(f"blocks.{i}.{name}", rows, cols) for name, rows, cols in [
            ("norm1", 1, D), ("norm1.bias", 1, D), ("attention.qkv", D, 3 * D), ("attention.qkv.bias", 1, 3 * D),
            ("attention.out", D, D), ("attention.out.bias", 1, D), ("norm2", 1, D), ("norm2.bias", 1, D),
            ("mlp.up", D, F), ("mlp.up.bias", 1, F), ("mlp.down", F, D), ("mlp.down.bias", 1, D)]]
    w = draw(shapes + [("norm", 1, D), ("norm.bias", 1, D)])
    config = GPT2Config(vocab_size=V, n_positions=7, n_embd=D, n_layer=BLOCKS, n_head=Q, n_inner=F,
                        layer_norm_epsilon=EPS, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
                        attn_implementation="eager", bos_token_id=None, eos_token_id=None)
    model = GPT2LMHeadModel(config).double()
    state = {"transformer.wte.weight": w["embedding"], "transformer.wpe.weight": w["positions"],
             "transformer.ln_f.weight": w["norm"][0], "transformer.ln_f.bias": w["norm.bias"][0],
             "lm_head.weight": w["embedding"]}
    parts = {"ln_1": "norm1", "attn.c_attn": "attention.qkv", "attn.c_proj": "attention.out", "ln_2": "norm2",
             "mlp.c_fc": "mlp.up", "mlp.c_proj": "mlp.down"}
    for i in range(BLOCKS):
        for theirs, ours in parts.items():
            weight, bias = w[f"blocks.{i}.{ours}"], w[f"blocks.{i}.{ours}.bias"]
            state[f"transformer.h.{i}.{theirs}.weight"] = weight if weight.shape[0] > 1 else weight[0]
            state[f"transformer.h.{i}.{theirs}.bias"] = bias[0]
    model.load_state_dict(state)
    return model


def llama_like(kind, config, bias_qkv=False, head_norm=False, **settings):
    shapes = [("embedding", V, D)]
    for i in range(BLOCKS):
        row = (Q + 2 * K) * DIM
        shapes += [(f"blocks.{i}.{name}", rows, cols) for name, rows, cols in [
            ("norm1", 1, D), ("attention.qkv", D, row), *[("attention.qkv.bias", 1, row)] * bias_qkv,
            *[("attention.q_norm", 1, DIM), ("attention.k_norm", 1, DIM)] * head_norm,
            ("attention.out", Q * DIM, D), ("norm2", 1, D), ("mlp.gate_up", D, 2 * F), ("mlp.down", F, D)]]
    w = draw(shapes + [("norm", 1, D), ("head", D, V)])
    model = kind(config(hidden_size=D, num_hidden_layers=BLOCKS, num_attention_heads=Q, num_key_value_heads=K,
                        head_dim=DIM, intermediate_size=F, vocab_size=V, rms_norm_eps=EPS,
                        rope_parameters={"rope_type": "default", "rope_theta": 100.0}, tie_word_embeddings=False,
                        attn_implementation="eager", bos_token_id=None, eos_token_id=None, pad_token_id=None,
                        **settings)).double()
    state = {"model.embed_tokens.weight": w["embedding"], "model.norm.weight": w["norm"][0],
             "lm_head.weight": w["head"].T}
    for i in range(BLOCKS):
        to, of = f"model.layers.{i}.", f"blocks.{i}."
        for name, part in zip("qkv", w[of + "attention.qkv"].T.split([Q * DIM, K * DIM, K * DIM])):
            state[to + f"self_attn.{name}_proj.weight"] = part
        if bias_qkv:
            for name, part in zip("qkv", w[of + "attention.qkv.bias"][0].split([Q * DIM, K * DIM, K * DIM])):
                state[to + f"self_attn.{name}_proj.bias"] = part
        if head_norm:
            for name in "qk":
                state[to + f"self_attn.{name}_norm.weight"] = w[of + f"attention.{name}_norm"][0]
        gate, up = w[of + "mlp.gate_up"].T.split([F, F])
        state |= {to + "self_attn.o_proj.weight": w[of + "attention.out"].T, to + "mlp.gate_proj.weight": gate,
                  to + "mlp.up_proj.weight": up, to + "mlp.down_proj.weight": w[of + "mlp.down"].T,
                  to + "input_layernorm.weight": w[of + "norm1"][0],
                  to + "post_attention_layernorm.weight": w[of + "norm2"][0]}
    model.load_state_dict(state)
    in_float64(model)
    return model


def in_float64(model):
    """What computes in float32 by default: angles and norms."""
    frequency = 100.0 ** (-torch.arange(0, DIM, 2, dtype=torch.float64) / DIM)

    def angles(_, position_ids, *args):
        angle = torch.cat([position_ids[..., None].double() * frequency] * 2, -1)
        return angle.cos(), angle.sin()

    def norm(self, x):
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
    model.model.rotary_emb.forward = angles
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = norm.__get__(module)


def softmax64(x, dim=-1, dtype=None):
    return x.double().exp() / x.double().exp().sum(dim, keepdim=True)


torch.nn.functional.softmax = softmax64  # eager attention asks for float32


def train(name, model, smoothing=0.0, z=0.0):
    matrices = [p for p in model.parameters() if p.dim() == 2]
    rows = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.25}, {"params": rows, "weight_decay": 0.0}],
                                  lr=0.0625, betas=(0.875, 0.75), eps=0.03125)
    for step in range(3):
        optimizer.zero_grad()
        losses = []
        for batch in BATCHES:
            loss = 0.0
            for ids in batch:
                logits = model(input_ids=torch.tensor([ids])).logits[0]
                if step == 0 and len(ids) == 6:
                    print(f"{name}: last logits", logits[5].tolist())
                targets = torch.tensor([-100 if place == 2 else (3 * id + place) % V for place, id in enumerate(ids)])
                loss = loss + torch.nn.functional.cross_entropy(logits, targets, reduction="sum", ignore_index=-100,
                                                                label_smoothing=smoothing) / 9
                loss = loss + z * (logits.logsumexp(-1)[targets != -100] ** 2).sum() / 9
            loss.backward()
            losses.append(loss.item())
        norm2 = sum((p.grad**2).sum() for p in model.parameters())
        factor = min(1.0, 0.25 / norm2.sqrt().item())  # without PyTorch's 1e-6
        for p in model.parameters():
            p.grad *= factor
        optimizer.step()
        print(losses, norm2.item())
    print("sum of squares of the weights", sum((p**2).sum() for p in model.parameters()).item())


train("gpt2", gpt2(), smoothing=0.125, z=0.25)
train("mistral", llama_like(MistralForCausalLM, MistralConfig, sliding_window=3))
train("qwen2", llama_like(Qwen2ForCausalLM, Qwen2Config, bias_qkv=True, use_sliding_window=True, sliding_window=2,
                          max_window_layers=1))
train("qwen3", llama_like(Qwen3ForCausalLM, Qwen3Config, head_norm=True))
