"""The archive of one log: a folder of files in an object store, and the catalogue that names them.

Readers trust the head and what it leads to; nobody who reads ever lists. The head changes by
conditional put alone: whoever lost the race looks again at what is there. A file is in the
catalogue only after it was read back, and leaves the store only some time after it left the
catalogue.
"""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Self

from headwater.archive import _catalogue
from headwater.archive._catalogue import (
    GONE,
    HEAD,
    MAX_GONE,
    PART_ENTRIES,
    Gone,
    Head,
    Part,
    describe_part,
    overlapping,
    pack_gone,
    pack_part,
    parse_gone,
    parse_head,
    parse_part,
    substituted,
)
from headwater.archive._documents import pack_document, parse_document
from headwater.archive._parquet import SegmentFile
from headwater.archive._probe import is_conditional
from headwater.archive._sink import ObjectReader
from headwater.archive._store import MissingError, checked_name, holds
from headwater.errors import ArchiveError, ConflictError, UnsupportedError
from headwater.fs import random_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from headwater.archive._catalogue import Entry, Swap
    from headwater.archive._store import Got, ObjectStore

logger = logging.getLogger("headwater")

_PARTS: Final = f"{_catalogue.FOLDER}/parts"
#: Where leases are, below the folder of the log.
LEASES: Final = f"{_catalogue.FOLDER}/leases"
_TOKEN_BYTES: Final = 12
SEQUENCE_DIGITS: Final = 20
#: A damaged document is read so often before it is believed to be one.
_READS: Final = 3
#: So many names are tried for a document: others may have lost races, or it came back wrong.
_TRIES: Final = 100
DEFAULT_GRACE_S: Final = 24 * 3600.0
DEFAULT_LEASE_S: Final = 600.0


def partition_folder(namespace: str, topic: str, partition: int) -> str:
    """Where the archive of a partition's log lies in the store."""
    return f"{namespace}/{topic}/partition={partition}"


def file_name(first: int, stop: int) -> str:
    """Name of the file with the records of a range: first and last, so that names sort."""
    return f"{first:0{SEQUENCE_DIGITS}d}-{stop - 1:0{SEQUENCE_DIGITS}d}.parquet"


