"""Every error Headwater raises, in one family.

::

    HeadwaterError
    ├── ClosedError                 the handle was closed, or belongs to the parent of a fork
    ├── LockedError                 somebody else holds it: pid, started
    ├── PoisonedError               a sync failed; nothing more is acked until the log is reopened
    ├── InvalidInputError           (also ValueError) the arguments cannot be accepted
    ├── UnsupportedError            understood, but beyond what this version or this log can do
    │   └── UnsupportedManifestVersion   version
    ├── NotALogError                the folder is not a log: path
    ├── PositionError               a position or sequence that the log does not have
    │   └── SequenceExpiredError    older than the first record kept: sequence, start_sequence
    ├── StorageError                (also OSError) the operating system refused: errno, filename
    ├── CorruptionError             path, segment_id, position, sequence, expected, actual
    │   └── ManifestCorrupted       reason
    ├── ManifestNotFound            path
    ├── ConfigError                 a setting that cannot be accepted
    ├── ArchiveError                the archive does not hold what it should
    ├── ConflictError               a conditional or numbered append that does not fit
    ├── OverloadedError             retryable: partition, limit
    └── NotLeaderError              retryable elsewhere: hint

Each class has a stable ``code``. Messages say what, where, and what to do next.
"""

from __future__ import annotations


class HeadwaterError(Exception):
    """Root of the family: ``except HeadwaterError`` catches everything raised on purpose."""

    code = "headwater"


class ClosedError(HeadwaterError):
    """The handle was closed, or it was inherited through a fork and refuses to act."""

    code = "closed"


class LockedError(HeadwaterError):
    """Another handle holds the log or the reader; ``pid`` and ``started`` say whose it is."""

    code = "locked"

    def __init__(self, message: str, *, pid: int | None = None, started: str | None = None) -> None:
        super().__init__(message)
        self.pid = pid
        self.started = started


class PoisonedError(HeadwaterError):
    """A sync failed, so this writer acknowledges nothing any more. Reopen the log to go on."""

    code = "poisoned"


class InvalidInputError(HeadwaterError, ValueError):
    """An argument that cannot be accepted. Nothing was changed."""

    code = "invalid-input"


class UnsupportedError(HeadwaterError):
    """Understood, but beyond what this version, platform or log can do."""

    code = "unsupported"


class UnsupportedManifestVersion(UnsupportedError):  # noqa: N818 - the name is a requirement
    """The manifest was written by a newer format version."""

    code = "manifest-version"

    def __init__(self, version: int) -> None:
        super().__init__(f"Manifest version {version} not supported")
        self.version = version


class NotALogError(HeadwaterError):
    """The folder exists but does not hold a log."""

    code = "not-a-log"

    def __init__(self, message: str, *, path: str) -> None:
        super().__init__(message)
        self.path = path


class PositionError(HeadwaterError):
    """A position or sequence that this log does not have."""

    code = "position"


class SequenceExpiredError(PositionError):
    """The sequence was removed by retention; the log now starts at ``start_sequence``."""

    code = "sequence-expired"

    def __init__(self, sequence: int, start_sequence: int) -> None:
        super().__init__(
            f"sequence {sequence} is older than the first record kept, {start_sequence}: "
            f"seek to {start_sequence} or read the archive"
        )
        self.sequence = sequence
        self.start_sequence = start_sequence


class StorageError(HeadwaterError, OSError):
    """The operating system refused an operation; ``errno`` and ``filename`` are kept."""

    code = "storage"


class CorruptionError(HeadwaterError):
    """Bytes that were durable are not what they were. Nothing is skipped or repaired silently."""

    code = "corruption"

    def __init__(  # noqa: PLR0913 - one keyword per fact that helps to find the place
        self,
        message: str,
        *,
        path: str | None = None,
        segment_id: int | None = None,
        position: int | None = None,
        sequence: int | None = None,
        expected: object = None,
        actual: object = None,
    ) -> None:
        super().__init__(message)
        self.path = path
        self.segment_id = segment_id
        self.position = position
        self.sequence = sequence
        self.expected = expected
        self.actual = actual


class ManifestCorrupted(CorruptionError):  # noqa: N818 - the name is a requirement
    """The manifest slot that the pointer names is damaged. There is no silent fallback."""

    code = "manifest-corrupted"

    def __init__(self, reason: str, *, path: str | None = None) -> None:
        super().__init__(f"Manifest corrupted: {reason}", path=path)
        self.reason = reason


class ManifestNotFound(HeadwaterError):  # noqa: N818 - the name is a requirement
    """Segments are there, but no manifest pointer names them."""

    code = "manifest-not-found"

    def __init__(self, path: str) -> None:
        super().__init__(f"Manifest not found, expected at {path}")
        self.path = path


class ConfigError(HeadwaterError):
    """A setting that cannot be accepted, named with its file, key and value."""

    code = "config"


class ArchiveError(HeadwaterError):
    """The archive does not hold what it should, or cannot be reached."""

    code = "archive"


class ConflictError(HeadwaterError):
    """A conditional append met another state, or a producer repeated a number with other data."""

    code = "conflict"


class OverloadedError(HeadwaterError):
    """Admission refused the work for now; back off and try again."""

    code = "overloaded"

    def __init__(
        self, message: str, *, partition: str | None = None, limit: str | None = None
    ) -> None:
        super().__init__(message)
        self.partition = partition
        self.limit = limit


class NotLeaderError(HeadwaterError):
    """This node does not lead; ``hint`` names the node that probably does."""

    code = "not-leader"

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint
