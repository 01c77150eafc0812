"""A sink that dies at a point of its commit, and the program of a driver that uses it.

Which point, and whom to end, stands in a file that the writer looks into; a point that was reached
leaves a line in another. `python -m tests.spark.sink_killing <folder>` is the driver: it streams
the files of a folder into a topic and ends when all are there.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headwater.spark._source import HeadwaterSource
from headwater.spark._writer import StreamWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

POINTS: Final = (
    "before the commit",
    "before the intent",
    "behind the intent",
    "between parts",
    "between partitions",
    "behind the marks",
    "behind the commit",
)
TOPIC: Final = "sink/target"
PARTITIONS: Final = 2
ROWS_PER_FILE: Final = 24
#: A value is so long that a file makes several groups in a partition of small segments.
VALUE_BYTES: Final = 4000


def plan_path(store: str) -> Path:
    """Where it stands who is to die, beside the store."""
    return Path(store).with_name("plan.json")


def hits_path(store: str) -> Path:
    """Where it stands who died where."""
    return Path(store).with_name("hits")


def plan_death(store: str, point: str, *, pids: tuple[int, ...] = (), skips: int = 0) -> None:
    """Let the next commit that passes a point die there, and others with it."""
    plan = {"point": point, "pids": pids, "skips": skips}
    plan_path(store).write_text(json.dumps(plan), "utf-8")


class KillingWriter(StreamWriter):
    """A stream's writer that dies as planned."""

    def at(self, point: str) -> None:
        """End the processes of the plan, and this one, if the point is that of the plan."""
        path = plan_path(self._options.path)
        if not path.exists():
            return
        plan = json.loads(path.read_text("utf-8"))
        if plan["point"] != point:
            return
        if plan["skips"]:
            plan_death(self._options.path, point, pids=tuple(plan["pids"]), skips=plan["skips"] - 1)
            return
        path.unlink()
        with hits_path(self._options.path).open("a", encoding="utf-8") as hits:
            hits.write(f"{point}\n")
        for pid in (*plan["pids"], os.getpid()):
            os.kill(pid, signal.SIGKILL)


class KillingSource(HeadwaterSource):
    """`format("headwater_killing")`."""

    @classmethod
    def name(cls) -> str:
        """What stands in `format(...)`."""
        return "headwater_killing"

    def streamWriter(  # noqa: N802 - Spark's name
        self,
        schema: StructType,
        overwrite: bool,  # noqa: FBT001 - Spark's signature
    ) -> KillingWriter:
        """The stream's writer."""
        return KillingWriter(self._plain(), schema, overwrite)


def make_source(folder: Path, files: int) -> list[str]:
    """Files of lines, each an id; returns the ids."""
    folder.mkdir(parents=True)
    ids = [f"{file:03d}-{line:03d}" for file in range(files) for line in range(ROWS_PER_FILE)]
    for file in range(files):
        part = ids[file * ROWS_PER_FILE : (file + 1) * ROWS_PER_FILE]
        path = folder / f"{file:03d}.txt"
        path.write_text("\n".join(part) + "\n", "utf-8")
        os.utime(path, (10**9 + file, 10**9 + file))
    return ids


def rows_of(spark: SparkSession, folder: Path) -> DataFrame:
    """The lines as records: the same ids in every run, and with each a text that never repeats."""
    lines = spark.readStream.format("text").option("maxFilesPerTrigger", 2).load(str(folder))
    value = f"concat(value, ' ', rpad(uuid(), {VALUE_BYTES}, '-'))"
    return lines.selectExpr("substring(value, 5) as key", f"{value} as value")


def start(spark: SparkSession, base: Path, name: str = "headwater_killing") -> StreamingQuery:
    """Stream the files below a folder into the topic below it, until none is left."""
    return (
        rows_of(spark, base / "source")
        .writeStream.format(name)
        .option("path", str(base / "store"))
        .option("topic", TOPIC)
        .option("config", str(base / "config.json"))
        .option("checkpointLocation", str(base / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )


def prepare(base: Path, files: int) -> list[str]:
    """The files, and the store's configuration; returns the ids of all rows."""
    facts = {"topics": {TOPIC: {"partitions": PARTITIONS, "segment_bytes": 65536}}}
    ids = make_source(base / "source", files)
    (base / "config.json").write_text(json.dumps(facts), "utf-8")
    return ids


def main(base: Path) -> None:
    """The driver."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - after the arguments were read

    from tests.spark.conftest import FLAGS  # noqa: PLC0415 - the tests' session

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]")
    for name, value in FLAGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(KillingSource)
    if plan_path(str(base / "store")).exists():
        plan = json.loads(plan_path(str(base / "store")).read_text("utf-8"))
        jvm = spark._jvm.java.lang.ProcessHandle.current().pid()  # type: ignore[union-attr]
        plan_death(str(base / "store"), plan["point"], pids=(jvm, os.getpid()), skips=plan["skips"])
    start(spark, base).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
