"""Prints the numbers in llama.rs: three training steps of Hugging Face's Llama in float64, with PyTorch's AdamW; then
the numbers in muon.rs: six steps with torch.optim.Muon, whose cast to bfloat16 is removed, and then with the cast.

    pip install torch transformers && python llama.py
"""
import inspect

import torch
from torch.optim import _muon
from transformers import LlamaConfig, LlamaForCausalLM

D, BLOCKS, Q, K, DIM, F, V = 8, 2, 4, 2, 4, 6, 11
BATCHES = [[[1, 5, 2, 7], [9]], [[3, 3, 0, 10, 4, 8]]]  # targets: (3·id + place) mod V


def parameters(tied):
    """Canonical name -> [rows, cols], drawn in program order; the same generator as in llama.rs."""
    state = 2024

    def draw(rows, cols):
        nonlocal state
        out = []
        for _ in range(rows * cols):
            state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
            out.append((state >> 40) / 2**23 - 1.0)
        return torch.tensor(out, dtype=torch.float64).reshape(rows, cols)

    w = {"embedding": draw(V, D)}
    for i in range(BLOCKS):
        w[f"blocks.{i}.norm1"] = draw(1, D)
        w[f"blocks.{i}.attention.qkv"] = draw(D, (Q + 2 * K) * DIM)
        w[f"blocks.{i}.attention.out"] = draw(Q * DIM, D)
        w[f"blocks.{i}.norm2"] = draw(1, D)
        w[f"blocks.{i}.mlp.gate_up"] = draw(D, 2 * F)
        w[f"blocks.{i}.mlp.down"] = draw(F, D)
    w["norm"] = draw(1, D)
    if not tied:
        w["head"] = draw(D, V)
    return w


def llama(w, tied):
    config = LlamaConfig(hidden_size=D, num_hidden_layers=BLOCKS, num_attention_heads=Q, num_key_value_heads=K,
                         head_dim=DIM, intermediate_size=F, vocab_size=V, rms_norm_eps=0.0625,
                         rope_parameters={"rope_type": "default", "rope_theta": 100.0}, tie_word_embeddings=tied,
                         attn_implementation="eager", bos_token_id=None, eos_token_id=None, pad_token_id=None)
    model = LlamaForCausalLM(config).double()
    rotary = model.model.rotary_emb  # its frequencies are float32 by default
    rotary.inv_freq = 100.0 ** (-torch.arange(0, DIM, 2, dtype=torch.float64) / DIM)

    def angles(_, position_ids):
        angle = torch.cat([position_ids[..., None].double() * rotary.inv_freq] * 2, -1)
        return angle.cos(), angle.sin()
    rotary.forward = angles
    state = {"model.embed_tokens.weight": w["embedding"], "model.norm.weight": w["norm"][0]}
    for i in range(BLOCKS):
        to, of = f"model.layers.{i}.", f"blocks.{i}."
        q, k, v = w[of + "attention.qkv"].T.split([Q * DIM, K * DIM, K * DIM])
        gate, up = w[of + "mlp.gate_up"].T.split([F, F])
        state |= {to + "self_attn.q_proj.weight": q, to + "self_attn.k_proj.weight": k,
                  to + "self_attn.v_proj.weight": v, to + "self_attn.o_proj.weight": w[of + "attention.out"].T,
                  to + "mlp.gate_proj.weight": gate, to + "mlp.up_proj.weight": up,
                  to + "mlp.down_proj.weight": w[of + "mlp.down"].T,
                  to + "input_layernorm.weight": w[of + "norm1"][0],
                  to + "post_attention_layernorm.weight": w[of + "norm2"][0]}
    state["lm_head.weight"] = w["embedding"] if tied else w["head"].T
    model.load_state_dict(state)
    # its norms compute in float32 by default
    def norm(self, x):
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
    for module in model.modules():
        if type(module).__name__ == "LlamaRMSNorm":
            module.forward = norm.__get__(module)
    return model


