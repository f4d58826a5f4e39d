"""A fixture for pytest: `prove`, whose draws begin with a number that the test's name gives, so that a failure comes again.

The number of another run: `pytest --equipart-seed N`. A test whose program is refused fails as "refused", which is not
"different".
"""

import functools
import zlib

import pytest


def pytest_addoption(parser):
    parser.addoption("--equipart-seed", type=int, default=None, help="number that the draws of `prove` begin with")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    report.is_refused = call.excinfo is not None and call.excinfo.typename == "Refused"


def pytest_report_teststatus(report):
    if getattr(report, "is_refused", False) and report.failed:
        return "refused", "R", "REFUSED"


def pytest_terminal_summary(terminalreporter):
    refused = terminalreporter.getreports("refused")
    if refused:
        terminalreporter.section("REFUSED")
    for report in refused:
        terminalreporter.line(f"{report.nodeid}: {report.longrepr.reprcrash.message}")


@pytest.fixture
def prove(request):
    """`equipart.torch.prove`, with the same draws in each run."""
    from equipart.torch import prove

    seed = request.config.getoption("--equipart-seed")
    return functools.partial(prove, seed=zlib.crc32(request.node.nodeid.encode()) if seed is None else seed)
