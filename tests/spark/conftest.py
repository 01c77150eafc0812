"""One Spark session for every test in this folder, in one process of the run.

A session takes seconds to start, and its first use of a Python source takes seconds more. So all
tests here stay together: one process of the run gets this folder as a whole. What a test sets on
the session it takes back.
"""

from __future__ import annotations

import signal
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
    "spark.sql.catalogImplementation": "in-memory",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spark's own warnings are no errors here."""
    for item in items:
        if FOLDER in item.path.parents:
            for line in WARNINGS:
                item.add_marker(pytest.mark.filterwarnings(line))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session that all tests share: two cores of this machine."""
    from headwater.spark._session import session  # noqa: PLC0415 - for whoever asks for it

    folder = tmp_path_factory.mktemp("spark")
    config = FLAGS | {"spark.sql.warehouse.dir": f"{folder}/warehouse"}
    on_interrupt = signal.getsignal(signal.SIGINT)
    made = session("headwater-tests", "local[2]", config)
    signal.signal(signal.SIGINT, on_interrupt)  # Spark's own would stay for all tests behind these
    made.sparkContext.setLogLevel("ERROR")
    yield made
    made.stop()
