"""The catalogue: what planning costs, what a head may say, what leaves the archive and when."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from headwater.archive import Archive, LocalStore
from headwater.archive._catalogue import (
    MAX_GONE,
    PART_ENTRIES,
    Entry,
    Head,
    Term,
    pack_part,
    parse_head,
    parse_part,
)
from headwater.archive._documents import pack_document, parse_document
from headwater.errors import ArchiveError, InvalidInputError, PositionError, UnsupportedError
from headwater.testing import FaultFS
from headwater.testing.store import FaultStore, Request, Trouble
from tests.archive.place import FOLDER, HOUR_NS, Place

if TYPE_CHECKING:
    from collections.abc import Callable

LOG_ID = b"l" * 16
OWNER = "0f" * 16


def entry(number: int) -> Entry:
    """Entry `number`: ten records each."""
    first = 10 * number
    file = f"{first:020d}-{first + 9:020d}.parquet"
    return Entry(file, first, first + 10, 10, 99, number, number + 1, number, 5, "c", "f", 1)


def head_of(stop: int = 0, **changes: object) -> Head:
    """A head without entries."""
    head = Head(LOG_ID, 1, 0, 0, stop, 0, 0, 0, 0, 4096, b"", 0, (Term(1, 0, OWNER),))
    return head._replace(**changes)  # type: ignore[arg-type]


def adding(number: int) -> Callable[[Head | None], Head]:
    """What an archiver does to the head."""

    def add(head: Head | None) -> Head:
        head = head or head_of()
        found = entry(number)
        return head._replace(stop=found.stop, tail=(*head.tail, found))

    return add


def filled(entries: int) -> tuple[Archive, FaultStore]:
    """An archive with so many entries, made a few hundred at a time."""
    store = FaultStore(LocalStore("/objects", FaultFS()))
    archive = Archive(store, FOLDER, conditional=True, clock_ns=lambda: 10**6)
    for start in range(0, entries, 500):
        found = tuple(entry(number) for number in range(start, min(start + 500, entries)))

        def add(head: Head | None, found: tuple[Entry, ...] = found) -> Head:
            head = head or head_of()
            return head._replace(stop=found[-1].stop, tail=head.tail + found)

        archive.change(add)
    return archive, store


def test_plan_over_ten_thousand_entries_takes_a_request_for_each_thousand() -> None:
    """10,001 entries: any read is planned in at most 3 + entries/1000 requests, counted."""
    archive, store = filled(10_001)
    limit = 3 + 10_001 / 1000
    for start, stop in (
        (0, None),
        (0, 100_010),
        (55_555, None),
        (99_999, None),
        (0, 1),
        (100_009, None),
    ):
        store.requests.clear()
        found = archive.entries(start, stop)
        assert len(store.requests) <= limit
        last = 100_010 if stop is None else min(stop, 100_010)
        assert found[0].first <= start < found[0].stop
        assert found[-1].first < last <= found[-1].stop
        assert [e.first for e in found] == list(range(found[0].first, found[-1].stop, 10))
    store.requests.clear()
    assert len(archive.entries(55_555, 55_556)) == 1
    assert len(store.requests) == 2
    assert {request.verb for request in store.requests} == {"get"}


def test_part_holds_a_thousand_entries_and_is_never_changed() -> None:
    """The tail of the head moves into a part when it is full; the part stays as it is."""
    archive, store = filled(PART_ENTRIES - 1)
    head = archive.head()
    assert head is not None
    assert head.parts == ()
    archive.change(adding(PART_ENTRIES - 1))
    head = archive.head()
    assert head is not None
    assert (len(head.parts), head.tail, head.parts[0].entries) == (1, (), PART_ENTRIES)
    part = store.get(f"{FOLDER}/{head.parts[0].file}")
    archive.change(adding(PART_ENTRIES))
    assert store.get(f"{FOLDER}/{head.parts[0].file}") == part
    assert [e.first for e in archive.entries(9985)] == [9980, 9990, 10_000]


def test_part_of_a_change_that_lost_the_race_is_never_used() -> None:
    """A part without a head that names it is garbage; the winner's part has another name."""
    archive, store = filled(PART_ENTRIES - 1)
    store.plan = lambda request: Trouble.UNAVAILABLE if request.verb == "replace" else None
    with pytest.raises(ArchiveError):
        archive.change(adding(PART_ENTRIES - 1))
    store.plan = lambda _: None
    archive.change(adding(PART_ENTRIES - 1))
    parts = [info.name for info in store.list(f"{FOLDER}/_headwater/parts")]
    assert len(parts) == 2
    assert len(archive.entries()) == PART_ENTRIES


