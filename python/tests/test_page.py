"""The page for PyTorch users: its programs run, and give the answers that it quotes."""

import re
from pathlib import Path

import pytest
import torch

from equipart.torch import Different

PAGE = (Path(__file__).parent.parent.parent / "docs/src/pytorch.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_page(capsys):
    first, second, third = blocks("python")
    proven, different = blocks("text")
    names = {"__name__": "page"}
    exec(compile(first, "mlp.py", "exec"), names)
    with_any_number = re.sub(r"\d+", r"\\d+", re.escape(proven))
    assert re.fullmatch(with_any_number, capsys.readouterr().out)
    with pytest.raises(Different) as error:
        exec(compile(second, "part.py", "exec"), names)
    assert f"equipart.torch.Different: {error.value}\n" == different
    exec(third, names)


def test_the_fixture(prove):
    from models import Mlp

    assert prove.keywords["seed"] > 0
    assert prove(Mlp, lambda whole: whole, inputs=torch.empty(2, 8)).keys > 0


def test_the_command(tmp_path, capsys, monkeypatch):
    from equipart.torch.__main__ import main

    museum = Path(__file__).parent.parent / "museum" / "row_bias.py"
    assert main([str(museum), "--seed", "3"]) == 1
    assert capsys.readouterr().out.startswith("different: the gradient of bias of rank 0 differs")
    right = tmp_path / "right.py"
    right.write_text(blocks("python")[0].replace("print(prove", "inputs = torch.empty(4, 8)\n#"))
    assert main([str(right), "--ranks", "2"]) == 0
    assert capsys.readouterr().out.startswith("proven: on 2 ranks")
    wrong = tmp_path / "wrong.py"
    wrong.write_text("unsplit = 3")
    assert main([str(wrong)]) == 2
    assert "defines no function unsplit and no function split" in capsys.readouterr().err
    assert main([str(tmp_path / "none.py")]) == 2
