"""The catalogue of one log's archive, as values: its head, its parts, its entries. Pure.

The head is the only object that is ever replaced. It names immutable parts of `PART_ENTRIES`
entries each and carries the entries behind the last part itself, so that planning a read takes one
request and one more for each thousand files. An entry stands in exactly one of them.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeVar

from headwater.archive._documents import pack_document, parse_document
from headwater.errors import ArchiveError, ConflictError, PositionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from headwater.archive._documents import Fact, Facts

_Value = TypeVar("_Value")

#: Entries of one part; the head itself carries fewer.
PART_ENTRIES: Final = 1000
#: So many files may wait for their deletion; what retires them waits then, too.
MAX_GONE: Final = 1000
FOLDER: Final = "_headwater"
HEAD: Final = f"{FOLDER}/head.json"
#: Here lie lists of files that left the catalogue together.
GONE: Final = f"{FOLDER}/gone"


class Entry(NamedTuple):
    """One file: an archived segment, or several that a compaction made one of."""

    #: Name of the file in the log's folder of the archive.
    file: str
    first: int
    #: One past the last record.
    stop: int
    rows: int
    bytes: int
    min_time_ns: int
    max_time_ns: int
    #: The segment; the last one of several.
    segment_id: int
    #: Chain of the log behind it.
    chain: int
    #: Hash of the records, and of the file's footer.
    content: str
    footer: str
    #: Under which the file was written.
    epoch: int


class Swap(NamedTuple):
    """Files that stand beside each other, and the one with the same records for their place."""

    old: tuple[Entry, ...]
    new: Entry


class Part(NamedTuple):
    """A part, as the head names it: full, or what a compaction left of some."""

    file: str
    first: int
    stop: int
    entries: int
    max_time_ns: int


class Gone(NamedTuple):
    """A file that left the catalogue: from which generation on, and when.

    Below `GONE` it is a list of such files, which all go with it.
    """

    file: str
    generation: int
    since_ns: int


class Term(NamedTuple):
    """An epoch, the sequence at which it began, and who it belongs to: drawn at random."""

    epoch: int
    first: int
    owner: str


class Head(NamedTuple):
    """The head of a catalogue. A value: `Archive.change` puts the next one in its place."""

    log_id: bytes
    epoch: int
    generation: int
    #: The oldest record kept in the archive.
    start: int
    #: The next record that the archive wants.
    stop: int
    #: Number of the segment that will bring it.
    segment_id: int
    #: Chain in front of it; with the times it is what the next segment needs to go on.
    chain: int
    max_timestamp_ns: int
    assigned_timestamp_ns: int
    segment_bytes: int
    #: The producer table in front of it, as in a MARK, and how many producers it has.
    producers: bytes
    producer_count: int
    terms: tuple[Term, ...]
    parts: tuple[Part, ...] = ()
    tail: tuple[Entry, ...] = ()
    gone: tuple[Gone, ...] = ()
    #: Different in every head that anybody ever wrote.
    token: str = ""

    def pack(self) -> bytes:
        """The bytes of `head.json`."""
        facts: Facts = {name: getattr(self, name) for name in self._fields}
        facts["log_id"] = self.log_id.hex()
        facts["producers"] = b64encode(self.producers).decode()
        facts["terms"] = [_plain(term) for term in self.terms]
        facts["parts"] = [_plain(part) for part in self.parts]
        facts["tail"] = [_plain(entry) for entry in self.tail]
        facts["gone"] = [_plain(gone) for gone in self.gone]
        return pack_document(facts)

    def check_position(self, log_id: bytes, epoch: int, sequence: int) -> None:
        """Raise unless a place that was noted under `epoch` means the same record today."""
        if log_id != self.log_id:
            raise ArchiveError(
                f"the position is of log {log_id.hex()}, the archive is of {self.log_id.hex()}"
            )
        if epoch > self.epoch:
            raise PositionError(f"epoch {epoch} is newer than the archive's, {self.epoch}")
        ended = [term.first for term in self.terms if term.epoch > epoch]
        if ended and sequence > min(ended):
            raise PositionError(
                f"sequence {sequence} of epoch {epoch} is beyond the restored end, {min(ended)}: "
                "the record that stood there was never archived; seek to a sequence to go on"
            )

    @property
    def owner(self) -> str:
        """Who may add to the archive."""
        return self.terms[-1].owner

    def check_owner(self, epoch: int, owner: str) -> None:
        """Raise `ConflictError` when another host took the archive over."""
        if self.epoch > epoch or (self.epoch == epoch and self.owner != owner):
            raise ConflictError(
                f"the archive belongs to epoch {self.epoch}, this log to {epoch}: the log was "
                "restored elsewhere and goes on there; nothing of this one is archived any more"
            )
        if self.epoch < epoch:
            raise ArchiveError(
                f"the archive is of epoch {self.epoch}, this log of {epoch}: the archive is older "
                "than the log; was it replaced by a copy?"
            )


_Row: TypeAlias = "Entry | Part | Gone | Term"


def _plain(value: _Row) -> dict[str, Fact]:
    return dict(zip(value._fields, value, strict=True))


def parse_head(data: bytes, where: str) -> Head:
    """Read `head.json`. Raises `ArchiveError` when it is damaged, `UnsupportedError`."""
    facts = parse_document(data, where)
    try:
        numbers = {
            name: fact_of(facts[name], int)
            for name in Head._fields
            if name not in {"log_id", "producers", "terms", "parts", "tail", "gone", "token"}
        }
        return Head(
            log_id=bytes.fromhex(fact_of(facts["log_id"], str)),
            producers=b64decode(fact_of(facts["producers"], str), validate=True),
            terms=tuple(_term(term) for term in fact_of(facts["terms"], list)),
            parts=tuple(_part(part) for part in fact_of(facts["parts"], list)),
            tail=tuple(_entry(entry) for entry in fact_of(facts["tail"], list)),
            gone=tuple(_gone(gone) for gone in fact_of(facts["gone"], list)),
            token=fact_of(facts["token"], str),
            **numbers,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ArchiveError(f"{where} is not the head of a catalogue: {error!r}") from error


def pack_part(log_id: bytes, entries: Sequence[Entry]) -> bytes:
    """The bytes of a part."""
    return pack_document({"log_id": log_id.hex(), "entries": [_plain(entry) for entry in entries]})


def parse_part(data: bytes, log_id: bytes, where: str) -> list[Entry]:
    """The entries of a part. Raises `ArchiveError` when it is damaged or another log's."""
    facts = parse_document(data, where)
    try:
        found = [_entry(entry) for entry in fact_of(facts["entries"], list)]
        if facts["log_id"] != log_id.hex():
            raise ArchiveError(f"{where} is of log {facts['log_id']}, expected {log_id.hex()}")
    except (KeyError, TypeError, ValueError) as error:
        raise ArchiveError(f"{where} is not a part of a catalogue: {error!r}") from error
    return found


