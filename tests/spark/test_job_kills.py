"""Jobs that are killed by a signal half way: whoever runs them again ends them, and redoes little.

They run without Spark here: what a job keeps of itself does not depend on who works for it.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pyarrow.dataset as ds
import pytest

from headwater.spark.pipeline import compact, export, verify
from tests.spark.shop import NAME, Shop
from tests.trees import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PART_BYTES = 30_000


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    """A topic of two partitions: several small files in the archive, and more records here."""
    shop = Shop(tmp_path)
    for turn in range(4):
        shop.fill(300, start=turn * 300)
        shop.seal_and_archive()
    shop.fill(600, start=1200)
    yield shop
    shop.close()


def killed(job: str, behind: int, *arguments: object, **keywords: object) -> None:
    """Run a job in a process that ends by SIGKILL when so many units are done."""
    text = json.dumps([[str(each) for each in arguments], keywords | {"here": True}])
    command = [sys.executable, "-m", "tests.spark.job_runner", job, str(behind), text]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, check=False, timeout=100)
    assert ran.returncode == -signal.SIGKILL, ran.stderr[-3000:]


def test_export_killed_by_a_signal_goes_on_where_it_was(shop: Shop, tmp_path: Path) -> None:
    """What was written stays and is not written again; every row is in the table once."""
    out, options = tmp_path / "out", {"archive": str(shop.archive)}
    killed("export", 2, shop.path, out, options=options, part_bytes=PART_BYTES)
    told: list[int] = []
    export(
        None, shop.path, out, options=options, part_bytes=PART_BYTES,
        progress=lambda done, *_: told.append(done),
    )  # fmt: skip
    assert told[0] >= 2
    files = [path for path in out.rglob("*.parquet") if "_headwater" not in path.parts]
    table = ds.dataset(list(map(str, files))).to_table(["partition", "sequence", "value"])
    rows = [tuple(row.values()) for row in table.to_pylist()]
    assert sorted(rows) == shop.records()


def test_verify_killed_by_a_signal_goes_on_where_it_was(shop: Shop, tmp_path: Path) -> None:
    """What was read is not read again, and the report is that of a run in one piece."""
    options, state = {"archive": str(shop.archive)}, str(tmp_path / "state")
    killed("verify", 2, shop.path, options=options, state=state, part_bytes=PART_BYTES)
    told: list[int] = []
    report = verify(
        None, shop.path, options=options, state=state, part_bytes=PART_BYTES,
        progress=lambda done, *_: told.append(done),
    )  # fmt: skip
    assert told[0] >= 2
    assert report.ok
    assert report.rows == verify(None, shop.path, options=options, part_bytes=PART_BYTES).rows


def test_compact_killed_by_a_signal_uses_what_was_merged(shop: Shop) -> None:
    """The file that was merged before the kill is the one that the catalogue names in the end."""
    before = shop.records()
    killed("compact", 1, shop.archive, options={"topic": NAME})
    merged = {path.name for path in shop.archive.rglob("*.c*.parquet")}
    assert merged
    compact(None, shop.archive, options={"topic": NAME})
    archives = [shop.topic.archive_of(number) for number in range(2)]
    entries = [found.archive.entries() for found in archives if found is not None]
    assert [len(each) for each in entries] == [1, 1]
    assert merged <= {entry.file for each in entries for entry in each}
    assert shop.records() == before