class Archive:
    """The archive of one log. Safe to share between threads.

    A store without conditional puts is changed only by an archiver that holds the log's lock, or
    where `single_writer` promises that nobody else is at work.
    """

    def __init__(  # noqa: PLR0913 - time and randomness arrive as arguments
        self,
        store: ObjectStore,
        folder: str,
        *,
        single_writer: bool = False,
        conditional: bool | None = None,
        clock_ns: Callable[[], int] = time.time_ns,
        entropy: Callable[[int], bytes] = random_bytes,
    ) -> None:
        self.store = store
        self.folder = checked_name(folder)
        self.single_writer = single_writer
        self.clock_ns = clock_ns
        self.entropy = entropy
        #: True while an archiver holds the lock beside the log, so that no other one is at work.
        self.locked = False
        self._conditional = conditional

    @property
    def url(self) -> str:
        """The folder, for messages."""
        return f"{self.store.url}/{self.folder}"

    @property
    def conditional(self) -> bool:
        """True when the store keeps what it promises about conditional puts; asked once."""
        if self._conditional is None:
            self._conditional = is_conditional(self.store, self.name(_catalogue.FOLDER))
        return self._conditional

    def name(self, file: str) -> str:
        """The name in the store of a file of this archive."""
        return f"{self.folder}/{file}"

    # --- looking ----------------------------------------------------------------------------------

    def head(self) -> Head | None:
        """The head of the catalogue, by one request; None when nothing was ever archived."""
        found = self._head()
        return None if found is None else found[1]

    def _head(self) -> tuple[Got, Head] | None:
        where = f"{self.url}/{HEAD}"
        for attempt in range(_READS):
            got = self.store.get(self.name(HEAD))
            if got is None:
                return None
            try:
                return got, parse_head(got.data, where)
            except ArchiveError:
                if attempt + 1 == _READS:
                    raise
        return None

    def entries(self, start: int = 0, stop: int | None = None) -> list[Entry]:
        """The files that hold a record of the range, oldest first.

        One request, and one more for each thousand files.
        """
        head = self.head()
        return [] if head is None else self.entries_of(head, start, stop)

    def entries_of(self, head: Head, start: int = 0, stop: int | None = None) -> list[Entry]:
        """As `entries`, below a head that is at hand."""
        return list(self._each_of(head, start, stop))

    def _each_of(self, head: Head, start: int = 0, stop: int | None = None) -> Iterator[Entry]:
        """The same, part by part as they are wanted."""
        start = max(start, head.start)
        for part in overlapping(head.parts, start, stop):
            yield from overlapping(self._part(part.file, head.log_id), start, stop)
        yield from overlapping(head.tail, start, stop)

    def _part(self, file: str, log_id: bytes) -> list[Entry]:
        where = f"{self.url}/{file}"
        for attempt in range(_READS):
            got = self.store.get(self.name(file))
            if got is None:
                raise MissingError(f"{where} is not there, and the catalogue names it")
            try:
                return parse_part(got.data, log_id, where)
            except ArchiveError:
                if attempt + 1 == _READS:
                    raise
        return []

    def open_file(self, entry: Entry) -> SegmentFile:
        """A file of the catalogue, open for reading."""
        reader = ObjectReader(self.store, self.name(entry.file), entry.bytes)
        return SegmentFile(reader, f"{self.url}/{entry.file}", entry.footer)

    def check_log(self, log_id: bytes) -> None:
        """Raise `ArchiveError` when this is the archive of another log."""
        head = self.head()
        if head is not None:
            self.check_head(head, log_id)

    def check_head(self, head: Head, log_id: bytes) -> None:
        """As `check_log`, with a head that is at hand."""
        if head.log_id != log_id:
            raise ArchiveError(
                f"{self.url} is the archive of log {head.log_id.hex()}, this is {log_id.hex()}: "
                "give the topic another archive, or delete the old one first"
            )

    def check_position(self, log_id: bytes, epoch: int, sequence: int) -> None:
        """Raise `PositionError` for a place beyond a restored end, `ArchiveError` for another log.

        A position that travels (an offset of a stream job, say) carries log id and epoch with it.
        """
        head = self.head()
        if head is not None:
            head.check_position(log_id, epoch, sequence)

    # --- changing ---------------------------------------------------------------------------------

    def change(self, apply: Callable[[Head | None], Head | None]) -> Head:
        """Put a head in the place of the current one; returns what is there then.

        `apply` is called again whenever somebody else was faster; it returns its argument, or
        None, when there is nothing to change.
        """
        while True:
            found = self._head()
            got, head = found if found is not None else (None, None)
            wanted = apply(head)
            if wanted is None or wanted is head:
                if head is None:
                    raise ArchiveError(f"{self.url}: nothing is archived here")
                return head
            generation = 1 if head is None else head.generation + 1
            wanted = self._spilled(wanted._replace(generation=generation, token=self._token()))
            if self._put_head(wanted, got):
                return wanted

    def _put_head(self, head: Head, got: Got | None) -> bool:
        data = head.pack()
        if self.conditional:
            return self.store.replace(self.name(HEAD), data, None if got is None else got.version)
        self._require_alone()
        self.store.put(self.name(HEAD), data)
        again = self.store.get(self.name(HEAD))
        return again is not None and again.data == data

    def _require_alone(self) -> None:
        if not self.locked:
            self.require_single_writer()

    def require_single_writer(self) -> None:
        """Raise `UnsupportedError` where two hosts could undo each other, unless told otherwise."""
        if not (self.conditional or self.single_writer):
            raise UnsupportedError(
                f"{self.url}: the store does not keep conditional puts apart, so two hosts could "
                "undo each other here: make sure that this is the only one, and say --single-writer"
            )

    def _token(self) -> str:
        return self.entropy(_TOKEN_BYTES).hex()

    def _spilled(self, head: Head) -> Head:
        """The head with a tail below `PART_ENTRIES`: a part of its own takes what is too much."""
        while len(head.tail) >= PART_ENTRIES:
            entries, rest = head.tail[:PART_ENTRIES], head.tail[PART_ENTRIES:]
            part = self._put_part(head, entries)
            head = head._replace(parts=(*head.parts, part), tail=rest)
        return head

    def _put_part(self, head: Head, entries: Sequence[Entry]) -> Part:
        """Keep entries; from now on they may stand nowhere else."""
        data = pack_part(head.log_id, entries)
        return describe_part(self._put_document(_PARTS, head.generation, data), entries)

    def _put_document(self, folder: str, generation: int, data: bytes) -> str:
        """Keep a document under a name that nobody has, read back; a lost race leaves it unused."""
        for number in range(_TRIES):
            file = f"{folder}/{generation:020d}-{number}.json"
            if self.conditional:
                is_new = self.store.put_new(self.name(file), data)
            elif is_new := self.store.stat(self.name(file)) is None:
                self.store.put(self.name(file), data)
            if is_new and holds(self.store, self.name(file), data):
                return file
        raise ArchiveError(f"{self.url}/{folder}: what is put there does not come back as it was")

    # --- other files with the same records --------------------------------------------------------

    def swapped(self, head: Head, swaps: Sequence[Swap]) -> Head:
        """The head that names other files, for `change`; the old ones wait for `collect`.

        Raises `ConflictError` unless all that is to be replaced stands there as it was.
        """
        if len(head.gone) >= MAX_GONE:
            raise ArchiveError(f"{self.url}: {len(head.gone)} files wait for `collect`: run it")
        runs, tail, left = self._loosened(head, swaps)
        lists = [run for run in runs if not isinstance(run, Part)]
        named = {entry for run in (*lists, tail) for entry in run}
        for swap in swaps:
            if swap.new not in named:
                raise ConflictError(
                    f"{self.url}: the files from {swap.old[0].first} to {swap.new.stop - 1} are "
                    "not what they were: expired, or replaced meanwhile; plan again"
                )
        coming = head._replace(generation=head.generation + 1)
        parts: list[Part] = []
        for run in runs:
            parts += [run] if isinstance(run, Part) else self._parts_of(coming, run)
        left += [entry.file for swap in swaps for entry in swap.old]
        names = self._put_document(GONE, coming.generation, pack_gone(head.log_id, left))
        gone = Gone(names, coming.generation, self.clock_ns())
        return head._replace(parts=tuple(parts), tail=tuple(tail), gone=(*head.gone, gone))

    def _loosened(
        self, head: Head, swaps: Sequence[Swap]
    ) -> tuple[list[Part | list[Entry]], list[Entry], list[str]]:
        """Parts to keep and runs of entries that need new ones; the tail; parts that go.

        Small neighbours join, so that parts of a few entries do not pile up.
        """
        runs: list[Part | list[Entry]] = []
        left: list[str] = []

        def loose(run: Part | list[Entry]) -> list[Entry]:
            if not isinstance(run, Part):
                return run
            left.append(run.file)
            return overlapping(self._part(run.file, head.log_id), head.start, None)

        touched: list[Entry] = []
        for part in head.parts:
            if any(s.old[0].first < part.stop and s.new.stop > part.first for s in swaps):
                touched += loose(part)
                continue
            runs += [substituted(touched, swaps), part] if touched else [part]
            touched = []
        tail = substituted([*touched, *head.tail], swaps)
        joined = runs[:1]
        for run in runs[1:]:
            if _is_small(joined[-1], run):
                joined[-1] = [*loose(joined[-1]), *loose(run)]
            else:
                joined.append(run)
        if joined and _is_small(joined[-1], tail):
            tail = [*loose(joined.pop()), *tail]
        return joined, tail, left

    def _parts_of(self, head: Head, entries: Sequence[Entry]) -> list[Part]:
        cuts = range(0, len(entries), PART_ENTRIES)
        return [self._put_part(head, entries[cut : cut + PART_ENTRIES]) for cut in cuts]

    # --- what is not wanted any more --------------------------------------------------------------

    def expire(self, older_than_ns: int) -> int:
        """Drop the oldest files whose records are all older than a time; returns how many.

        Only from the front, so that what is kept has no holes. Their deletion is left to `collect`.
        """
        dropped: list[Entry] = []

        def without_old(head: Head | None) -> Head | None:
            dropped.clear()
            if head is None:
                return None
            for entry in self._each_of(head):
                room = MAX_GONE - len(head.gone) - len(dropped)
                if entry.max_time_ns >= older_than_ns or room <= 0:
                    break
                dropped.append(entry)
            return self._retired(head, dropped) if dropped else head

        if self.head() is not None:
            self.change(without_old)
        return len(dropped)

    def _retired(self, head: Head, entries: list[Entry]) -> Head:
        start, now = entries[-1].stop, self.clock_ns()
        parts = tuple(part for part in head.parts if part.stop > start)
        files = [entry.file for entry in entries]
        files += [part.file for part in head.parts if part.stop <= start]
        gone = tuple(Gone(file, head.generation + 1, now) for file in files)
        tail = tuple(entry for entry in head.tail if entry.stop > start)
        return head._replace(start=start, parts=parts, tail=tail, gone=head.gone + gone)

    def remove_unnamed(self, head: Head) -> int:
        """Delete files behind the end of the catalogue: nobody can ever name them.

        For whoever has just taken the archive over, or is alone with it. Returns how many.
        """
        least = self.name(f"{head.stop:0{SEQUENCE_DIGITS}d}-")
        names = [info.name for info in self.store.list(self.folder)]
        unnamed = [name for name in names if name >= least and name.endswith(".parquet")]
        for name in unnamed:
            logger.warning("%s/%s: removed, never in the catalogue", self.store.url, name)
            self.store.delete(name)
        return len(unnamed)

    def collect(self, grace_s: float = DEFAULT_GRACE_S) -> int:
        """Delete the files that left the catalogue `grace_s` ago and that no lease names.

        The files first, then what the head says of them: a crash in between deletes them again.
        """
        head = self.head()
        if head is None or not head.gone:
            return 0
        self._require_alone()
        leased = self._oldest_lease()
        limit = self.clock_ns() - int(grace_s * 1e9)
        due = [
            gone
            for gone in head.gone
            if gone.since_ns <= limit and (leased is None or gone.generation <= leased)
        ]
        count = sum(self._remove(gone, head.log_id) for gone in due)
        if due:
            done = frozenset(due)
            self.change(
                lambda head: (
                    head and head._replace(gone=tuple(g for g in head.gone if g not in done))
                )
            )
        return count

    def _remove(self, gone: Gone, log_id: bytes) -> int:
        """Delete a file, or a list behind all that it names; returns how many files that were."""
        files = [gone.file]
        if gone.file.startswith(f"{GONE}/"):
            got = self.store.get(self.name(gone.file))
            where = f"{self.url}/{gone.file}"
            # The list is the last thing to go: without it an earlier call deleted them all.
            files = [] if got is None else parse_gone(got.data, log_id, where)
        for file in (*files, gone.file):
            self.store.delete(self.name(file))
        return len(files)

    def _oldest_lease(self) -> int | None:
        """The oldest generation that somebody reads; leases that ran out are removed."""
        found = []
        for info in self.store.list(self.name(LEASES)):
            got = self.store.get(info.name)
            if got is None:
                continue
            facts = parse_document(got.data, f"{self.store.url}/{info.name}")
            generation, until = facts.get("generation"), facts.get("until_ns")
            if not isinstance(generation, int) or not isinstance(until, int):
                raise ArchiveError(f"{self.store.url}/{info.name} is not a lease: delete it")
            if until < self.clock_ns():
                self.store.delete(info.name)
            else:
                found.append(generation)
        return min(found, default=None)

    @contextmanager
    def lease(
        self, seconds: float = DEFAULT_LEASE_S, *, head: Head | None = None
    ) -> Iterator[Lease]:
        """Keep the files of a generation while the block runs and the lease is renewed.

        The generation is that of `head`, else the current one. A file that left the catalogue
        before the lease is there is still protected by the grace.
        """
        lease = Lease(self, self.name(f"{LEASES}/{self._token()}.json"), seconds)
        if head is None:
            lease.renew()
        else:
            lease.generation = head.generation
            lease.extend()
        try:
            yield lease
        finally:
            lease.release()

    def delete_all(self) -> int:
        """Remove everything of this log from the archive; returns the number of objects.

        The head goes first: from then on nobody reads here, and a crash leaves only what another
        call removes.
        """
        head = self.store.stat(self.name(HEAD)) is not None
        if head:
            self.store.delete(self.name(HEAD))
        return self.store.clear(self.folder) + head


