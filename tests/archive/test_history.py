"""Archive, sealed segments and live tail as one run of records."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from headwater.archive import History, MissingError
from headwater.errors import HeadwaterError, InvalidInputError, PositionError, SequenceExpiredError
from headwater.testing.store import Request, Trouble
from tests.archive.place import FOLDER, Place, fill, once, retire

if TYPE_CHECKING:
    from headwater._log import Log
    from headwater._types import Record


def tiered(place: Place) -> tuple[Log, list[Record]]:
    """A log of which the oldest records are in the archive alone, some in both, some live."""
    log = place.filled(4)
    expected = list(log.read())
    place.archiver().run()
    retire(log, 2)
    fill(log, 3)
    expected += list(log.read(len(expected)))
    return log, expected


def test_history_over_all_tiers_is_every_record_once_and_in_order(place: Place) -> None:
    """From the first record over archive, sealed segments and tail: every field (S1-20)."""
    log, expected = tiered(place)
    assert log.start_sequence > 0
    history = History(log, place.archive)
    assert list(history.records()) == expected
    assert (history.start_sequence, history.next_sequence) == (0, len(expected))


def test_history_from_and_to_any_sequence_is_exactly_that_range(place: Place) -> None:
    """Start and stop cut inside files, at seams and at the tail."""
    log, expected = tiered(place)
    history = History(log, place.archive)
    seams = {entry.first for entry in place.archive.entries()} | {log.start_sequence, len(expected)}
    near = sorted({max(0, seam + shift) for seam in seams for shift in (-1, 0, 1)})
    for start in near:
        for stop in (None, start, start + 1, start + 7, *near):
            if start > len(expected) or (stop is not None and stop < start):
                continue
            assert list(history.records(start, stop)) == expected[start:stop]


def test_history_as_arrow_has_the_columns_of_the_log(place: Place) -> None:
    """The same records as batches, with the schema of `to_arrow`."""
    log, expected = tiered(place)
    table = History(log, place.archive).batches().read_all()
    assert table.schema == log.to_arrow().schema
    assert table.column("sequence").to_pylist() == [record.sequence for record in expected]
    assert table.column("key").to_pylist() == [record.key for record in expected]
    headers = [[(h["key"], h["value"]) for h in row] for row in table.column("headers").to_pylist()]
    assert headers == [list(record.headers) for record in expected]


def test_history_reads_from_disk_what_is_on_disk(place: Place) -> None:
    """Nothing is asked of the archive for records that the log still has."""
    log, expected = tiered(place)
    before = len(place.store.requests)
    start = log.start_sequence
    assert list(History(log, place.archive).records(start)) == expected[start:]
    assert len(place.store.requests) == before


def test_history_of_the_log_alone_and_of_the_archive_alone(place: Place) -> None:
    """Either of them is enough; a fresh machine has the archive only."""
    log, expected = tiered(place)
    stop = place.archive.entries()[-1].stop
    assert list(History(None, place.archive).records()) == expected[:stop]
    assert History(None, place.archive).next_sequence == stop
    assert list(History(log, None).records(log.start_sequence)) == expected[log.start_sequence :]
    assert list(History(None, place.archive).records(stop)) == []
    with pytest.raises(PositionError, match="beyond the archive's end"):
        list(History(None, place.archive).records(stop + 1))
    with pytest.raises(SequenceExpiredError):
        list(History(log, None).records(0))
    with pytest.raises(InvalidInputError):
        History(None, None)


def test_history_goes_on_from_the_archive_when_retention_deletes_under_it(place: Place) -> None:
    """A segment vanishes while it is read: the next record comes from its file, none is missing."""
    log = place.filled(4)
    expected = list(log.read())
    place.archiver().run()
    records = History(log, place.archive).records(0)
    found = [next(records)]
    retire(log, 4)
    found += records
    assert found == expected


def test_history_goes_on_when_the_log_catches_up_with_the_archive(place: Place) -> None:
    """What is archived and deleted while an older file is read comes from the archive too."""
    log = place.filled(3)
    place.archiver().run()
    retire(log, 2)
    records = History(log, place.archive).records(0)
    found = [next(records)]
    fill(log, 3)
    place.archiver().run()
    retire(log, sum(info.sealed for info in log.segments()))
    found += records
    assert [record.sequence for record in found] == list(range(log.next_sequence))


def test_history_plans_anew_when_a_file_left_the_archive(place: Place) -> None:
    """A file that was replaced while it waited for its turn is looked up again."""
    log, expected = tiered(place)
    name = place.archive.entries()[1].file
    failed: list[str] = []

    def plan(request: Request) -> Trouble | None:
        if name in request.name and not failed:
            failed.append(request.name)
            raise MissingError("deleted by a compaction")
        return None

    place.store.plan = plan
    assert list(History(log, place.archive).records(0)) == expected
    assert failed


def test_history_of_a_record_that_is_nowhere_any_more_is_an_error(place: Place) -> None:
    """Expired in the archive, deleted on disk: told with where records begin, never skipped."""
    log, expected = tiered(place)
    entries = place.archive.entries()
    place.archive.change(lambda h: h and place.archive._retired(h, entries[:1]))
    place.archive.collect(grace_s=0)
    history = History(log, place.archive)
    assert history.start_sequence == entries[0].stop
    with pytest.raises(SequenceExpiredError) as caught:
        list(history.records(0))
    assert caught.value.start_sequence == entries[0].stop
    assert list(history.records()) == expected[entries[0].stop :]


def test_history_of_an_archive_that_expired_altogether_is_empty(place: Place) -> None:
    """It begins where it ends; with the log it begins there."""
    log, expected = tiered(place)
    stop = place.archive.entries()[-1].stop
    place.archive.expire(2**63 - 1)
    assert History(None, place.archive).start_sequence == stop
    assert list(History(None, place.archive).records()) == []
    start = log.start_sequence
    assert list(History(log, place.archive).records()) == expected[start:]


def test_history_over_a_hole_is_an_error(place: Place) -> None:
    """Records deleted before they were archived are missing, and a reader hears of it."""
    log = place.filled(4)
    place.archiver().step()
    retire(log, 2)
    place.archiver(allow_gap=True).run()
    retire(log, 2)
    hole = place.archive.entries()[0].stop
    records = History(log, place.archive).records(0)
    assert [next(records).sequence for _ in range(hole)] == list(range(hole))
    with pytest.raises(SequenceExpiredError) as caught:
        next(records)
    assert caught.value.sequence == hole


def test_file_that_the_catalogue_names_and_nobody_has_is_an_error(place: Place) -> None:
    """A deleted object is told, not skipped."""
    log, _ = tiered(place)
    place.store.delete(f"{FOLDER}/{place.archive.entries()[0].file}")
    with pytest.raises(MissingError):
        list(History(log, place.archive).records(0))


@pytest.mark.parametrize("trouble", [Trouble.WRONG, Trouble.TRUNCATED])
def test_history_over_a_bad_line_is_right_or_an_error(place: Place, trouble: Trouble) -> None:
    """Wrong bytes are noticed by the checksums of the pages: no wrong record is ever delivered."""
    log, expected = tiered(place)
    refused = 0
    for number in range(40):
        place.store.plan = once(len(place.store.requests) + number, trouble)
        found: list[Record] = []
        try:
            found.extend(History(log, place.archive).records(0))
        except HeadwaterError:
            refused += 1
        assert found == expected[: len(found)]
    # What comes cut short is asked for again; wrong bytes of a file are not.
    assert bool(refused) == (trouble is Trouble.WRONG)


def test_start_is_a_word_a_sequence_or_a_time(place: Place) -> None:
    """The same ways to say where to begin as for a reader of the log."""
    log = place.world.open()
    base = datetime(2024, 1, 1, tzinfo=UTC)
    stamps = [int((base + timedelta(minutes=n)).timestamp()) * 10**9 for n in range(60)]
    for start in range(0, 60, 10):
        log.append_many([b"x"] * 10, timestamps_ns=stamps[start : start + 10])
        log.roll()
    place.archiver().run()
    retire(log, 4)
    history = History(log, place.archive)
    assert log.start_sequence == 40
    assert history.sequence_at("earliest") == 0
    assert history.sequence_at("latest") == 60
    assert history.sequence_at(17) == 17
    for minute in (-5, 0, 15, 39, 40, 45, 59):
        assert history.sequence_at(base + timedelta(minutes=minute)) == max(0, minute)
    assert history.sequence_at(base + timedelta(hours=2)) == 60
    for bad in (-1, "yesterday", datetime(2024, 1, 1)):  # noqa: DTZ001 - it must be refused
        with pytest.raises(InvalidInputError):
            history.sequence_at(bad)  # type: ignore[arg-type]
        with pytest.raises(InvalidInputError):
            History(None, place.archive).sequence_at(bad)  # type: ignore[arg-type]


def test_history_of_an_empty_archive_and_log_is_empty(place: Place) -> None:
    """Nothing was written: nothing is read, and nothing is wrong."""
    log = place.world.open()
    assert list(History(log, place.archive).records()) == []
    assert list(History(None, place.archive).records()) == []
    assert History(None, place.archive).batches().read_all().num_rows == 0
