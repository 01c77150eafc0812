"""Several files of an archive made into one, anywhere: the part of a compaction that moves bytes.

The steps, and what a crash behind each of them leaves:

1. a note of the object to come            a note without an object
2. the object, read back and compared      an object that nobody reads, and its note
3. the note, with the entry for it         the same; the next compaction takes it up

An output has a name that nobody else chooses. What no catalogue came to name is found by its note
once the grace is over, and leaves as other files do: first in the head, so that whoever still wants
to name it is told, then in the store. This module must not know how the catalogue is changed.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from headwater._home import Home
from headwater.archive._archive import DEFAULT_GRACE_S, file_name
from headwater.archive._catalogue import (
    FOLDER,
    MAX_GONE,
    Entry,
    Gone,
    Head,
    fact_of,
    parse_entry,
    plain_entry,
)
from headwater.archive._documents import pack_document, parse_document
from headwater.archive._parquet import ContentHash, FileFacts, footer_checksum, write_parquet
from headwater.archive._sink import Sink
from headwater.archive._store import holds
from headwater.errors import ArchiveError
from headwater.fs import absolute

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from os import PathLike

    import pyarrow as pa

    from headwater.archive._archive import Archive
    from headwater.archive._parquet import Written
    from headwater.fs import File

#: Notes of running compactions lie here.
NOTES: Final = f"{FOLDER}/compactions"
#: Where a file grows before it is put; its name is gone before it holds a byte.
SPOOL: Final = "/var/tmp"  # noqa: S108 - a random name, made exclusively
_TOKEN_BYTES: Final = 8


class CompactionGroup(NamedTuple):
    """Neighbouring files that one shall replace. Holds all that a worker elsewhere has to know."""

    log_id: bytes
    #: Of the archive, when it was planned.
    epoch: int
    #: Two or more, without a hole.
    entries: tuple[Entry, ...]

    @property
    def first(self) -> int:
        """First sequence."""
        return self.entries[0].first

    @property
    def stop(self) -> int:
        """One past the last sequence."""
        return self.entries[-1].stop

    @property
    def rows(self) -> int:
        """Number of records."""
        return self.stop - self.first

    @property
    def bytes(self) -> int:
        """Size of all files."""
        return sum(entry.bytes for entry in self.entries)


class Merged(NamedTuple):
    """A file that is whole and in the store, and can take the place of its group."""

    group: CompactionGroup
    entry: Entry
    #: Its note, to be deleted when the catalogue names it.
    note: str


class _Note(NamedTuple):
    """What is known of an output: named or not, made or not."""

    name: str
    file: str
    first: int
    stop: int
    noted_ns: int
    #: The files that it was made of.
    inputs: tuple[str, ...]
    entry: Entry | None

    def pack(self, log_id: bytes) -> bytes:
        """The bytes of the note."""
        return pack_document(
            {
                "log_id": log_id.hex(),
                "file": self.file,
                "first": self.first,
                "stop": self.stop,
                "noted_ns": self.noted_ns,
                "inputs": list(self.inputs),
                "entry": None if self.entry is None else plain_entry(self.entry),
            }
        )


# --- merging --------------------------------------------------------------------------------------


def merge_group(
    archive: Archive, group: CompactionGroup, *, spool: str | PathLike[str] | Home = SPOOL
) -> Merged:
    """Make one file of a group's files and put it, under a name of its own, in the archive.

    Runs in any process on any host, with bounded memory; `spool` is a folder there with room for
    the new file. On return it is durable, was read back byte for byte, and holds exactly the
    records whose hashes the catalogue names; nobody reads it before `commit_compaction`. Called
    again it makes another one. Raises `ArchiveError` when a file is not what the catalogue says,
    `MissingError` when one is gone: then the group is out of date.
    """
    home = spool if isinstance(spool, Home) else Home.on_disk(absolute(spool))
    token = archive.entropy(_TOKEN_BYTES).hex()
    note = _Note(
        f"{NOTES}/{token}.json",
        file_name(group.first, group.stop).replace(".parquet", f".c{token}.parquet"),
        group.first,
        group.stop,
        archive.clock_ns(),
        tuple(entry.file for entry in group.entries),
        None,
    )
    archive.store.put(archive.name(note.name), note.pack(group.log_id))
    with _spooled(home) as file:
        written, sink = _written(archive, group, file)
        entry = _stored(archive, note.file, written, file, sink)
    note = note._replace(noted_ns=archive.clock_ns(), entry=entry)
    archive.store.put(archive.name(note.name), note.pack(group.log_id))
    return Merged(group, entry, note.name)


@contextmanager
def _spooled(home: Home) -> Iterator[File]:
    """A file without a name: whoever dies leaves nothing."""
    path = home.path(f"headwater-{home.entropy(_TOKEN_BYTES).hex()}.spool")
    file = home.fs.open(path, write=True, create=True, exclusive=True)
    try:
        home.fs.unlink(path)
        yield file
    finally:
        file.close()


def _written(archive: Archive, group: CompactionGroup, file: File) -> tuple[Written, Sink]:
    last = group.entries[-1]
    facts = FileFacts(
        group.log_id, group.epoch, last.segment_id, group.first, group.stop, last.chain, ""
    )
    sink = Sink(file)
    with ThreadPoolExecutor(1, thread_name_prefix="headwater-merge") as beside:
        written = write_parquet(sink, _records_of(archive, group), facts, beside)
    sink.close()
    return written, sink


def _records_of(archive: Archive, group: CompactionGroup) -> Iterator[pa.RecordBatch]:
    """The records of all files, each compared with what the catalogue says of it."""
    wanted = group.first
    for entry in group.entries:
        found = ContentHash()
        rows = 0
        with archive.open_file(entry) as file:
            for batch in file.batches(0):
                found.update(batch)
                rows += batch.num_rows
                yield batch
        # The hash is over the sequences, too.
        if (entry.first, rows, found.hexdigest()) != (wanted, entry.stop - wanted, entry.content):
            raise ArchiveError(
                f"{archive.url}/{entry.file} does not hold the records from {wanted} to "
                f"{entry.stop - 1} that the catalogue names: the file is damaged"
            )
        wanted = entry.stop


def _stored(archive: Archive, name: str, written: Written, spool: File, sink: Sink) -> Entry:
    """Put the object and read it back."""
    where = archive.name(name)
    mapping = spool.map(sink.size + len(sink.pad), writable=False)
    try:
        data = mapping.view[: sink.size]
        if not archive.store.put_new(where, data) or not holds(archive.store, where, data):
            raise ArchiveError(
                f"{archive.store.url}/{where} comes back with other bytes than were put: nobody "
                "will read it; merge the group again"
            )
        footer = footer_checksum(data)
    finally:
        mapping.close()
    facts = written.facts
    return Entry(
        name,
        facts.first,
        facts.stop,
        written.rows,
        sink.size,
        written.min_time_ns,
        written.max_time_ns,
        facts.segment_id,
        facts.chain,
        facts.content,
        footer,
        facts.epoch,
    )


# --- notes ----------------------------------------------------------------------------------------


def merged_before(archive: Archive, groups: Iterable[CompactionGroup]) -> dict[int, Merged]:
    """Files that an interrupted compaction had made of the same groups, by first sequence."""
    notes = {note.inputs: note for note in _notes(archive) if note.entry is not None}
    found: dict[int, Merged] = {}
    for group in groups:
        note = notes.get(tuple(entry.file for entry in group.entries))
        if note is not None and note.entry is not None and is_stored(archive, note.entry):
            found[group.first] = Merged(group, note.entry, note.name)
    return found


def is_stored(archive: Archive, entry: Entry) -> bool:
    """True while the file of an entry is in the store."""
    info = archive.store.stat(archive.name(entry.file))
    return info is not None and info.size == entry.bytes


def sweep_compactions(archive: Archive, grace_s: float = DEFAULT_GRACE_S) -> int:
    """Give up what compactions put more than `grace_s` ago and no catalogue came to name.

    It goes into the head first, where a compaction that is still on its way finds it and stops;
    `collect` deletes it later. Returns how many files that were.
    """
    limit = archive.clock_ns() - int(grace_s * 1e9)
    old = [note for note in _notes(archive) if note.noted_ns < limit]
    head = archive.head()
    if not old or head is None or len(head.gone) >= MAX_GONE:
        return 0
    archive.require_single_writer()
    doomed: list[str] = []

    def without(head: Head | None) -> Head | None:
        doomed[:] = [] if head is None else _unnamed(archive, head, old)
        if head is None or not doomed:
            return head
        now, generation = archive.clock_ns(), head.generation + 1
        return head._replace(gone=(*head.gone, *(Gone(file, generation, now) for file in doomed)))

    archive.change(without)
    for note in old:
        archive.store.delete(archive.name(note.name))
    return len(doomed)


def _unnamed(archive: Archive, head: Head, notes: Iterable[_Note]) -> list[str]:
    """The files of notes that are in the store and that a head neither names nor has given up."""
    waiting = {gone.file for gone in head.gone}
    found = []
    for note in notes:
        named = {entry.file for entry in archive.entries_of(head, note.first, note.stop)}
        is_there = archive.store.stat(archive.name(note.file)) is not None
        if is_there and note.file not in named | waiting:
            found.append(note.file)
    return found


def _notes(archive: Archive) -> Iterator[_Note]:
    for info in archive.store.list(archive.name(NOTES)):
        got = archive.store.get(info.name)
        if got is not None:
            name = info.name.removeprefix(f"{archive.folder}/")
            yield _parse_note(got.data, name, f"{archive.store.url}/{info.name}")


def _parse_note(data: bytes, name: str, where: str) -> _Note:
    facts = parse_document(data, where)
    try:
        inputs = [fact_of(file, str) for file in fact_of(facts["inputs"], list)]
        file = fact_of(facts["file"], str)
        first, stop, noted_ns = (fact_of(facts[key], int) for key in ("first", "stop", "noted_ns"))
        entry = None if facts["entry"] is None else parse_entry(facts["entry"], where)
    except (KeyError, TypeError) as error:
        raise ArchiveError(f"{where} is not the note of a compaction: delete it") from error
    return _Note(name, file, first, stop, noted_ns, tuple(inputs), entry)
