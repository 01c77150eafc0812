"""Spark Connect: a client without any Java, a server in a process of its own."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.spark.daemons import HOST, QUICK, SPARK_HOME, found_by, free_port, running
from tests.spark.shop import Shop

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: Leases of histories: those of batch reads, `plan-...`, run out by themselves.
OF_HISTORY: Final = "_headwater/leases/[!p]*.json"
#: Everything that a client does, in one session.
CLIENT: Final = """
import gc, json, sys, time
from pathlib import Path

asked = json.loads(sys.argv[1])
from headwater.spark import history, register, session
from headwater.spark._session import is_connect
from tests.spark.shop import load, rows

def texts(frame):
    return [[number, sequence, value.decode()] for number, sequence, value in rows(frame)]

def leases():
    return len(list(Path(asked["archive"]).rglob(asked["leases"])))

spark = session("client", asked["address"], {"spark.sql.shuffle.partitions": "2"})
found = {"connect": is_connect(spark), "same": session() is spark}
found["shuffle"] = spark.conf.get("spark.sql.shuffle.partitions")
found["registered"] = register(spark) is spark
found["batch"] = texts(load(spark, asked["path"], archive=asked["archive"]))

source = spark.readStream.format("headwater").option("startingSequence", "earliest")
stream = source.option("archive", asked["archive"]).load(asked["path"])
sink = stream.select("key", "value").writeStream.format("headwater")
sink = sink.option("checkpointLocation", asked["copy"] + "/checkpoint").option("partitions", "2")
query = sink.trigger(availableNow=True).option("topic", "sales/copy").start(asked["copy"])
query.awaitTermination(100)
copied = load(spark, asked["copy"] + "/sales/copy")
found["copied"] = sorted(value for _, _, value in texts(copied))

frame = history(spark, asked["path"], archive=asked["archive"], lease_s=0.3)
found["history"] = texts(frame)
names = frame.selectExpr("input_file_name() as name").where("name <> ''").distinct()
found["files"] = names.count()
derived = frame.where("partition = 1").select("value")
del frame, names
gc.collect()
time.sleep(0.4)
found["leased"] = leases()
found["derived"] = derived.count()
del derived
for _ in range(500):
    gc.collect()
    if not leases():
        break
    time.sleep(0.02)
found["left"] = leases()
kept = history(spark, asked["path"], archive=asked["archive"])
found["again"] = leases()
spark.stop()
print(json.dumps(found))
"""
#: What is found without anybody having registered anything.
STRANGER: Final = """
import json, sys
from pyspark import SparkContext
from pyspark.sql import SparkSession

asked = json.loads(sys.argv[1])
spark = SparkSession.builder.remote(asked["address"]).getOrCreate()
frame = spark.read.format("headwater").option("archive", asked["archive"]).load(asked["path"])
print(json.dumps({"count": frame.count(), "java": SparkContext._gateway is not None}))
"""


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """A topic that is archived, and goes on here."""
    made = Shop(tmp_path_factory.mktemp("connect"), 2)
    made.fill(1000)
    made.seal_and_archive()
    made.forget_locally()
    made.fill(200, start=1000)
    yield made
    made.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Connect server, from pyspark's own script."""
    port, folder = free_port(), tmp_path_factory.mktemp("server")
    config = QUICK | {
        "spark.connect.grpc.binding.port": str(port),
        "spark.connect.grpc.binding.address": HOST,
        "spark.driver.host": HOST,
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
        "spark.pyspark.python": sys.executable,
    }
    command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", "local[2]"]
    for name, value in config.items():
        command += ["--conf", f"{name}={value}"]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    with running([*command, "spark-internal"], folder, "Spark Connect server started"):
        yield f"sc://{HOST}:{port}"


@pytest.fixture(scope="module")
def found(address: str, shop: Shop, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the client found."""
    folder = tmp_path_factory.mktemp("client")
    asked = {"address": address, "path": shop.path, "archive": shop.archive, "leases": OF_HISTORY}
    return found_by(CLIENT, folder, asked | {"copy": folder / "copy"})


def everything(shop: Shop) -> list[list[object]]:
    """What Python reads, as JSON has it."""
    return [[number, sequence, value.decode()] for number, sequence, value in shop.records()]


def test_format_is_found_by_a_client_that_registered_nothing(
    address: str, shop: Shop, tmp_path: Path
) -> None:
    """The server finds `format("headwater")` by itself; the client has no Java to talk to."""
    asked = {"address": address, "path": shop.path, "archive": shop.archive}
    found = found_by(STRANGER, tmp_path, asked)
    assert found == {"count": 1200, "java": False}


def test_session_at_an_address_is_a_client_and_is_found_again(found: dict[str, Any]) -> None:
    """`session` connects, sets what can be set, and returns the same one when it is there."""
    assert found["connect"]
    assert found["same"]
    assert found["registered"]
    assert found["shuffle"] == "2"


def test_batch_read_under_connect_has_every_record(found: dict[str, Any], shop: Shop) -> None:
    """What is archived and what is here, as Python reads it."""
    assert found["batch"] == everything(shop)


def test_stream_under_connect_copies_every_record_once(found: dict[str, Any], shop: Shop) -> None:
    """From the topic through a stream into a topic that the sink made."""
    assert found["copied"] == sorted(row[2].decode() for row in shop.records())


def test_history_under_connect_has_the_rows_and_its_leases(
    found: dict[str, Any], shop: Shop
) -> None:
    """Spark reads the files; leases last as long as the plan, and no longer than the client."""
    assert found["history"] == everything(shop)
    archives = [shop.topic.archive_of(number) for number in range(2)]
    assert found["files"] == sum(len(a.archive.entries()) for a in archives if a is not None)
    assert found["derived"] == len([row for row in shop.records() if row[0] == 1])
    assert (found["leased"], found["left"], found["again"]) == (2, 0, 2)
    assert not list(shop.archive.rglob(OF_HISTORY))