def test_part_that_comes_back_wrong_is_not_named() -> None:
    """The head drops its tail only for a part that was read back."""
    archive, store = filled(PART_ENTRIES - 1)
    spoiled: list[str] = []

    def plan(request: Request) -> Trouble | None:
        wrong = request.verb == "read" and request.name.endswith("-0.json")
        if wrong:
            spoiled.append(request.name)
        return Trouble.WRONG if wrong else None

    store.plan = plan
    archive.change(adding(PART_ENTRIES - 1))
    head = archive.head()
    assert head is not None
    assert spoiled
    assert [part.file.rpartition("-")[2] for part in head.parts] == ["1.json"]
    assert len(archive.entries()) == PART_ENTRIES
    store.plan = lambda request: Trouble.WRONG if request.verb == "read" else None
    for number in range(PART_ENTRIES, 2 * PART_ENTRIES - 1):
        archive.change(adding(number))
    with pytest.raises(ArchiveError, match="does not come back"):
        archive.change(adding(2 * PART_ENTRIES - 1))
    store.plan = lambda _: None
    assert len(archive.entries()) == 2 * PART_ENTRIES - 1


def test_expiry_reads_no_more_parts_than_it_drops() -> None:
    """Looking whether something is too old costs two requests, however long the catalogue."""
    archive, store = filled(5 * PART_ENTRIES)
    store.requests.clear()
    assert archive.expire(1) == 0
    assert [r.name.rpartition("/")[2] for r in store.requests].count("head.json") == 2
    assert len(store.requests) == 3


def test_change_that_meets_another_is_applied_to_what_is_there() -> None:
    """Nobody's change is lost: the later one looks again."""
    archive, store = filled(1)
    other = Archive(store, FOLDER, conditional=True)
    seen: list[int] = []

    def slow(head: Head | None) -> Head:
        assert head is not None
        seen.append(head.generation)
        if len(seen) == 1:
            other.change(adding(1))
        return head._replace(segment_bytes=head.segment_bytes + 1)

    result = archive.change(slow)
    assert seen == [1, 2]
    assert (result.generation, len(result.tail), result.segment_bytes) == (3, 2, 4097)


def test_head_comes_back_as_it_was_written() -> None:
    """Every field of a head survives its file."""
    head = head_of(30, tail=(entry(1), entry(2)), producers=b"\0\xff", generation=7)
    assert parse_head(head.pack(), "head") == head
    assert parse_part(pack_part(LOG_ID, [entry(3)]), LOG_ID, "part") == [entry(3)]


