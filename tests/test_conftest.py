"""The rules of `conftest.py` hold: nothing skipped in silence, and Ctrl-C is Ctrl-C."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    Run = Callable[..., str]

CONFTEST = Path(__file__).with_name("conftest.py")
SKIPPING = """
import pytest

def test_runs(): pass

@pytest.mark.skip(reason="not today")
def test_skipped(): pass

@pytest.mark.xfail(reason="known", strict=True)
def test_expected(): raise AssertionError
"""
MEASURING = """
def test_measures(measured):
    measured("7 of 9 kills")
    measured("12 records")

def test_measures_and_fails(measured):
    measured("0 records")
    raise AssertionError
"""
WHERE = """
import os, pytest

@pytest.mark.parametrize("number", range(20))
def test_where(number, measured):
    measured(os.environ["PYTEST_XDIST_WORKER"])
"""
SKIPPED_FILE = "import pytest\npytest.skip('no library', allow_module_level=True)\n"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a made-up suite under our conftest; its last line comes back."""

    def suite(*arguments: str, ci: str = "true", conftest: str = "") -> str:
        (tmp_path / "conftest.py").write_text(conftest or CONFTEST.read_text("utf-8"), "utf-8")
        (tmp_path / "test_some.py").write_text(SKIPPING, "utf-8")
        (tmp_path / "test_file.py").write_text(SKIPPED_FILE, "utf-8")
        outcome = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
            cwd=tmp_path,
            env={**os.environ, "CI": ci},
            capture_output=True,
            text=True,
            check=False,
        )
        return outcome.stdout.rstrip().rpartition("\n")[2]

    return suite


def test_skip_on_a_laptop_stays_a_skip(run: Run) -> None:
    """Without CI a skip is a skip and an expected failure an expected failure."""
    assert re.search("1 passed, 2 skipped, 1 xfailed in", run(ci=""))


def test_skip_where_ci_looks_is_a_failure(run: Run) -> None:
    """With CI=true no skipped test, expected failure or skipped file goes through."""
    assert re.search("1 failed, 1 passed, 2 errors in", run("--continue-on-collection-errors"))


def test_skip_in_a_parallel_run_is_a_failure(run: Run) -> None:
    """The rule also holds in the workers of a parallel run."""
    last = run("-n", "1", "--continue-on-collection-errors")
    assert re.search("1 failed, 1 passed, 2 errors in", last)


def test_skip_on_the_list_is_allowed(run: Run) -> None:
    """A test on the list of allowed ones may be skipped where CI looks."""
    listed = CONFTEST.read_text("utf-8").replace(
        "str]] = {}", 'str]] = {"test_some.py::test_skipped": "for this test"}'
    )
    last = run("--continue-on-collection-errors", conftest=listed)
    assert re.search("1 failed, 1 passed, 1 skipped, 1 error in", last)


@pytest.mark.parametrize("workers", ["0", "2"])
def test_measured_lines_are_shown_in_front_of_the_closing_line(
    tmp_path: Path, workers: str
) -> None:
    """Green or not, in one process or in several: each line once, with its test; pytest ends."""
    (tmp_path / "conftest.py").write_text(CONFTEST.read_text("utf-8"), "utf-8")
    (tmp_path / "test_some.py").write_text(MEASURING, "utf-8")
    outcome = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", workers, "-p", "no:cacheprovider"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = outcome.stdout.rstrip().splitlines()
    shown = [line for line in lines if line.startswith("test_some.py::")]
    assert shown == [
        "test_some.py::test_measures: 12 records",
        "test_some.py::test_measures: 7 of 9 kills",
        "test_some.py::test_measures_and_fails: 0 records",
    ]
    assert re.match("1 failed, 1 passed in", lines[-1])


def test_folder_that_stays_together_runs_in_one_process(tmp_path: Path) -> None:
    """All of `tests/spark` is in one worker, and the other one does the rest meanwhile."""
    (tmp_path / "tests" / "spark").mkdir(parents=True)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n", "utf-8")
    (tmp_path / "tests" / "conftest.py").write_text(CONFTEST.read_text("utf-8"), "utf-8")
    for folder in ("tests", "tests/spark"):
        (tmp_path / folder / "test_many.py").write_text(WHERE, "utf-8")
    outcome = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "tests"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.findall(r"^tests/(\S*)test_many\S+: (gw\d)$", outcome.stdout, re.MULTILINE)
    assert len(found) == 40, outcome.stdout
    assert len({worker for folder, worker in found if folder}) == 1
    assert len({worker for _, worker in found}) == 2


def test_suite_started_in_the_background_takes_an_interrupt() -> None:
    """A shell lets what it starts with `&` ignore Ctrl-C; tests of Ctrl-C work all the same."""
    code = """
import importlib.util, signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
spec = importlib.util.spec_from_file_location("conftest", CONFTEST)
spec.loader.exec_module(importlib.util.module_from_spec(spec))
signal.raise_signal(signal.SIGINT)
"""
    outcome = subprocess.run(
        [sys.executable, "-c", code.replace("CONFTEST", repr(str(CONFTEST)))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "KeyboardInterrupt" in outcome.stderr


def test_tests_of_compiled_code_without_a_compiler_are_left_out_and_it_says_so() -> None:
    """Where nothing can be compiled there is nothing to test; where it can, its absence fails."""
    code = """
import importlib.util, os
os.environ["CC"] = "/nowhere/cc"
spec = importlib.util.spec_from_file_location("conftest", CONFTEST)
found = importlib.util.module_from_spec(spec)
importlib.util.find_spec = lambda name: None
spec.loader.exec_module(found)
print((found.collect_ignore, found.pytest_report_header()))
"""
    outcome = subprocess.run(
        [sys.executable, "-c", code.replace("CONFTEST", repr(str(CONFTEST)))],
        capture_output=True,
        text=True,
        check=True,
    )
    expected = ["unit/test_native.py"], "headwater: pure Python, no C compiler here"
    assert outcome.stdout.strip() == repr(expected)