def softmax64(x, dim=-1, dtype=None):
    return x.double().exp() / x.double().exp().sum(dim, keepdim=True)


torch.nn.functional.softmax = softmax64  # eager attention asks for float32
for tied in (False, True):
    model = llama(parameters(tied), tied)
    matrices = [p for p in model.parameters() if p.dim() == 2]
    gains = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.25}, {"params": gains, "weight_decay": 0.0}],
                                  lr=0.0625, betas=(0.875, 0.75), eps=0.03125)
    for step in range(3):
        optimizer.zero_grad()
        losses = []
        for batch in BATCHES:
            loss = 0.0
            for ids in batch:
                logits = model(input_ids=torch.tensor([ids])).logits[0]
                if step == 0 and not losses and not loss:
                    print(f"tied {tied}: first logits", logits[1].tolist())
                targets = torch.tensor([(3 * id + place) % V for place, id in enumerate(ids)])
                loss = loss + torch.nn.functional.cross_entropy(logits, targets, reduction="sum") / 11
            loss.backward()
            losses.append(loss.item())
        norm2 = sum((p.grad**2).sum() for p in model.parameters())
        factor = min(1.0, 0.25 / norm2.sqrt().item())  # without PyTorch's 1e-6
        for p in model.parameters():
            p.grad *= factor
        optimizer.step()
        print(losses, norm2.item())
    print("sum of squares of the weights", sum((p**2).sum() for p in model.parameters()).item())


NEWTON_SCHULZ = inspect.getsource(_muon._zeropower_via_newtonschulz)


def train_by_muon(cast, scale):
    """Weights after each of six steps: Muon for the matrices of blocks, AdamW for the rest."""
    exec(NEWTON_SCHULZ if cast else NEWTON_SCHULZ.replace("torch.bfloat16", "torch.float64"), vars(_muon))
    model = llama(parameters(False), False)
    blocks = [p for name, p in model.named_parameters() if ".layers." in name and p.dim() == 2]
    rest = [p for name, p in model.named_parameters() if ".layers." not in name or p.dim() != 2]
    muon = torch.optim.Muon(blocks, lr=0.03125, weight_decay=0.25, adjust_lr_fn=scale)
    adamw = torch.optim.AdamW([{"params": [p for p in rest if p.dim() == 2], "weight_decay": 0.25},
                               {"params": [p for p in rest if p.dim() == 1], "weight_decay": 0.0}],
                              lr=0.0625, betas=(0.875, 0.75), eps=0.03125)
    after = [torch.cat([p.detach().flatten() for p in blocks])]
    for _ in range(6):
        model.zero_grad()
        loss = 0.0
        for ids in [ids for batch in BATCHES for ids in batch]:
            targets = torch.tensor([(3 * id + place) % V for place, id in enumerate(ids)])
            logits = model(input_ids=torch.tensor([ids])).logits[0]
            loss = loss + torch.nn.functional.cross_entropy(logits, targets, reduction="sum") / 11
        loss.backward()
        muon.step()
        adamw.step()
        after.append(torch.cat([p.detach().flatten() for p in blocks]))
        first = model.model.layers[0]
        some = [first.self_attn.k_proj.weight[1, 2], first.mlp.up_proj.weight[3, 4], first.mlp.down_proj.weight[5, 2],
                model.model.layers[1].self_attn.o_proj.weight[7, 9], model.lm_head.weight[10, 3]]
        if not cast:
            print([loss.item()], [x.item() for x in some], (after[-1] ** 2).sum().item())
    return after


for scale in ("original", "match_rms_adamw"):
    print("Muon,", scale)
    exact, narrow = train_by_muon(False, scale), train_by_muon(True, scale)
    largest = max((b - a).abs().max().item() for a, b in zip(exact, exact[1:]))
    print("largest update", largest, "difference by the cast", (exact[-1] - narrow[-1]).abs().max().item())
