"""A standalone cluster of two workers on this machine; one folder is there for the driver alone."""

from __future__ import annotations

import platform
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.spark.daemons import HOST, QUICK, SPARK_HOME, found_by, free_port, running
from tests.spark.shop import Shop

if TYPE_CHECKING:
    from collections.abc import Iterator

WORKERS: Final = 2
#: Starts a program that finds a folder empty, whatever is in it for everybody else.
BLINDFOLD: Final = 'mount -t tmpfs none "$0" && exec "$@"'
#: Leases of histories: those of batch reads, `plan-...`, run out by themselves.
OF_HISTORY: Final = "_headwater/leases/[!p]*.json"
#: Everything that the driver does, in one session.
DRIVER: Final = """
import json, os, sys, time

asked = json.loads(sys.argv[1])
from headwater.spark import history, session
from tests.spark.shop import load, rows

def texts(frame):
    return [[number, sequence, value.decode()] for number, sequence, value in rows(frame)]

def error_of(action):
    try:
        action()
    except Exception as error:
        return str(error)
    return ""

def daemon(_):
    time.sleep(0.1)
    return os.getppid()

spark = session("cluster", asked["master"], asked["config"])
context = spark.sparkContext
found = {"sockets": spark.conf.get("spark.python.unix.domain.socket.enabled")}
while context._jsc.sc().getExecutorMemoryStatus().size() < 1 + asked["workers"]:
    time.sleep(0.02)  # the driver counts as one
found["executors"] = len(set(context.range(8, numSlices=8).map(daemon).collect()))

seen = load(spark, asked["seen"], archive=asked["archive"], maxBytesPerPartition="64k")
found["batch"] = texts(seen)
found["parts"] = seen.rdd.getNumPartitions()
sink = seen.select("key", "value").write.format("headwater").mode("append")
sink.option("topic", "sales/copy").option("partitions", "2").save(asked["copy"])
found["copied"] = sorted(value for _, _, value in texts(load(spark, asked["copy"] + "/sales/copy")))
found["history"] = texts(history(spark, asked["seen"], archive=asked["archive"]))

hidden = {"archive": asked["hidden_archive"], "maxBytesPerPartition": "64k"}
stop = json.dumps(asked["seams"])
found["archived"] = texts(load(spark, asked["hidden"], endingSequence=stop, **hidden))
found["tail"] = error_of(load(spark, asked["hidden"], startingSequence=stop, **hidden).count)
found["bare"] = error_of(load(spark, asked["hidden"]).count)
stops = {int(number): seam for number, seam in asked["seams"].items()}
found["past"] = texts(history(spark, asked["hidden"], stop=stops, archive=hidden["archive"]))
found["live"] = error_of(history(spark, asked["hidden"], archive=hidden["archive"]).count)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """A topic that everybody sees: archived, and going on here."""
    made = Shop(tmp_path_factory.mktemp("seen"), 2)
    made.fill(1000)
    made.seal_and_archive()
    made.forget_locally()
    made.fill(1000, start=1000)
    yield made
    made.close()


@pytest.fixture(scope="module")
def hidden(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """A topic whose folder the workers do not see: archived, still here, and going on."""
    made = Shop(tmp_path_factory.mktemp("hidden"), 2)
    made.fill(1000)
    made.seal_and_archive()
    made.fill(1000, start=1000)
    yield made
    made.close()


def seams(shop: Shop) -> dict[str, int]:
    """Partition -> where its archive ends."""
    archives = [shop.topic.archive_of(number) for number in range(shop.partitions)]
    heads = [archive.archive.head() for archive in archives if archive is not None]
    return {str(number): head.stop for number, head in enumerate(heads) if head is not None}


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory, hidden: Shop) -> Iterator[str]:
    """One master and two workers, to whom the hidden folder is empty."""
    folder, port = tmp_path_factory.mktemp("cluster"), free_port()
    place = ["--host", HOST, "--webui-port", "0"]
    address = f"spark://{HOST}:{port}"
    with ExitStack() as daemons:
        command = daemon("master.Master", *place, "--port", str(port))
        daemons.enter_context(running(command, folder / "master", "New state: ALIVE"))
        for number in range(WORKERS):
            where = folder / f"worker-{number}"
            size = ["--cores", "1", "--memory", "1g", "--work-dir", str(where / "work")]
            command = daemon("worker.Worker", *place, *size, address)
            blind = ["unshare", "-rm", "sh", "-c", BLINDFOLD, str(hidden.root), *command]
            daemons.enter_context(running(blind, where, "Successfully registered with master"))
        yield address


def daemon(name: str, *arguments: str) -> list[str]:
    """The command of one of Spark's daemons, by pyspark's own script."""
    return [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]


@pytest.fixture(scope="module")
def found(
    master: str, seen: Shop, hidden: Shop, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """What the driver found."""
    folder = tmp_path_factory.mktemp("driver")
    config = {
        "spark.driver.host": HOST,
        "spark.executor.memory": "512m",
        "spark.task.maxFailures": "1",
        "spark.sql.shuffle.partitions": "2",
    }
    asked = {
        "master": master,
        "workers": WORKERS,
        "config": QUICK | config,
        "seen": seen.path,
        "archive": seen.archive,
        "copy": folder / "copy",
        "hidden": hidden.path,
        "hidden_archive": hidden.archive,
        "seams": seams(hidden),
    }
    return found_by(DRIVER, folder, asked)


def texts(records: list[tuple[int, int, bytes]]) -> list[list[object]]:
    """What Python reads, as JSON has it."""
    return [[number, sequence, value.decode()] for number, sequence, value in records]


def archived(shop: Shop) -> list[list[object]]:
    """What of it the archive has."""
    ends = seams(shop)
    return texts([row for row in shop.records() if row[1] < ends[str(row[0])]])


def test_session_on_a_cluster_has_two_executors_with_sockets(found: dict[str, Any]) -> None:
    """Tasks run in both workers' executors, which talk to Python through Unix sockets."""
    assert found["executors"] == WORKERS
    assert found["sockets"] == "true"


