"""A program that streams a topic into a folder of Parquet files, and dies where it is told to.

Its sink is as plain as can be: a file for each batch, by its number. It is started by a test, with
arguments as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

from tests.spark.conftest import FLAGS

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession


def batch_writer(out: str, die: str, batch: int) -> Callable[[DataFrame, int], None]:
    """A sink that is idempotent by batch; ends this process at a point of one batch."""

    def write(rows: DataFrame, number: int) -> None:
        if (die, batch) == ("before", number):
            os.kill(os.getpid(), signal.SIGKILL)
        rows.select("partition", "sequence", "value").coalesce(1).write.mode("overwrite").parquet(
            f"{out}/batch-{number}"
        )
        if (die, batch) == ("after", number):
            os.kill(os.getpid(), signal.SIGKILL)

    return write


def run(spark: SparkSession, arguments: dict[str, Any]) -> None:
    """Read all that is there now."""
    rows = spark.readStream.format("headwater").options(**arguments["options"]).load()
    write = batch_writer(arguments["out"], arguments.get("die", ""), arguments.get("batch", 0))
    query = (
        rows.writeStream.foreachBatch(write)
        .option("checkpointLocation", arguments["checkpoint"])
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def main() -> None:
    """Make a session and run."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - a test imports this module, too

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[1]")
    for name, value in FLAGS.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    run(session, json.loads(sys.argv[1]))
    session.stop()


if __name__ == "__main__":
    main()
