"""The pipeline in `headwater demo`: events, a topic, its archive, views, and Spark over all of it.

Orders of a week go into four partitions, are rolled, archived and retained while views are kept up
to date; then Spark exports, compacts, folds, verifies and plans. Every step counts, and all counts
must agree.
"""

from __future__ import annotations

import json
import random
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from headwater._limits import MIB
from headwater.cli.terminal import hushed
from headwater.cli.text import counted, duration_text, rate_text, size_text, table
from headwater.errors import UnsupportedError
from headwater.store import DeleterConfig, Store
from headwater.views import View, over

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from headwater import Record
    from headwater.cli.demo import Demo
    from headwater.spark.pipeline import JobReport
    from headwater.store import Topic
    from headwater.views import OpenView

_NAME: Final = "shop/orders"
_PARTITIONS: Final = 4
_BATCH: Final = 2000
_ROUNDS: Final = 6
_SEGMENT_BYTES: Final = MIB
_CUSTOMERS: Final = 5000
_WEEK_NS: Final = 7 * 86_400 * 10**9
_BEGIN_NS: Final = 1_767_225_600 * 10**9
_SCHEMA: Final = "order bigint, kind string, customer string, cents bigint"
_NEEDS: Final = ("pyarrow", "obstore", "pyspark", "msgspec")
_KINDS: Final = (b"web", b"shop", b"phone")
_VALUE: Final = (
    b'{"order":%d,"kind":"%s","customer":"c-%d","cents":%d,"note":"please leave it at the door"}'
)
#: What stays here beside the active segments; the rest of the week is read from the archive.
_KEPT_MB: Final = 8.0
#: A limit of size for the plan, somewhere between two and three days of orders.
_PLANNED_MB: Final = 14.0


def add_order(total: dict[str, int], record: Record) -> dict[str, int]:
    """The reducer: how many orders, and what they are worth."""
    order = json.loads(record.value)
    return {"orders": total["orders"] + 1, "cents": total["cents"] + order["cents"]}


def customer_of(record: Record) -> str | None:
    """The key of the view is that of the record."""
    return None if record.key is None else record.key.decode()


#: Orders and cents of each customer.
BY_CUSTOMER: Final[View[dict[str, dict[str, int]], Record]] = View(
    "by-customer", add_order, {"orders": 0, "cents": 0}, key=customer_of
)


def show_pipeline(demo: Demo, batches: int, plot: str | None) -> None:
    """Show the pipeline, where Spark and Java are."""
    missing = _missing(batches)
    if missing:
        demo.say(f"\n7  A pipeline on Spark, left out: {missing}")
        return
    demo.say("\n7  A pipeline: a week of orders, four partitions, archive, views, Spark")
    run = _Pipeline(demo, batches, plot)
    with ExitStack() as stack:
        run.open(stack)
        run.fill()
        run.use_spark(stack)
    run.compare()


def _missing(batches: int) -> str | None:
    """Why the pipeline cannot be shown."""
    if not batches:
        return "it takes a minute or two; run the demo without --quick"
    if any(find_spec(name) is None for name in _NEEDS):
        return "pip install 'headwater[spark]' to see it"
    from headwater.spark._java import find_java  # noqa: PLC0415 - an extra

    try:
        find_java()
    except UnsupportedError as error:
        return str(error)
    return None


class _Orders:
    """Makes orders, always the same ones, spread over a week."""

    def __init__(self, total: int) -> None:
        self._rng = random.Random(7)  # noqa: S311 - orders of nobody
        self._step_ns = _WEEK_NS // total
        self.count = 0
        self.cents = 0

    def append(self, topic: Topic) -> None:
        """Append the next batch."""
        numbers = range(self.count, self.count + _BATCH)
        customers = [self._rng.randrange(_CUSTOMERS) for _ in numbers]
        cents = [self._rng.randrange(100, 100_000) for _ in numbers]
        orders = zip(numbers, customers, cents, strict=True)
        topic.append_many(
            [_VALUE % (n, _KINDS[n % 3], customer, worth) for n, customer, worth in orders],
            keys=[b"c-%d" % customer for customer in customers],
            timestamps_ns=[_BEGIN_NS + n * self._step_ns for n in numbers],
        )
        self.count += _BATCH
        self.cents += sum(cents)


@contextmanager
def _added(seconds: dict[str, float], name: str) -> Iterator[None]:
    """Count the seconds of the block."""
    began = time.perf_counter()
    yield
    seconds[name] += time.perf_counter() - began


