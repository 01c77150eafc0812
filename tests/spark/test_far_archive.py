"""An archive in an object store: address and options travel from the driver to the workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest

from headwater.errors import ConfigError
from headwater.spark._options import parse_read_options
from headwater.spark._targets import targets_of
from headwater.store import DeleterConfig, Store
from tests.archive.servers import Server, serving
from tests.spark.shop import NAME, load, rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

ARCHIVED = 150
WHOLE = 170


class Far(NamedTuple):
    """A topic here, its archive in a server, and what the source has to be told of it."""

    path: str
    server: Server
    options: dict[str, str]

    @property
    def url(self) -> str:
        """Where the archive is."""
        return self.server.url("far")


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Far]:
    """Two archived segments of one partition that are not here any more, and a live tail."""
    folder = tmp_path_factory.mktemp("far")
    with serving("moto", folder) as server:
        config = {"archive": server.url("far"), "archive_options": server.options}
        with Store(folder / "data", config, background=False) as store:
            topic = store.topic(NAME)
            for part in (range(100), range(100, ARCHIVED)):
                topic.append_many([b"%d" % number for number in part])
                topic.roll()
                topic.archive()
            topic.retain(config=DeleterConfig(5, None, 1e-9))
            topic.append_many([b"%d" % number for number in range(ARCHIVED, WHOLE)])
            options = {f"archive.{name}": text for name, text in server.options.items()}
            yield Far(topic.path, server, options)


def test_archive_in_a_server_alone_is_a_table(spark: SparkSession, far: Far) -> None:
    """By its root with a topic, and by the topic's address in it."""
    wanted = [(0, n, b"%d" % n) for n in range(ARCHIVED)]
    assert rows(load(spark, far.url, topic=NAME, **far.options)) == wanted
    assert rows(load(spark, f"{far.url}/{NAME}", **far.options)) == wanted


def test_topic_with_its_archive_in_a_server_is_read_as_one(spark: SparkSession, far: Far) -> None:
    """What is not here comes from there, in a batch and in a stream; a range asks for no more."""
    wanted = [(0, n, b"%d" % n) for n in range(WHOLE)]
    options = {"archive": far.url, **far.options}
    assert rows(load(spark, far.path, **options)) == wanted
    few = load(spark, far.path, startingSequence=95, endingSequence=155, **options)
    assert rows(few) == wanted[95:155]
    stream = spark.readStream.format("headwater").options(**options)
    query = (
        stream.option("startingSequence", "earliest")
        .load(far.path)
        .writeStream.format("memory")
        .queryName("far")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    assert rows(spark.table("far")) == wanted
    spark.sql("drop view far")


def test_option_that_the_object_store_does_not_know_is_named() -> None:
    """What stands behind `archive.` is not ignored either."""
    options = {"path": "s3://bucket/far", "topic": NAME, "archive.regiom": "x"}
    with pytest.raises(ConfigError, match="regiom"):
        targets_of(parse_read_options(options, stream=False))
