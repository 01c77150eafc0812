"""The pipeline of `headwater demo`: every step on a real session, and counts that must agree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from headwater.cli.demo import Demo, Size
from headwater.cli.demo_pipeline import _Pipeline, show_pipeline
from headwater.cli.terminal import Terminal

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

BATCHES = 12
STEPS = [
    "append to 4 partitions", "refresh the views", "archive and retain", "start Spark",
    "export on Spark", "retention-plan", "compact on Spark", "history() on Spark",
    "rebuild-view on Spark", "verify on Spark",
]  # fmt: skip


def test_demo_pipeline_counts_the_same_at_every_step(spark: SparkSession, tmp_path: Path) -> None:
    """From events to the picture of the plan: both claims hold, and fail when a count is off."""
    size = Size(0.0, 0, batches=0, pings=0, kills=0, topic_batches=0, pipeline_batches=BATCHES)
    demo = Demo(str(tmp_path), size, Terminal(json_wanted=True))
    show_pipeline(demo, BATCHES, str(tmp_path / "plan.png"))
    assert [check.ok for check in demo.checks] == [True, True], demo.checks
    found = cast("dict[str, Any]", demo.numbers["pipeline"])
    assert [step["step"] for step in found["steps"]] == STEPS
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")
    assert spark.range(3).count() == 3  # a session that was there is left alone
    for name, claim in (("parquet", 0), ("history", 0), ("verify", 0), ("view-cents", 1)):
        again = Demo(str(tmp_path), size, demo.terminal)
        _Pipeline(again, BATCHES, None, sums=found["sums"] | {name: 1}).compare()
        assert [check.ok for check in again.checks] == [claim == 1, claim == 0]
