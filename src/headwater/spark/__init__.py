"""Headwater on Spark: logs, topics, archives and event logs as tables and streams, and back.

    from headwater.spark import session

    spark = session()
    spark.read.format("headwater").load("data/sales/orders").count()

Needs the extra `spark` and Java 17 or newer. Spark finds the format by itself; where it looks is
looked up once, so `register` is for sessions that were there before Headwater was installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from headwater.errors import UnsupportedError

if TYPE_CHECKING:
    from headwater.spark import pipeline
    from headwater.spark._history import history
    from headwater.spark._listener import track_reader
    from headwater.spark._progress import lag
    from headwater.spark._session import register, session
    from headwater.spark._sync import sync_reader

__all__ = ["history", "lag", "pipeline", "register", "session", "sync_reader", "track_reader"]

_LATER = {
    "history": "headwater.spark._history",
    "lag": "headwater.spark._progress",
    "register": "headwater.spark._session",
    "session": "headwater.spark._session",
    "sync_reader": "headwater.spark._sync",
    "track_reader": "headwater.spark._listener",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Load pyspark when something is used, and say what to install when it is not there."""
        if name == "pipeline":
            return import_module("headwater.spark.pipeline")
        if name not in _LATER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            return getattr(import_module(_LATER[name]), name)
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] not in {"pyspark", "pyarrow"}:
                raise
            raise UnsupportedError(
                f"Spark needs the extra `spark` ({error}): pip install 'headwater[spark]'"
            ) from error
