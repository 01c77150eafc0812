"""`headwater spark ...`: the jobs by their commands, wrong input, and what automation goes by."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pytest

from headwater.views import View, over
from tests.spark.shop import NAME, Shop
from tests.unit.commands import run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

VIEWS = """\
from headwater.views import View

TOTAL = View("total", lambda count, record: count + 1, 0, merge=lambda one, other: one + other)
"""


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    """A topic of two partitions with an archive of several small files."""
    shop = Shop(tmp_path)
    for turn in range(3):
        shop.fill(200, start=turn * 200)
        shop.seal_and_archive()
    yield shop
    shop.close()


def test_commands_all_have_help_with_examples() -> None:
    """Every job says what it does, and shows how it is written."""
    for job in ("ingest", "compact", "export", "rebuild-view", "replay", "verify",
                "retention-plan"):  # fmt: skip
        outcome = run("spark", job, "--help")
        assert outcome.code == 0
        assert f"headwater spark {job}" in outcome.text.partition("examples:")[2]


def test_export_command_writes_the_table(shop: Shop, tmp_path: Path) -> None:
    """The report is a table for a person and a document for a program."""
    out = tmp_path / "out"
    first = run("spark", "export", shop.path, out, "--here", "--json").document
    again = run("spark", "export", shop.path, out, "--here")
    assert (first["job"], first["rows"][0]["log"]) == ("export", f"{NAME}[0]")
    assert ds.dataset(out, exclude_invalid_files=True).count_rows() == 600
    assert "export: rows 0" in again.text


def test_export_command_says_what_it_would_do(shop: Shop, tmp_path: Path) -> None:
    """A dry run leaves nothing behind."""
    out = tmp_path / "out"
    outcome = run("spark", "export", shop.path, out, "--here", "--dry-run")
    assert "(dry run)" in outcome.text
    assert not out.exists()


def test_compact_command_takes_sizes_and_topics(shop: Shop) -> None:
    """Options that name the place stand beside those of the job."""
    found = run(
        "spark", "compact", shop.archive, "--topic", NAME, "--target-size", "64MiB", "--by-day",
        "--delta", "--here", "--json",
    ).document  # fmt: skip
    assert found["files_after"] < found["files_before"]
    assert (shop.archive / NAME / "_delta_log").is_dir()


def test_verify_command_ends_with_one_when_something_is_wrong(shop: Shop) -> None:
    """0 for a whole topic, 1 with the place for a damaged one."""
    whole = run("spark", "verify", shop.path, "--archive", shop.archive, "--here")
    (entry, *_) = sorted((shop.archive / NAME / "partition=0").glob("*.parquet"))
    data = bytearray(entry.read_bytes())
    data[len(data) // 2] ^= 1
    entry.write_bytes(bytes(data))
    damaged = run("spark", "verify", shop.path, "--archive", shop.archive, "--here", "--json")
    assert (whole.code, damaged.code) == (0, 1)
    assert entry.name in json.dumps(damaged.document["problems"])


def test_rebuild_command_finds_views_in_the_present_folder(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The view is named as module:attribute; its snapshot is what one process goes on from."""
    (tmp_path / "views_of_the_shop.py").write_text(VIEWS)
    monkeypatch.chdir(tmp_path)
    path = f"{shop.path}/partitions/0"
    outcome = run("spark", "rebuild-view", path, "views_of_the_shop:TOTAL", "--here", "--json")
    log = shop.topic.partition(0).writer
    view: View[int, Any] = View("total", lambda count, _: count + 1, 0)
    assert outcome.code == 0, outcome.err
    assert over(log, view).snapshot_path.startswith(path)
    assert outcome.document["items"] == log.next_sequence


def test_plan_command_draws_a_picture(shop: Shop, tmp_path: Path) -> None:
    """Limits stand with commas between them; `none` is no limit."""
    picture = tmp_path / "plan.png"
    found = run(
        "spark", "retention-plan", shop.path, "--archive", shop.archive, "--time", "1,none",
        "--size", "none", "--plot", picture, "--json",
    ).document  # fmt: skip
    assert found["policies"] == 2
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (("export", "{path}", "out", "--here", "-o", "nosuch=1"), "no such option"),
        (("export", "{path}", "out", "--here", "-o", "novalue"), "is not NAME=VALUE"),
        (("export", "{path}", "out", "--here", "--topic", "a/b", "-o", "topic=a/b"), "same thing"),
        (("export", "{path}", "out", "--here", "--avro-schema", "none.avsc"), "no such file"),
        (("compact", "{path}", "--here"), "has no archive"),
        (("compact", "{path}", "--here", "--target-size", "big"), "is not a size"),
        (("verify", "/nowhere", "--here"), "names no log"),
        (("retention-plan", "{path}", "--time", "soon"), "neither a number nor none"),
        (("rebuild-view", "{path}", "nosuch:VIEW", "--here"), "module:attribute"),
        (("replay", "{path}", "out"), "--state"),
        (("nosuch",), "invalid choice"),
    ],
)
def test_command_wrong_words_are_told_in_one_line(
    words: tuple[str, ...], match: str, shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No traceback: what is wrong, and an exit code that is not 0."""
    monkeypatch.chdir(tmp_path)
    outcome = run("spark", *(word.format(path=shop.path) for word in words))
    assert outcome.code in {2, 3}
    assert match in outcome.err
    assert outcome.err.count("\n") == 1


def test_commands_on_spark_use_the_session_that_is_there(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    """Ingest and replay, which need Spark, by their commands; the session goes on living."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("one\ntwo\n")
    state = tmp_path / "state"
    ingested = run("spark", "ingest", tmp_path / "in", tmp_path / "log", "--state", state / "in",
                   "--json")  # fmt: skip
    replayed = run("spark", "replay", shop.path, tmp_path / "copy", "--state", state / "again",
                   "--where", "sequence < 10", "--json")  # fmt: skip
    assert (ingested.code, replayed.code) == (0, 0), ingested.err + replayed.err
    assert (ingested.document["appended"], replayed.document["appended"]) == (2, 20)
    assert spark.range(3).count() == 3
