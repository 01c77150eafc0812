"""Rules for the whole suite: generated cases, no silent skip where CI looks, counts that are shown.

A skip or an expected failure is fine on somebody's laptop. With `CI=true` it is a failure, unless
`ALLOWED` names the test and the reason.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sysconfig
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import hypothesis
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from xdist.remote import Producer
    from xdist.scheduler import LoadScopeScheduling

#: Name under which a report carries what its test has measured.
MEASURED: Final = "measured"

#: Node id -> why CI may go without it. Short by intention.
ALLOWED: Final[dict[str, str]] = {}
#: How the names of tests begin that share something which one process has: a session of Spark.
TOGETHER: Final = ("tests/spark/", "tests/docs/test_blocks.py::test_blocks_of_the_page_on_spark_")

# A failed generated case prints how to replay it; time limits belong to tests, not to cases.
hypothesis.settings.register_profile("default", deadline=None, print_blob=True, max_examples=100)
hypothesis.settings.register_profile(
    "ci", hypothesis.settings.get_profile("default"), derandomize=True, database=None
)
hypothesis.settings.register_profile(
    "soak", hypothesis.settings.get_profile("default"), max_examples=20_000
)
hypothesis.settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") == "true" else "default")
)


def _can_compile() -> bool:
    """True where a C compiler and Python's headers are."""
    command = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    headers = Path(sysconfig.get_paths()["include"], "Python.h")
    return shutil.which(shlex.split(command)[0]) is not None and headers.exists()


#: Without a compiler there is nothing compiled to test. With one, a module that is missing fails.
collect_ignore: Final = (
    [] if find_spec("headwater._native") or _can_compile() else ["unit/test_native.py"]
)


def pytest_report_header() -> str:
    """What runs under the tests."""
    return "headwater: " + ("pure Python, no C compiler here" if collect_ignore else "compiled")


# A shell that starts the suite in the background has it ignore Ctrl-C, and so every process of it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def measured(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Show a line at the end of the run, also of a green one and of one in several processes."""
    return lambda text: record_property(MEASURED, text)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what was measured, in front of the closing line."""
    lines = [
        f"{report.nodeid}: {text}"
        for reports in terminalreporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport) and report.when == "call"
        for name, text in report.user_properties
        if name == MEASURED
    ]
    if lines:
        terminalreporter.section("measured")
        for line in sorted(lines):
            terminalreporter.line(line)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Hand every test out by itself, and those that stay together to one process, first of all."""
    from xdist.scheduler import LoadScopeScheduling  # noqa: PLC0415 - only where it is in use

    class Together(LoadScopeScheduling):  # type: ignore[misc] # the plugin has no types
        """A scope is all that stays together, or a single test."""

        def _split_scope(self, nodeid: str) -> str:
            return "together" if nodeid.startswith(TOGETHER) else nodeid

    return Together(config, log)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn the skip or the expected failure of a test into a failure where CI looks."""
    report = yield
    _refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Turn the skip of a whole file into a failure where CI looks."""
    report = yield
    _refuse_skip(report)
    return report


def _refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Change a skipped report into a failed one unless its node id is allowed."""
    if os.environ.get("CI") != "true" or report.outcome != "skipped" or report.nodeid in ALLOWED:
        return
    expected_failure = getattr(report, "wasxfail", None)
    if expected_failure is not None:
        del report.wasxfail
    reason = report.longrepr if expected_failure is None else f"xfail: {expected_failure}"
    report.outcome = "failed"
    report.longrepr = (
        f"{report.nodeid} did not run to its end: {reason}\n"
        "With CI=true every test runs. Make it run, or name it in ALLOWED (tests/conftest.py)."
    )
