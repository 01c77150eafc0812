"""The person, or the program, at the other end: results, progress, warnings, errors, questions.

Results go to stdout, everything else to stderr. Text is written as UTF-8 whatever the locale, so
that records come out as they went in. Knows nothing of logs.
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import sys
import threading
import time
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NoReturn

from headwater.cli.options import UsageError
from headwater.errors import CorruptionError, HeadwaterError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import BinaryIO, TextIO

#: Work that takes less than this needs no progress.
PATIENCE_S: Final = 1.0
_REDRAW_S: Final = 0.25
#: Its descriptor, whatever `sys.stderr` is.
_STDERR: Final = 2
_PLACE: Final = ("path", "segment_id", "position", "sequence")


class Terminal:
    """Where a command shows what it has to say."""

    def __init__(self, *, json_wanted: bool = False) -> None:
        self.json = json_wanted
        self._out = sys.stdout.buffer
        #: True when stdout is a terminal, which progress has to share with the results.
        self.is_person = sys.stdout.isatty()
        self._progress_wanted = sys.stderr.isatty()
        self._started = time.monotonic()
        self._drawn = 0.0
        self._progress_length = 0

    # --- results ----------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Bytes to stdout, exactly. Raises `StorageError` when they cannot be written."""
        if self.is_person:
            self.clear_progress()
        with self._handing_on():
            self._out.write(data)

    def line(self, text: str = "") -> None:
        """A line to stdout."""
        self.write(text.encode("utf-8", "backslashreplace") + b"\n")

    def document(self, value: object) -> None:
        """The one JSON document of a command."""
        self.line(json.dumps(_named(value), indent=2, ensure_ascii=False))

    def flush(self) -> None:
        """Hand on what was written. Raises `BrokenPipeError` when nobody takes it any more."""
        with self._handing_on():
            self._out.flush()

    @contextmanager
    def _handing_on(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            raise
        except OSError as error:
            self.abandon()
            what = f"writing stdout failed: {error.strerror}"
            raise StorageError(error.errno, what) from error

    def flush_line(self, text: str = "") -> None:
        """A line to stdout, at once."""
        self.line(text)
        self.flush()

    def gone(self) -> bool:
        """True when whoever read stdout has left, so that waiting for records is of no use."""
        try:
            poll = select.poll()
            poll.register(self._out.fileno(), 0)
        except (AttributeError, OSError, ValueError):
            return False  # not a file: a test, or a program that calls us
        return any(found & (select.POLLERR | select.POLLHUP) for _, found in poll.poll(0))

    def abandon(self) -> None:
        """Nobody takes stdout any more: what is still to be written goes nowhere, quietly."""
        _abandon(self._out)

    # --- everything else --------------------------------------------------------------------------

    def progress(self, text: str) -> None:
        """Show how far the work is, in place; only to a person, and not in the first second."""
        now = time.monotonic()
        if not self._progress_wanted or now - self._started < PATIENCE_S:
            return
        if now - self._drawn >= _REDRAW_S:
            self._drawn = now
            self._draw(text)

    def _draw(self, text: str) -> None:
        _say("\r" + text.ljust(self._progress_length), end="")
        self._progress_length = len(text)

    def clear_progress(self) -> None:
        """Take the progress line away."""
        if self._progress_length:
            self._draw("")
            _say("\r", end="")

    @contextmanager
    def waiting(self, label: str) -> Iterator[Callable[[str], None]]:
        """Show that work goes on. What it says of itself, to the yielded function, is shown too."""
        done, said = threading.Event(), [label]
        started = time.monotonic()

        def tick() -> None:
            while not done.wait(_REDRAW_S):
                self.progress(f"{said[-1]} ... {time.monotonic() - started:.0f} s")

        clock = threading.Thread(target=tick, name="headwater-progress", daemon=True)
        if self._progress_wanted:
            clock.start()
        try:
            yield said.append
        finally:
            done.set()
            if clock.ident is not None:
                clock.join()
            self.clear_progress()

    def note(self, text: str) -> None:
        """A line to stderr: a warning, or a word on what happens; with JSON an object."""
        self.clear_progress()
        text = one_line(text)
        _say(json.dumps({"note": text}) if self.json else f"headwater: {text}")

    def fail(self, error: HeadwaterError | OSError | UsageError) -> None:
        """Say what went wrong: a line, or a JSON object with the error's code."""
        if not self.json:
            self.note(str(error))
            return
        self.clear_progress()
        code = getattr(error, "code", StorageError.code)
        found: dict[str, object] = {"code": code, "message": one_line(str(error))}
        if isinstance(error, CorruptionError):
            found |= {name: getattr(error, name) for name in _PLACE}
        _say(json.dumps({"error": found}))

    def confirm(self, question: str) -> bool:
        """Ask a person yes or no; anything but yes is no. Raises `UsageError` without a person."""
        if not sys.stdin.isatty():
            raise UsageError("stdin is no terminal, so nobody can be asked: give --yes")
        self.clear_progress()
        self.flush()
        _say(f"{question} [y/N] ", end="")
        return sys.stdin.readline().strip().lower() in ("y", "yes")

    @contextmanager
    def warnings(self) -> Iterator[None]:
        """While this is open, what the library logs as a warning appears as a note."""
        logger = logging.getLogger("headwater")
        notes = _Notes(self)
        before = logger.propagate
        logger.addHandler(notes)
        logger.propagate = False
        try:
            yield
        finally:
            logger.propagate = before
            logger.removeHandler(notes)


class _Notes(logging.Handler):
    """Shows log messages as notes."""

    def __init__(self, terminal: Terminal) -> None:
        super().__init__(logging.WARNING)
        self._terminal = terminal

    def emit(self, record: logging.LogRecord) -> None:
        """Show one message on one line."""
        error = record.exc_info[1] if record.exc_info else None
        text = record.getMessage() if error is None else f"{record.getMessage()}: {error}"
        self._terminal.note(f"{record.levelname.lower()}: {text}")


class Terminated(KeyboardInterrupt):
    """SIGTERM: an end in order, as with Ctrl-C."""


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM inside the block is raised, unless somebody wanted something else of it."""
    if not _hears_signals() or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C or SIGTERM in the block counts at its end, so that what is done is also counted.

    A second one counts at once.
    """
    seen: list[int] = []

    def remember(number: int, frame: object) -> None:
        seen.append(number)
        if len(seen) > 1:
            _interrupt(number, frame)

    if not _hears_signals():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, remember) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
    if seen:
        _interrupt(seen[0], None)


