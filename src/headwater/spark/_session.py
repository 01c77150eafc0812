"""Sessions: one with what was measured to matter, and the format made known to those of others.

A session is Spark's and belongs to whoever made it: what somebody else set there is never changed,
only told. Settings that Spark reads when it starts can be given to a new session alone.
"""

from __future__ import annotations

import logging
import re
import sys
from typing import TYPE_CHECKING, Final

from headwater.errors import InvalidInputError
from headwater.fs._host import core_count, set_variable, variable
from headwater.spark._java import find_java, use_java

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

logger = logging.getLogger("headwater")

_CONNECT: Final = "sc://"
_LOCAL: Final = re.compile(r"local(?:\[(\d+|\*)(?:,\s*\d+)?\])?")
_LOOPBACK: Final = "127.0.0.1"
_SOCKETS: Final = "spark.python.unix.domain.socket.enabled"
_CHECKPOINTS: Final = "org.apache.spark.sql.execution.streaming.checkpointing"
#: For every session. Through TCP each task of a Python worker waits for an acknowledgement.
_EVERYWHERE: Final = {
    _SOCKETS: "true",
    # The files of an archive are named one by one; to look for them is not worth a job of its own.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
}
#: For a session on one machine: a host name need not be looked up, and a rename is enough for a
#: checkpoint. On HDFS it is not.
_HERE: Final = {
    "spark.driver.bindAddress": _LOOPBACK,
    "spark.driver.host": _LOOPBACK,
    "spark.sql.streaming.checkpointFileManagerClass": (
        f"{_CHECKPOINTS}.FileSystemBasedCheckpointFileManager"
    ),
}


def session(
    name: str = "headwater",
    master: str = "local[*]",
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """The active session, or a new one with the settings that make Headwater fast.

    `master` is what Spark calls so, or `sc://host:port` of a Spark Connect server. `config` goes on
    top of the settings. A session that is there already stays as it is, but for what of `config`
    can still be set; what cannot is logged as a warning. `format("headwater")` is known in it.

    Raises `UnsupportedError` where there is no Java that Spark runs on.
    """
    wanted = {key: _checked(key, value) for key, value in (config or {}).items()}
    found = active()
    if found is None:
        return register(_begun(name, master, wanted))
    _adopt(found, wanted)
    return register(found)


def active() -> SparkSession | None:
    """The session of this thread, else that of the process."""
    from pyspark.errors import PySparkRuntimeError  # noqa: PLC0415 - it takes a while
    from pyspark.sql import SparkSession  # noqa: PLC0415 - the same

    try:
        return SparkSession.active()
    except PySparkRuntimeError:
        return None


def _checked(key: str, value: object) -> str:
    if not str(key).startswith("spark."):
        raise InvalidInputError(f"config: {key!r} is not the name of a setting of Spark")
    if not isinstance(value, str):
        raise InvalidInputError(f"config: {key} must be text, not {value!r}")
    return value


def register(spark: SparkSession) -> SparkSession:
    """Make `format("headwater")` known in a session, classic or Connect; returns the session.

    Spark finds it by itself, but only what was installed before it looked.
    """
    from headwater.spark._source import HeadwaterSource  # noqa: PLC0415 - needs pyspark

    spark.dataSource.register(HeadwaterSource)
    return spark


def is_connect(spark: SparkSession) -> bool:
    """True for a session of Spark Connect, whose Java is out of reach."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


# --- a new one ------------------------------------------------------------------------------------


def _begun(name: str, master: str, wanted: Mapping[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession  # noqa: PLC0415 - it takes a while

    builder = SparkSession.builder.appName(name)
    if master.startswith(_CONNECT):
        for key, value in wanted.items():
            builder = builder.config(key, value)
        return builder.remote(master).getOrCreate()
    prepare_environment(master)
    for key, value in (settings(master) | dict(wanted)).items():
        builder = builder.config(key, value)
    return builder.master(master).getOrCreate()


def prepare_environment(master: str) -> None:
    """Set what Spark reads from the environment when it starts; what is set there stays."""
    use_java(find_java())
    defaults = {"PYSPARK_PYTHON": sys.executable}
    if _LOCAL.fullmatch(master):
        defaults["SPARK_LOCAL_IP"] = _LOOPBACK
    for key, value in defaults.items():
        if variable(key) is None:
            set_variable(key, value)


def settings(master: str) -> dict[str, str]:
    """The settings of a new session on a master."""
    local = _LOCAL.fullmatch(master)
    if local is None:
        return dict(_EVERYWHERE)
    cores = core_count() if local[1] == "*" else int(local[1] or 1)
    return _EVERYWHERE | _HERE | {"spark.sql.shuffle.partitions": str(cores)}


# --- one that was there ---------------------------------------------------------------------------


def _adopt(spark: SparkSession, wanted: Mapping[str, str]) -> None:
    """Set what can still be set, and say what cannot."""
    late = []
    for key, value in wanted.items():
        if spark.conf.get(key, None) == value:
            continue
        if spark.conf.isModifiable(key):
            spark.conf.set(key, value)
        else:
            late.append(f"{key}={value}")
    if late:
        logger.warning(
            "the session was there already, so these settings do not count: %s; stop it first, or "
            "give them where it is made",
            ", ".join(late),
        )
    if not is_connect(spark) and spark.conf.get(_SOCKETS, "false") != "true":
        logger.warning(
            "the session was started without %s=true, so every task of a Python worker takes some "
            "40 ms longer: give it where the session is made, or let headwater.spark.session() "
            "make one",
            _SOCKETS,
        )
