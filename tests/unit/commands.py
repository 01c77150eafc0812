"""Running the command line: in this process, where it is quick, or as the installed program."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

import headwater
from headwater.cli import main

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAM = Path(sys.executable).with_name("headwater")
#: Long enough for a busy machine; nothing that passes ever waits for it.
PATIENCE_S = 60.0
SEGMENT_BYTES = 64 * 1024


class Outcome(NamedTuple):
    """What a command did."""

    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        """Standard output as text."""
        return self.out.decode()

    @property
    def document(self) -> Any:  # noqa: ANN401 - that is what JSON is
        """Standard output as one JSON document."""
        return json.loads(self.out)

    @property
    def rows(self) -> list[Any]:
        """Standard output as JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]


class _Stream(io.TextIOWrapper):
    """A standard stream over memory; a terminal if wanted."""

    def __init__(self, data: bytes, *, terminal: bool) -> None:
        self.memory = io.BytesIO(data)
        super().__init__(self.memory, encoding="utf-8", write_through=True)
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


def run(*argv: object, stdin: bytes = b"", terminal: bool = False) -> Outcome:
    """Run a command in this process; `terminal` puts a person at stdin and stderr."""
    source = _Stream(stdin, terminal=terminal)
    out, err = _Stream(b"", terminal=False), _Stream(b"", terminal=terminal)
    with (
        mock.patch.object(sys, "stdin", source),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = main([str(argument) for argument in argv])
    return Outcome(code, out.memory.getvalue(), err.memory.getvalue().decode())


@contextlib.contextmanager
def started(*argv: object) -> Iterator[subprocess.Popen[bytes]]:
    """Run the installed program in a process of its own."""
    command = [str(PROGRAM), *map(str, argv)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        try:
            yield process
        finally:
            process.kill()


def ended(process: subprocess.Popen[bytes]) -> Outcome:
    """Wait for a program's own end."""
    out, err = process.communicate(timeout=PATIENCE_S)
    return Outcome(process.returncode, out, err.decode())


def make_log(path: Path, values: list[bytes], **options: Any) -> Path:  # noqa: ANN401
    """A closed log that holds some values, in segments of 64 KiB."""
    with headwater.open(path, **{"segment_bytes": SEGMENT_BYTES, **options}) as log:
        log.append_many(values)
    return path


def rolled_log(path: Path, records: int = 300) -> Path:
    """A closed log of several segments: 1,000 bytes in a record, 64 KiB in a segment."""
    with headwater.open(path, segment_bytes=SEGMENT_BYTES, durability="os") as log:
        for number in range(records):
            log.append(b"%d " % number * 10 + bytes(900))
        log.upkeep()  # every sealed segment gets its index
    return path
