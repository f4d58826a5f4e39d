"""Programs of packages, as they are: the right ones are proven, and in each a mistake of one line is seen."""

import importlib.util
from pathlib import Path

import pytest

from equipart.torch import Different, Refused, prove

FILES = sorted((Path(__file__).parent / "packages").glob("*.py"))


def loaded(file):
    """A package's programs, or None where it is not installed."""
    spec = importlib.util.spec_from_file_location(f"packages.{file.stem}", file)
    module = importlib.util.module_from_spec(spec)
    needs = file.read_text().split('NEEDS = "')[1].split('"')[0]
    try:
        importlib.import_module(needs)
    except ImportError:
        return None
    spec.loader.exec_module(module)
    return module


PACKAGES = {file.stem: loaded(file) for file in FILES}
MISSING = [pytest.param(name, "", marks=pytest.mark.skip("not installed")) for name, of in PACKAGES.items() if of is None]


def every(kind):
    return MISSING + [(name, what) for name, of in PACKAGES.items() if of for what in getattr(of, kind)]


@pytest.mark.parametrize("package, program", every("RIGHT"))
def test_is_proven(package, program):
    prove(**PACKAGES[package].RIGHT[program](), keys=1, seed=1)


@pytest.mark.parametrize("package, mistake", every("WRONG"))
def test_is_seen(package, mistake):
    program, patch, words = PACKAGES[package].WRONG[mistake]
    options = PACKAGES[package].RIGHT[program]()
    split = options.pop("split")

    def wrong(*whole):
        patch()
        return split(*whole)

    takes_whole = split.__code__.co_argcount - len(split.__defaults__ or ())
    with pytest.raises((Different, Refused)) as error:
        prove(**options, split=(lambda whole: wrong(whole)) if takes_whole else (lambda: wrong()), keys=1, seed=1)
    assert words in str(error.value), str(error.value)