def test_batch_read_on_a_cluster_has_every_record(found: dict[str, Any], seen: Shop) -> None:
    """Archive, sealed and live segments, in more parts than there are workers."""
    assert found["batch"] == texts(seen.records())
    assert found["parts"] > WORKERS


def test_sink_on_a_cluster_appends_every_record_once(found: dict[str, Any], seen: Shop) -> None:
    """Executors stage, the driver publishes."""
    assert found["copied"] == sorted(value.decode() for _, _, value in seen.records())


def test_history_on_a_cluster_has_every_record_and_leaves_no_lease(
    found: dict[str, Any], seen: Shop
) -> None:
    """Workers read the files of the archive; a driver that ended has given its leases back."""
    assert found["history"] == texts(seen.records())
    assert not list(seen.archive.rglob(OF_HISTORY))


def test_worker_without_the_folder_reads_what_is_archived(
    found: dict[str, Any], hidden: Shop
) -> None:
    """Ranges below the seam come from the archive, through our source and through Spark's own."""
    assert len(archived(hidden)) == 1000
    assert found["archived"] == archived(hidden)
    assert found["past"] == archived(hidden)


@pytest.mark.parametrize("read", ["tail", "bare", "live"])
def test_worker_without_the_folder_asked_for_a_live_range_says_what_to_do(
    read: str, found: dict[str, Any], hidden: Shop
) -> None:
    """The error names the host and the folder, and what would help; it is no empty result."""
    host = f"host {platform.node()} does not see the folder {hidden.path}/partitions/"
    assert host in found[read]
    assert "give every worker the same folder, or name the archive" in found[read]
    missing = "no archive is named" if read == "bare" else "the archive does not have them yet"
    assert missing in found[read]