def test_document_with_any_bit_flipped_is_refused() -> None:
    """A document proves itself: no flipped bit and no cut goes unnoticed."""
    data = head_of(30, tail=(entry(1),)).pack()
    for bit in range(8 * len(data)):
        spoiled = bytearray(data)
        spoiled[bit // 8] ^= 1 << bit % 8
        try:
            same = parse_head(bytes(spoiled), "head") == parse_head(data, "head")
        except (ArchiveError, UnsupportedError):
            continue
        assert same, f"bit {bit}"  # white space, or the case of a hexadecimal digit
    for size in range(len(data) - 1):
        with pytest.raises(ArchiveError):
            parse_head(data[:size], "head")


def test_document_of_a_newer_format_is_too_new_not_damaged() -> None:
    """The format is looked at before the checksum."""
    with pytest.raises(UnsupportedError, match="upgrade"):
        parse_document(b'{"format":2,"sha256":"","facts":{}}', "head")


@pytest.mark.parametrize(
    "change",
    [
        {"tail": [{"file": "x"}]},
        {"tail": 5},
        {"log_id": "zz"},
        {"epoch": "1"},
        {"producers": "?"},
        {"generation": True},
    ],
)
def test_head_with_a_good_checksum_and_a_wrong_field_is_refused(change: dict) -> None:
    """What proves itself may still be no head: every field is looked at."""
    facts = json.loads(head_of(30).pack())["facts"] | change
    with pytest.raises(ArchiveError, match="not the head"):
        parse_head(pack_document(facts), "head")


def test_part_of_another_log_is_refused() -> None:
    """A part says whose it is."""
    with pytest.raises(ArchiveError, match="is of log"):
        parse_part(pack_part(b"o" * 16, [entry(3)]), LOG_ID, "part")


@pytest.mark.parametrize("folder", ["", "../x", "a//b", "/a"])
def test_folder_that_leaves_the_store_is_refused(folder: str) -> None:
    """The folder of an archive stays inside its store."""
    with pytest.raises(InvalidInputError):
        Archive(LocalStore("/objects", FaultFS()), folder)


# --- positions ------------------------------------------------------------------------------------


def test_position_beyond_a_restored_end_fails_whatever_was_written_since() -> None:
    """A record of epoch 1 beyond the end at which epoch 2 began was never archived: it is gone."""
    head = head_of(500, epoch=2, terms=(Term(1, 0, OWNER), Term(2, 100, OWNER)))
    head.check_position(LOG_ID, 1, 100)
    head.check_position(LOG_ID, 2, 499)
    with pytest.raises(PositionError, match="restored end, 100"):
        head.check_position(LOG_ID, 1, 101)
    with pytest.raises(PositionError, match="newer"):
        head.check_position(LOG_ID, 3, 0)
    with pytest.raises(ArchiveError, match="of log"):
        head.check_position(b"x" * 16, 1, 0)


# --- expiry, grace, leases ------------------------------------------------------------------------


def test_old_entries_are_dropped_from_the_front_only() -> None:
    """Files whose every record is older go, oldest first; the rest has no hole."""
    archive, _ = filled(2500)
    assert archive.expire(1501) == MAX_GONE
    assert archive.expire(1501) == 0  # as many as may wait for their deletion are waiting
    head = archive.head()
    assert head is not None
    assert head.start == 10_000
    assert len(head.gone) == MAX_GONE + 1  # the part that held them too
    assert len(archive.entries()) == 1500
    archive.collect(grace_s=0)
    assert archive.expire(1501) == 500
    assert archive.entries()[0] == entry(1500)
    assert archive.entries(0, 15_000) == []


def test_entry_with_one_younger_record_keeps_everything_behind_it() -> None:
    """A file goes only when its youngest record is too old."""
    archive, _ = filled(3)
    assert archive.expire(1) == 0
    assert archive.expire(2) == 1
    assert archive.expire(3) == 1
    assert archive.entries() == [entry(2)]


def test_file_that_left_the_catalogue_is_deleted_after_the_grace(place: Place) -> None:
    """Who planned a read before still finds the files, for a day by default."""
    place.filled(3)
    place.archiver().run()
    assert place.archive.expire(2**63 - 1) == 3
    files = [info.name for info in place.store.list(FOLDER) if info.name.endswith("parquet")]
    assert len(files) == 3
    assert place.archive.collect() == 0
    place.world.clock.now_ns += 25 * HOUR_NS
    assert place.archive.collect() == 3
    assert [i.name for i in place.store.list(FOLDER) if i.name.endswith("parquet")] == []
    head = place.archive.head()
    assert head is not None
    assert head.gone == ()
    assert place.archive.collect() == 0


def test_lease_of_an_older_generation_keeps_the_files(place: Place) -> None:
    """While somebody reads what an older generation named, none of it is deleted."""
    place.filled(2)
    place.archiver().run()
    with place.archive.lease(seconds=7200) as lease:
        place.archive.expire(2**63 - 1)
        place.world.clock.now_ns += HOUR_NS
        assert place.archive.collect(grace_s=0) == 0
        lease.renew()  # it reads the newer generation now
        assert place.archive.collect(grace_s=0) == 2
    assert list(place.store.list(f"{FOLDER}/_headwater/leases")) == []


def test_lease_that_ran_out_protects_nothing_and_is_removed(place: Place) -> None:
    """A reader that died does not keep files for ever."""
    place.filled(2)
    place.archiver().run()
    with place.archive.lease(seconds=60):
        place.archive.expire(2**63 - 1)
        place.world.clock.now_ns += HOUR_NS
        assert place.archive.collect(grace_s=0) == 2
        assert list(place.store.list(f"{FOLDER}/_headwater/leases")) == []


def test_deletion_that_was_interrupted_is_done_again(place: Place) -> None:
    """Files go before the head forgets them, so that a crash leaves nothing behind for good."""
    place.filled(2)
    place.archiver().run()
    place.archive.expire(2**63 - 1)
    place.store.plan = lambda r: Trouble.UNAVAILABLE if r.verb == "replace" else None
    with pytest.raises(ArchiveError):
        place.archive.collect(grace_s=0)
    place.store.plan = lambda _: None
    assert place.archive.collect(grace_s=0) == 2
    assert place.archive.collect(grace_s=0) == 0


def test_archive_deleted_leaves_nothing_behind(place: Place) -> None:
    """Every object of the log goes, the head first; other logs keep theirs."""
    place.filled(2)
    place.archiver().run()
    place.store.put("sales/orders/partition=1/x.parquet", b"")
    before = len(place.store.requests)
    assert place.archive.delete_all() == 3
    asked = [(r.verb, r.name.rpartition("/")[2]) for r in place.store.requests[before:]]
    assert asked == [("stat", "head.json"), ("delete", "head.json"), ("clear", "partition=0")]
    assert place.world.fs.list("/objects/sales/orders") == ["partition=1"]
    assert place.archive.head() is None


def test_probe_runs_once_and_before_the_first_change() -> None:
    """An archive asks the store what it keeps, once, and not for reading."""
    place = Place(conditional=None)
    place.filled(2)
    assert place.archive.head() is None
    assert len(place.store.requests) == 1
    place.archiver().run()
    assert sum("probe" in name for name in place.requests("delete")) == 1
    place.world.close()