def pack_gone(log_id: bytes, files: Sequence[str]) -> bytes:
    """The bytes of a list of files that left the catalogue together."""
    return pack_document({"log_id": log_id.hex(), "files": list(files)})


def parse_gone(data: bytes, log_id: bytes, where: str) -> list[str]:
    """The files of such a list. Raises `ArchiveError` when it is damaged or another log's."""
    facts = parse_document(data, where)
    try:
        if facts["log_id"] != log_id.hex():
            raise ArchiveError(f"{where} is of log {facts['log_id']}, expected {log_id.hex()}")
        return [fact_of(file, str) for file in fact_of(facts["files"], list)]
    except (KeyError, TypeError) as error:
        raise ArchiveError(f"{where} is not a list of files: {error!r}") from error


def substituted(entries: Sequence[Entry], swaps: Iterable[Swap]) -> list[Entry]:
    """The entries with each run of old ones replaced; a run that is not there changes nothing."""
    begins, found, at = {swap.old[0]: swap for swap in swaps}, list[Entry](), 0
    while at < len(entries):
        swap = begins.get(entries[at])
        fits = swap is not None and tuple(entries[at : at + len(swap.old)]) == swap.old
        found.append(swap.new if swap is not None and fits else entries[at])
        at += len(swap.old) if swap is not None and fits else 1
    return found


def plain_entry(entry: Entry) -> dict[str, Fact]:
    """An entry as JSON has it."""
    return _plain(entry)


def parse_entry(fact: Fact, where: str) -> Entry:
    """An entry out of JSON. Raises `ArchiveError` when it is none."""
    try:
        return _entry(fact)
    except TypeError as error:
        raise ArchiveError(f"{where} does not hold an entry: {error!r}") from error


def describe_part(file: str, entries: Sequence[Entry]) -> Part:
    """What the head says about a part."""
    newest = max(entry.max_time_ns for entry in entries)
    return Part(file, entries[0].first, entries[-1].stop, len(entries), newest)


def overlapping(found: Iterable[_Ranged], start: int, stop: int | None) -> list[_Ranged]:
    """Those that hold a record of the range."""
    return [one for one in found if one.stop > start and (stop is None or one.first < stop)]


_Ranged = TypeVar("_Ranged", Entry, Part)


_TEXTS: Final = frozenset({"file", "content", "footer", "owner"})


def fact_of(fact: Fact, kind: type[_Value]) -> _Value:
    """A fact that is of this very kind. Raises `TypeError`."""
    if type(fact) is not kind:
        raise TypeError(f"{fact!r} is not {kind.__name__}")
    return fact


def _fields(fact: Fact, kind: type[_Row]) -> dict[str, int | str]:
    facts = fact_of(fact, dict)
    if set(facts) != set(kind._fields):
        raise TypeError(f"{sorted(facts)} instead of {sorted(kind._fields)}")
    return {
        name: fact_of(facts[name], str) if name in _TEXTS else fact_of(facts[name], int)
        for name in kind._fields
    }


def _entry(fact: Fact) -> Entry:
    return Entry(**_fields(fact, Entry))  # type: ignore[arg-type] # checked field by field


def _term(fact: Fact) -> Term:
    return Term(**_fields(fact, Term))  # type: ignore[arg-type] # the same


def _part(fact: Fact) -> Part:
    return Part(**_fields(fact, Part))  # type: ignore[arg-type] # the same


def _gone(fact: Fact) -> Gone:
    return Gone(**_fields(fact, Gone))  # type: ignore[arg-type] # the same