def _interrupt(number: int, _: object) -> NoReturn:
    raise Terminated if number == signal.SIGTERM else KeyboardInterrupt


def _hears_signals() -> bool:
    return threading.current_thread() is threading.main_thread()


@contextmanager
def hushed() -> Iterator[None]:
    """What is started inside the block says nothing on standard error, as long as it lives.

    For Spark, which greets with a page of its own. What goes wrong comes as an exception.
    """
    sys.stderr.flush()
    kept, nowhere = os.dup(_STDERR), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, _STDERR)
    warnings.filterwarnings("ignore", "PySpark does not yet fully support", FutureWarning)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        os.dup2(kept, _STDERR)
        os.close(kept)
        os.close(nowhere)


def open_standard_streams() -> None:
    """Closed standard streams become the null device.

    Otherwise the first files of a log would take their descriptors, and whatever still writes to
    "stderr" would write into a segment.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(nowhere, mode, encoding="utf-8"))


def _say(text: str, end: str = "\n") -> None:
    """Text to stderr, at once. Where nobody takes it, the exit code has to say it all."""
    try:
        print(text, end=end, file=sys.stderr, flush=True)
    except OSError:
        _abandon(sys.stderr)


def _abandon(stream: BinaryIO | TextIO) -> None:
    """Lead a stream that cannot be written any more to the null device."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
    except (OSError, ValueError):
        return  # not a file: a test, or a program that calls us


def one_line(text: str) -> str:
    """Text that stays on its line."""
    return " ".join(text.split())


def _named(value: object) -> object:
    """The same with every named tuple as an object that has its names."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {key: _named(item) for key, item in value.items()}
    return [_named(item) for item in value] if isinstance(value, list | tuple) else value
