"""A fixture for pytest: `prove`, whose draws begin with a number that the test's name gives, so that a failure comes again.

The number of another run: `pytest --equipart-seed N`.
"""

import functools
import zlib

import pytest


def pytest_addoption(parser):
    parser.addoption("--equipart-seed", type=int, default=None, help="number that the draws of `prove` begin with")


@pytest.fixture
def prove(request):
    """`equipart.torch.prove`, with the same draws in each run."""
    from equipart.torch import prove

    seed = request.config.getoption("--equipart-seed")
    return functools.partial(prove, seed=zlib.crc32(request.node.nodeid.encode()) if seed is None else seed)
