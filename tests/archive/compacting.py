"""What the tests of compaction share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headwater._home import Home
from headwater.archive import (
    History,
    compact,
)
from headwater.testing import FaultFS
from tests.archive.place import FOLDER, Place

if TYPE_CHECKING:
    from headwater._log import Log
    from headwater._types import Record
    from headwater.archive import CompactionReport

#: Larger than anything in these tests: everything becomes one file.
ALL: Final = 10**9


def spool() -> Home:
    """A folder for the file that grows, away from everything else."""
    return Home(FaultFS(), "/")


def compacted(place: Place, **options: Any) -> CompactionReport:  # noqa: ANN401 - any option
    """Compact the archive of a place."""
    return compact(place.archive, spool=spool(), **{"target_bytes": ALL} | options)


def archived(place: Place, segments: int = 4) -> tuple[Log, list[Record]]:
    """Fill a log, archive it, and bring its archived records."""
    log = place.filled(segments)
    place.archiver().run()
    return log, list(log.read(0, place.archive.entries()[-1].stop))


def objects(place: Place) -> set[str]:
    """Names of the Parquet files in the store."""
    found = {info.name.rpartition("/")[2] for info in place.store.list(FOLDER)}
    return {name for name in found if name.endswith(".parquet")}


def only_archive(place: Place) -> list[Record]:
    """What the archive alone gives."""
    return list(History(None, place.archive).records())
