"""Llama of transformers has, in the field, the elements of equipart's own unsplit run under the same key."""

import json
import struct
import subprocess
from pathlib import Path

import pytest
import torch
from models import SIZES
from torch import nn

from equipart import _field
from equipart.torch.elements import named, rsqrt
from equipart.torch.field import RULES, Degree, aten, flat, wrap
from equipart.torch.program import put
from equipart.torch.running import Run

transformers = pytest.importorskip("transformers")
ROOT = Path(__file__).parent.parent.parent
PROGRAMS = [ROOT / "target" / build / "equipart" for build in ("debug", "release")]
CONFIG = SIZES | dict(rms_norm_eps=2**-17, rope_theta=10000.0)


def dumped(path):
    """The tensors of a dump, as elements, and what is said of them."""
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    said = header.pop("__metadata__")
    words = {}
    for name, entry in header.items():
        first, last = (8 + size + at for at in entry["data_offsets"])
        words[name] = torch.frombuffer(bytearray(data[first:last]), dtype=torch.int64).view(entry["shape"])
    return words, said


class Rotary(nn.Module):
    """Keyed pairs in place of cosines and sines, as equipart's proofs have."""

    def __init__(self, key, width):
        super().__init__()
        self.key, self.width = key, width

    def forward(self, x, position_ids):
        cos, sin = (torch.empty(32, self.width // 2, dtype=torch.int64) for _ in range(2))
        _field.rotary(self.key, self.width, 10000.0, flat(cos), flat(sin))
        return tuple(wrap(torch.cat((x, x), -1)[position_ids]) for x in (cos, sin))


def test_llama_has_the_elements_of_equiparts_own_run(tmp_path, monkeypatch):
    programs = [program for program in PROGRAMS if program.exists()]
    if not programs:
        pytest.skip("the program is not built")
    config = {"model_type": "llama", "hidden_act": "silu", **CONFIG}
    (tmp_path / "config.json").write_text(json.dumps(config))
    command = [programs[0], "prove", "--config", "config.json", "--layout", "none", "--key", "5", "--dump", "dump"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    weights, said = dumped(tmp_path / "dump" / "weights.safetensors")
    gradients, _ = dumped(tmp_path / "dump" / "gradients.safetensors")
    seen, of_rows = dumped(tmp_path / "dump" / "activations.safetensors")
    loss, _ = dumped(tmp_path / "dump" / "step.safetensors")
    assert said["number"] == "f61"

    run = Run(int(said["key"], 16))
    run.functions = _field.Functions(int(said["key"], 16), parity=False)
    run.enter()
    # there a sigmoid is a function of its own, and none of the exponential
    monkeypatch.setitem(RULES, aten.sigmoid, lambda func, args, kwargs: named("sigmoid", args[0]))
    monkeypatch.setitem(RULES, aten.silu, lambda func, args, kwargs: args[0] * named("sigmoid", args[0]))
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(attn_implementation="eager", **CONFIG))
    put(model, lambda at, name, old: weights[name].clone())
    model.model.rotary_emb = Rotary(int(said["key"], 16), 4)
    for layer in model.model.layers:
        layer.self_attn.scaling = rsqrt(4)

    rows = json.loads(of_rows["rows"])
    table = weights["model.embed_tokens.weight"]
    ids = [int((table == row).all(1).nonzero()[0]) for row in seen["embedding.out"]]
    logits = []
    for sequence in sorted({sequence for sequence, _ in rows}):
        mine = [id for id, (of, _) in zip(ids, rows) if of == sequence]
        logits.append(model(input_ids=torch.tensor([mine]), use_cache=False).logits[0])
    logits = torch.cat(logits)
    assert torch.equal(logits.residues, seen["head.out"])

    # a row's target is where the gradient of the logits is not the softmax over the number of targets
    back = seen["gradient of head.out"]
    counted = (back != 0).any(1)
    others = (torch.softmax(logits, -1) / int(counted.sum())).residues == back
    assert (others.sum(1)[counted] == others.shape[1] - 1).all()
    targets = torch.where(counted, others.long().argmin(1), -100)
    mean = nn.functional.cross_entropy(logits, targets)
    mean.backward()
    assert torch.equal(mean.residues.view(1), loss["loss"])
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter.grad.residues, gradients[name]), name
    assert Degree().cleared() == 0.0