def _is_small(before: Part | list[Entry], run: Part | list[Entry]) -> bool:
    """True when two neighbours are better off as one; what nobody touched stays as it is."""
    if isinstance(before, Part) and (isinstance(run, Part) or not run):
        return False
    first, second = (one.entries if isinstance(one, Part) else len(one) for one in (before, run))
    return first + second <= PART_ENTRIES


class Lease:
    """A promise to readers: no file of `generation` is deleted before the time is over."""

    def __init__(self, archive: Archive, name: str, seconds: float) -> None:
        self._archive = archive
        self._name = name
        self._seconds = seconds
        self.generation = 0

    def renew(self) -> Self:
        """Begin the time anew, and protect the generation that is current now."""
        head = self._archive.head()
        self.generation = 0 if head is None else head.generation
        return self.extend()

    def extend(self) -> Self:
        """Begin the time anew, for the same generation: what it names stays.

        For whoever goes on reading what was planned at the beginning. A lease that had run out
        protects from now on what is still there.
        """
        until = self._archive.clock_ns() + int(self._seconds * 1e9)
        facts = pack_document({"generation": self.generation, "until_ns": until})
        self._archive.store.put(self._name, facts)
        return self

    def release(self) -> None:
        """Give the files free."""
        self._archive.store.delete(self._name)
