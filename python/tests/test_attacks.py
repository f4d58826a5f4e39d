"""Programs in the style of public code: right ones are proven, and wrong ones are not."""

import functools
import importlib
import os
import pkgutil

import attacks
import pytest

from checks import prove as with_one_key

from equipart.torch import Different, Refused
from equipart.torch.program import Program

FAMILIES = {
    name: importlib.import_module(f"attacks.{name}") for _, name, _ in pkgutil.iter_modules(attacks.__path__)
}

prove = functools.partial(with_one_key, seed=1)  # whose draws are the same in each run

# programs that are refused: operators without a rule, and sets of tensors
REFUSED = {
    "linears: columns and rows, softshrink",
    "loopholes: a set",
    "loopholes: a set, wrongly",
    "losses: gaussian",
    "losses: multi margin",
    "others: rows of a weight norm",
}


def programs(kind):
    every = {
        f"{family}: {name}": make
        for family, of in FAMILIES.items()
        for name, make in getattr(of, kind, {}).items()
    }
    return [pytest.param(make, id=at) for at, make in every.items() if at not in REFUSED]


def refused():
    every = {f"{family}: {name}": make for family, of in FAMILIES.items() for name, make in {**getattr(of, "RIGHT", {}), **getattr(of, "WRONG", {})}.items()}
    return [pytest.param(every[at], id=at) for at in sorted(REFUSED)]


@pytest.mark.parametrize("make", programs("RIGHT"))
def test_a_right_program_is_proven(make):
    prove(**make())


@pytest.mark.parametrize("make", programs("WRONG"))
def test_a_wrong_program_is_not(make, monkeypatch):
    # sentences about where are tested elsewhere, and take as long again
    if not os.environ.get("EQUIPART_LOCATES"):
        monkeypatch.setattr(Program, "located", lambda self, seed: "")
    with pytest.raises(Different):
        prove(**make())


@pytest.mark.parametrize("make", refused())
def test_what_is_refused(make):
    with pytest.raises(Refused):
        prove(**make())
