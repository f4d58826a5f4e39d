"""Programs of packages, as they are: the right ones are proven, and in each a mistake of one line is seen."""

import importlib.util
from importlib import metadata
from pathlib import Path

import pytest

from equipart.torch import Different, Refused, prove

PAGE = Path(__file__).parents[2] / "docs/src/pytorch-packages.md"
MARK = "<!-- made by python/tests/test_packages.py -->\n"
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
MISSING = [
    pytest.param(name, "", marks=pytest.mark.skip("not installed")) for name, of in PACKAGES.items() if of is None
]


def every(kind):
    return MISSING + [(name, what) for name, of in PACKAGES.items() if of for what in getattr(of, kind)]


@pytest.mark.parametrize("package, program", every("RIGHT"))
def test_is_proven(package, program):
    proof = prove(**PACKAGES[package].RIGHT[program](), keys=1, seed=1)
    assert getattr(PACKAGES[package], "ASSUMED", "") in str(proof)


@pytest.mark.parametrize("package, mistake", every("WRONG"))
def test_is_seen(package, mistake):
    program, patch, words, *_ = PACKAGES[package].WRONG[mistake]
    options = PACKAGES[package].RIGHT[program]()
    split = options.pop("split")

    def wrong(*whole):
        patch()
        return split(*whole)

    takes_whole = split.__code__.co_argcount - len(split.__defaults__ or ())
    with pytest.raises((Different, Refused)) as error:
        prove(**options, split=(lambda whole: wrong(whole)) if takes_whole else (lambda: wrong()), keys=1, seed=1)
    assert words in str(error.value), str(error.value)


def version(module):
    """A package's name and version."""
    (name, *_) = metadata.packages_distributions()[module.NEEDS.split(".")[0]]
    return name, metadata.version(name)


def row(module):
    """A line of the page's table."""
    proven = len(getattr(module, "PROVEN", module.RIGHT))
    what = module.__doc__.split("\n\n")[0].strip().replace("\n", " ").rstrip(".")
    return f"| {' '.join(version(module))} | {what} | {proven} | {len(module.WRONG)} |\n"


def section(module):
    """What the page says of a package: what is proven, what is not, and the mistakes that are seen."""
    lines = [f"## {' '.join(version(module))}", "", module.__doc__.strip(), ""]
    proven = getattr(module, "PROVEN", module.RIGHT)
    lines += [f"Proven, {len(proven)} programs: {'; '.join(proven)}.", ""]
    lines += [f"- {what}: {why}" for what, why in getattr(module, "NOT", {}).items()]
    lines += ["" for _ in getattr(module, "NOT", {}) if lines[-1]]
    lines += ["| mistake | in | the answer names | source |", "|---|---|---|---|"] if module.WRONG else []
    lines += [f"| {what} | {of} | `{words}` | {''.join(source)} |" for what, (of, _, words, *source) in module.WRONG.items()]
    return "\n".join(lines).strip() + "\n"


@pytest.mark.parametrize("package", [name for name, of in PACKAGES.items() if of])
def test_the_page_says_so(package):
    page, module = PAGE.read_text(), PACKAGES[package]
    if f"## {' '.join(version(module))}\n" not in page:
        pytest.skip(f"the page is of another version than {' '.join(version(module))}")
    assert row(module) in page and section(module) in page, f"python {__file__} writes the page anew"


if __name__ == "__main__":
    known = [module for module in PACKAGES.values() if module]
    table = "| package | what | programs proven | mistakes seen |\n|---|---|---|---|\n" + "".join(map(row, known))
    PAGE.write_text("\n".join([PAGE.read_text().split(MARK)[0] + MARK, table, *map(section, known)]))
