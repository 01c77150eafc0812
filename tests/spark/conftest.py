"""One Spark session for every test in this folder, in one process of the run.

A session takes seconds to start, and its first use of a Python source takes seconds more. So all
tests here belong to one group, which `--dist loadgroup` hands to one worker as a whole. What a test
sets on the session it takes back.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

FOLDER: Final = Path(__file__).parent
#: What Spark and its libraries warn about by themselves, whatever is asked of them.
WARNINGS: Final = (
    # Sockets to the JVM are closed when the collector comes by.
    "ignore:unclosed <socket:ResourceWarning",
    "ignore:PySpark does not yet fully support pandas:FutureWarning",
    "ignore:The copy keyword is deprecated:DeprecationWarning",
)
#: A session for small tables: nobody looks at it, and it lives too short for the second compiler.
FLAGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming"
    ".checkpointing.FileSystemBasedCheckpointFileManager",
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here runs in one worker, and Spark's own warnings are no errors."""
    for item in items:
        if FOLDER in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("spark"))
            for line in WARNINGS:
                item.add_marker(pytest.mark.filterwarnings(line))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session that all tests share: two cores of this machine."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - only whoever asks for it pays for Spark

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    warehouse = tmp_path_factory.mktemp("warehouse")
    builder = SparkSession.builder.master("local[2]").appName("headwater-tests")
    for name, value in (FLAGS | {"spark.sql.warehouse.dir": str(warehouse)}).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