@dataclass
class _Pipeline:
    """One run: what was counted at each step, and how long it took."""

    demo: Demo
    batches: int
    plot: str | None
    #: Step -> records that it saw, seconds.
    steps: list[tuple[str, int, float, str]] = field(default_factory=list)
    sums: dict[str, int] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """The topic's folder."""
        return f"{self.demo.folder}/shop/{_NAME}"

    @property
    def archive(self) -> str:
        """The archive's folder."""
        return f"{self.demo.folder}/lake/archive"

    @property
    def options(self) -> dict[str, str]:
        """What a job has to know beside the topic's folder."""
        return {"archive": self.archive}

    def open(self, stack: ExitStack) -> None:
        """Make the topic and a view for each partition."""
        config: dict[str, object] = {
            "archive": self.archive,
            "defaults": {"segment_bytes": _SEGMENT_BYTES, "durability": "interval"},
        }
        folder = f"{self.demo.folder}/shop"
        self.store = stack.enter_context(Store(folder, config, background=False))
        self.topic: Topic = self.store.topic(_NAME, partitions=_PARTITIONS)
        logs = [self.topic.partition(number).writer for number in range(_PARTITIONS)]
        self.views: list[OpenView[Any, Record]] = [over(log, BY_CUSTOMER) for log in logs]

    @contextmanager
    def step(self, name: str) -> Iterator[Callable[[int, str], None]]:
        """Time a step; the block tells how many records it saw, and what came of it."""
        found: list[tuple[int, str]] = []
        began = time.perf_counter()
        with self.demo.terminal.waiting(f"   {name}"):
            yield lambda records, words: found.append((records, words))
        records, words = found[0]
        self.steps.append((name, records, time.perf_counter() - began, words))

    # --- without Spark ----------------------------------------------------------------------------

    def fill(self) -> None:
        """A week in rounds: append, refresh the views, then roll, archive and retain.

        The last orders stay where they were appended.
        """
        orders = _Orders(self.batches * _BATCH)
        names = ("append to 4 partitions", "refresh the views", "archive and retain")
        seconds, deleted = dict.fromkeys(names, 0.0), 0
        for turn in range(_ROUNDS):
            with _added(seconds, names[0]):
                for _ in range(self.batches // _ROUNDS):
                    orders.append(self.topic)
            with _added(seconds, names[1]):
                for view in self.views:
                    view.refresh()
            if turn + 1 < _ROUNDS:
                with _added(seconds, names[2]):
                    self.topic.roll()
                    self.topic.archive()
                    deleted += self._retain()
        self.topic.sync()
        self.sums = {"appended": orders.count, "cents": orders.cents, "deleted": deleted}
        words = (
            f"{size_text(self.topic.disk_bytes())} left here",
            "kept in their snapshots",
            f"{counted(deleted, 'segment')} deleted here",
        )
        for (name, spent), word in zip(seconds.items(), words, strict=True):
            self.steps.append((name, orders.count, spent, word))

    def _retain(self) -> int:
        limits = DeleterConfig(retention_time_minutes=None, retention_size_mb=_KEPT_MB)
        return len(self.topic.retain(config=limits).deleted)

    # --- with Spark -------------------------------------------------------------------------------

    def use_spark(self, stack: ExitStack) -> None:
        """The jobs, and the whole history as one DataFrame."""
        from headwater.spark import history  # noqa: PLC0415 - an extra
        from headwater.spark._session import active, session  # noqa: PLC0415 - the same

        was_there = active() is not None
        quiet = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
        with self.step("start Spark") as told, hushed():
            spark = session("headwater demo", "local[2]", quiet)
            if not was_there:
                stack.callback(spark.stop)
            told(0, f"Spark {spark.version}")
        self._export(spark)
        self._plan()  # in front of the compaction, while the archive shows each segment
        self._job(spark, "compact", f"{self.archive}/{_NAME}", options={}, delta=True)
        with self.step("history() on Spark") as told:
            rows = history(spark, self.topic).count()
            self.sums["history"] = rows
            told(rows, "archive by Spark, tail by us")
        self._rebuild(spark)
        self._job(spark, "verify", self.path, options=self.options)

    def _job(
        self, spark: SparkSession | None, job: str, *where: object, **options: object
    ) -> JobReport:
        """Run a job as a step."""
        from headwater.spark import pipeline  # noqa: PLC0415 - an extra

        with self.step(f"{job.replace('_', '-')} on Spark") as told:
            report: JobReport = getattr(pipeline, job)(spark, *where, **options)
            self.sums[f"{job}-problems"] = len(report.problems)
            told(self._seen(job, report), _words(job, report))
        return report

    def _seen(self, job: str, report: JobReport) -> int:
        """How many records a job saw, by its report."""
        if job == "compact":
            return self.sums["appended"]
        if job == "verify":
            rows = [dict(zip(report.columns, row, strict=True)) for row in report.rows]
            found = sum(int(row["stop"] or 0) - int(row["start"] or 0) for row in rows)
        else:
            found = int(report.figures[{"export": "rows", "rebuild_view": "items"}[job]] or 0)
        self.sums[job] = found
        return found

    def _export(self, spark: SparkSession) -> None:
        table_path = f"{self.demo.folder}/lake/orders"
        self._job(spark, "export", self.path, table_path, options=self.options, values="json",
                  schema=_SCHEMA, partition_by=["kind", "date"])  # fmt: skip
        frame = spark.read.parquet(table_path)
        row = frame.selectExpr("count(*)", "count(distinct order)", "sum(cents)").first()
        names = ("parquet", "parquet-orders", "parquet-cents")
        self.sums |= dict(zip(names, row or (0, 0, 0), strict=True))

    def _rebuild(self, spark: SparkSession) -> None:
        """Fold the views anew, on Spark, and compare them with those that were kept up to date."""
        kept = [view.state for view in self.views]
        self._job(spark, "rebuild_view", self.path, BY_CUSTOMER, options=self.options)
        logs = [self.topic.partition(number).writer for number in range(_PARTITIONS)]
        again = [over(log, BY_CUSTOMER).state for log in logs]
        pairs = zip(kept, again, strict=True)
        self.sums["views-differ"] = sum(one != other for one, other in pairs)
        totals = [total for state in kept for total in state.values()]
        self.sums["view-orders"] = sum(total["orders"] for total in totals)
        self.sums["view-cents"] = sum(total["cents"] for total in totals)

    def _plan(self) -> None:
        """What other limits would have kept of this week, as a table and a picture."""
        from headwater.spark import pipeline  # noqa: PLC0415 - an extra

        with self.step("retention-plan") as told:
            report = pipeline.retention_plan(
                None, self.path, options=self.options, time_minutes=[1440, 4320, None],
                size_mb=[_PLANNED_MB, None], plot=self.plot,
            )  # fmt: skip
            drawn = "" if self.plot is None else f", drawn in {self.plot}"
            told(0, f"{report.figures['policies']} policies{drawn}")

    # --- the end ----------------------------------------------------------------------------------

    def compare(self) -> None:
        """The table of steps, and whether everything that was counted agrees."""
        rows = [("step", "records", "time", "records/s", "")]
        for name, records, seconds, words in self.steps:
            rate = rate_text(records / seconds) if records else "-"
            rows.append(
                (name, f"{records:,}" if records else "-", duration_text(seconds), rate, words)
            )
        for line in table(rows, " rrr", indent=5):
            self.demo.say(line)
        sums = self.sums
        self.demo.numbers["pipeline"] = {
            "sums": sums,
            "steps": [
                dict(zip(("step", "records", "seconds"), s, strict=False)) for s in self.steps
            ],
        }
        names = ("parquet", "parquet-orders", "history", "verify", "rebuild_view", "view-orders")
        seen = {sums[name] for name in names}
        self.demo.show(
            "table, history, views and verify count the same",
            f"{sums['appended']:,} appended, {sums['parquet']:,} in the table",
            ok=seen == {sums["appended"]} and not sums["verify-problems"],
        )
        self.demo.show(
            "views folded on Spark are those kept up to date",
            f"{sums['view-cents'] / 100:,.2f} in {_PARTITIONS} views",
            ok=not sums["views-differ"]
            and sums["view-cents"] == sums["cents"] == sums["parquet-cents"],
        )


def _words(job: str, report: JobReport) -> str:
    """What a job says of itself."""
    figures = report.figures
    return {
        "export": f"{figures.get('files')} Parquet files",
        "compact": f"{figures.get('files_before')} files to {figures.get('files_after')}, Delta",
        "verify": f"{len(report.problems)} problems",
        "rebuild_view": f"{_PARTITIONS} views",
    }[job]
