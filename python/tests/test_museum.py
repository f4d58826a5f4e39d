"""Bugs that real systems shipped: each is seen and located, and the mended module passes."""

import inspect
import runpy
from pathlib import Path

import pytest

from checks import prove

from equipart.torch import Different

MUSEUM = Path(__file__).parent.parent / "museum"
EXHIBITS = sorted(path for path in MUSEUM.glob("*.py") if path.stem != "collectives")


@pytest.mark.parametrize("path", EXHIBITS, ids=lambda path: path.stem)
def test_an_exhibit(path, monkeypatch):
    monkeypatch.syspath_prepend(MUSEUM)
    module = runpy.run_path(str(path))
    program = {name: value for name, value in module.items() if name in inspect.signature(prove).parameters}
    with pytest.raises(Different) as error:
        prove(**program)
    sentence = str(error.value)
    for said in module["said"]:
        assert said in sentence, sentence
    prove(**program | {"split": module["mended"]})


def test_there_are_eight():
    assert len(EXHIBITS) >= 8
