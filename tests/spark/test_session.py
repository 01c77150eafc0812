"""Sessions: what is set, what a session of the user's keeps, what is said when it is too late."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_session_counts_rows(spark: SparkSession) -> None:
    """The session of the tests runs a query to its end."""
    assert spark.range(10).count() == 10
