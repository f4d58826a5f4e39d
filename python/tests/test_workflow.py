"""How one works with proofs: keys, several splits, the command's JSON, and outcomes in pytest."""

import json
import os
import pty
import subprocess
import sys
import traceback

import by_hand
import pytest
import torch
from models import Mlp

from equipart.torch import Different, Refused, prove
from equipart.torch.__main__ import main

X = torch.empty(4, 8)
PROGRAM = """
import torch
from models import Mlp
from by_hand import ParallelMlp
unsplit, split, inputs = Mlp, {split}, torch.empty(4, 8)
"""


def test_keys_are_counted():
    assert [prove(Mlp, by_hand.ParallelMlp, inputs=X, keys=keys).keys for keys in (1, 3)] == [1, 3]
    one = prove(Mlp, by_hand.ParallelMlp, inputs=X, keys=1, seed=2)
    assert prove(Mlp, by_hand.ParallelMlp, inputs=X, keys=2, seed=2).log2_error < 1.9 * one.log2_error


@pytest.mark.parametrize(
    "options, said",
    [
        (dict(keys=0), "keys is 0; wanted a number of 1 or more"),
        (dict(keys="2"), "keys is '2'; wanted a number of 1 or more"),
        (dict(log2_error=0), "log2_error is 0; wanted a number below 0"),
        (dict(ranks="2"), "ranks is '2'; wanted a number of 1 or more"),
        (dict(split=[by_hand.ParallelMlp], ranks=[1, 2]), "there are 1 splits and 2 numbers of ranks; wanted as many"),
    ],
)
def test_options_that_make_no_sense(options, said):
    with pytest.raises(ValueError, match=said):
        prove(**{"unsplit": Mlp, "split": by_hand.ParallelMlp, "inputs": X, **options})


def test_several_splits_beside_one_unsplit_run(tmp_path):
    runs = tmp_path / "runs"

    def unsplit():
        with open(runs, "a") as file:
            file.write(f"{torch.distributed.get_world_size()} ")
        return Mlp()

    proofs = prove(unsplit, by_hand.ParallelMlp, [1, 2, 4], inputs=X, keys=2)
    assert [proof.ranks for proof in proofs] == [1, 2, 4]
    assert sorted(runs.read_text().split()) == sorted("1 1  1 1  2 2 2 2  4 4 4 4 4 4 4 4".split())
    sequences = lambda whole: by_hand.ParallelMlp(whole, sequence=True)
    assert len(prove(Mlp, [by_hand.ParallelMlp, sequences], inputs=X, keys=1)) == 2
    with pytest.raises(Different):
        prove(Mlp, [by_hand.ParallelMlp, lambda whole: doubled(whole)], inputs=X, keys=1)


def doubled(module):
    module.register_forward_hook(lambda module, args, y: y * 2)
    return module


def test_the_traceback_shows_no_inner_frames():
    for split, kind in ((doubled, Different), (lambda whole: 1, Refused)):
        with pytest.raises(kind) as error:
            prove(Mlp, split, inputs=X)
        names = [frame.name for frame in traceback.extract_tb(error.value.__traceback__)]
        assert names == ["test_the_traceback_shows_no_inner_frames", "prove"]


def test_files_and_json(tmp_path, capsys):
    splits = {"right": "ParallelMlp", "wrong": "lambda whole: whole.register_forward_hook(lambda *x: x[2] * 2) and whole"}
    files = [tmp_path / f"{name}.py" for name in splits]
    [file.write_text(PROGRAM.format(split=split)) for file, split in zip(files, splits.values())]
    assert main([*map(str, files), "--json", "--keys", "1", "--ranks", "4"]) == 1
    right, wrong = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert right["outcome"] == "proven" and right["file"] == str(files[0]) and "aten.mm" in right["proofs"][0]["operators"]
    assert right["proofs"][0]["ranks"] == 4 and right["proofs"][0]["keys"] == 1
    assert wrong["outcome"] == "different" and "the output of rank 0 differs" in wrong["text"] and wrong["proofs"] == []
    assert main([str(files[0]), str(tmp_path / "none.py")]) == 2
    said = capsys.readouterr()
    assert said.out.startswith(f"{files[0]}: proven") and "none.py cannot be read" in said.err
    files[0].write_text("unsplit = (")
    assert main([str(files[0])]) == 2
    assert "is no Python" in capsys.readouterr().err


def test_a_refusal_is_an_outcome_of_its_own(tmp_path):
    (tmp_path / "test_it.py").write_text(
        PROGRAM.format(split="lambda whole: 1")
        + "\ndef test_refused(prove):\n    prove(unsplit, split, inputs=inputs)\n"
        + "\ndef test_different(prove):\n    assert False\n"
    )
    command = [sys.executable, "-m", "pytest", "-p", "equipart.torch.pytest", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1 and "1 failed, 1 refused" in done.stdout.replace("1 refused, 1 failed", "1 failed, 1 refused")
    assert "Refused: split returned int" in done.stdout and "proof.py" not in done.stdout.split("test_different")[0]


def test_progress_is_shown_on_a_terminal_only(tmp_path):
    file = tmp_path / "right.py"
    file.write_text(PROGRAM.format(split="ParallelMlp"))
    command = [sys.executable, "-m", "equipart.torch", str(file), "--keys", "1"]
    assert subprocess.run(command, capture_output=True, text=True).stderr == ""
    terminal, end = pty.openpty()
    subprocess.run(command, stderr=end, stdout=subprocess.DEVNULL)
    os.close(end)
    shown = os.read(terminal, 10_000).decode()
    assert "key 1, 2 ranks" in shown and shown.endswith("\r\x1b[K")
