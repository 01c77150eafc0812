"""Retention of a topic: real segments, a real archive, real deletions; time is the test's."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING
from unittest import mock

import pytest

from headwater import _retention, _retention_plan
from headwater.errors import ArchiveError, InvalidInputError, SequenceExpiredError, StorageError
from headwater.store import DeleterConfig
from headwater.testing import Fault
from tests.store.shop import ARCHIVE, BIG, NAME, ROOT, Shop, fill, limits, shop, values

if TYPE_CHECKING:
    from headwater.store import RetentionReport, Topic
    from headwater.testing._faults import Operation

__all__ = ["shop"]

MIB = 1024 * 1024


def reasons(report: RetentionReport) -> list[tuple[int, bool, str]]:
    """What a report says about every segment."""
    return [(d.segment_id, d.delete, d.reason) for d in report.segments]


def archived(shop: Shop, count: int, **retention: float | None) -> Topic:
    """A topic with so many sealed segments, all archived, and one record more."""
    topic = shop.topic(limits(archive=True, **retention))
    fill(topic, count + 1)
    topic.archive()
    return topic


def test_active_segment_stays_whatever_the_limits_say(shop: Shop) -> None:
    """S1-23: an age of zero and a size of next to nothing still leave the active segment."""
    topic = archived(shop, 3, time_minutes=0.001, size_mb=0.000001)
    shop.wait_minutes(10)
    report = topic.retain()
    assert report.deleted == ((0, 0), (0, 1), (0, 2))
    assert shop.segments()[0] == 3
    assert values(topic) == [0, 1, 2, 3]
    assert topic.retain().deleted == ()


def test_segment_that_the_archiver_is_on_stays(shop: Shop) -> None:
    """S1-24, S1-25: what the archive does not vouch for stays, although it is much too old."""
    topic = shop.topic(limits(time_minutes=1))
    fill(topic, 5)
    archive = topic.archive_of(0)
    assert archive is not None
    archive.archiver.step()
    archive.archiver.step()
    shop.wait_minutes(10)
    report = topic.retain()
    assert report.deleted == ((0, 0), (0, 1))
    assert reasons(report)[2:] == [
        (2, False, "the archiver is on it"),
        (3, False, "not in the archive yet"),
    ]
    assert values(topic) == [0, 1, 2, 3, 4]


def test_nothing_is_deleted_while_the_archive_cannot_be_asked(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    """S1-1, S1-34: not what the checkpoint says counts, but what the catalogue lists now."""
    topic = archived(shop, 3, time_minutes=1)
    shop.wait_minutes(10)
    shop.fs.fail_when(lambda o: o.path.startswith(ARCHIVE) and o.kind == "open", Fault.EIO)
    with caplog.at_level(logging.WARNING):
        report = topic.retain()
    assert report.deleted == ()
    assert "while the archive cannot be asked" in caplog.text
    shop.fs.heal()
    assert topic.retain().deleted == ((0, 0), (0, 1), (0, 2))


@pytest.mark.parametrize(("extra_ns", "expected"), [(0, ()), (1, ((0, 0),))])
def test_time_rule_at_its_border_counts_nanoseconds(
    shop: Shop, extra_ns: int, expected: tuple[tuple[int, int], ...]
) -> None:
    """S1-26: an age of exactly the limit stays, one nanosecond more goes; by the file's time."""
    topic = archived(shop, 1, time_minutes=60)
    shop.clock.step_ns = 0
    changed_ns = shop.fs.mtime_ns(f"{ROOT}/{NAME}/000000000.q")
    shop.clock.now_ns = changed_ns + 60 * 60 * 10**9 + extra_ns
    assert topic.retain().deleted == expected


def test_size_rule_at_its_border_counts_blocks(shop: Shop) -> None:
    """S1-27: at the limit nothing goes, one byte over it the oldest; allocated blocks count."""
    topic = archived(shop, 3)
    (stats,) = topic.stats()
    sealed = [shop.fs.open(f"{ROOT}/{NAME}/{n:09d}.q") for n in range(4)]
    total = sum(file.allocated_bytes() for file in sealed)
    for file in sealed:
        file.close()
    assert total <= stats.disk_bytes

    def went(limit_bytes: float) -> tuple[tuple[int, int], ...]:
        config = DeleterConfig(5, None, limit_bytes / MIB)
        plan = topic.retain(dry_run=True, config=config)
        return tuple((d.partition, d.segment_id) for d in plan.segments if d.delete)

    assert went(total) == ()
    assert went(total - 1) == ((0, 0),)
    assert went(total - total // 2) == ((0, 0), (0, 1))


def test_both_rules_are_looked_at_in_every_cycle(shop: Shop) -> None:
    """S1-2: one cycle deletes by age and, for what is left over the limit, by size."""
    topic = shop.topic(limits(time_minutes=60))
    fill(topic, 2)
    shop.wait_minutes(61)
    fill(topic, 3)
    topic.archive()
    config = DeleterConfig(5, 60, 3 * 4096 / MIB)
    report = topic.retain(config=config)
    assert [d.rule for d in report.segments if d.delete] == ["time", "size"]
    assert values(topic) == [0, 1, 2, 3, 4]


def test_start_advances_exactly_to_the_first_record_left(shop: Shop) -> None:
    """S1-28, S1-16: to the oldest sealed segment that is left, else to the active one.

    S1-7, S1-8, S1-9 (D-3): the view of the requirement has start, number, files with their first
    records, and the first record of the active file.
    """
    topic = archived(shop, 4, time_minutes=None)
    (before,) = topic.checkpoints()
    assert (before.start_offset, before.file_seq) == (0, 4)
    assert [first for _, _, first in before.rotated_files] == [0, 1, 2, 3]
    assert before.rotated_files[1] == (1, f"{ROOT}/{NAME}/000000001.q", 1)
    assert before.active_file_first_offset == 4
    report = topic.retain(config=DeleterConfig(5, None, 3 * 4096 / MIB))
    assert report.start_sequences == ((0, 2),)
    (left,) = topic.checkpoints()
    assert left.start_offset == left.rotated_files[0][2] == 2
    topic.retain(config=DeleterConfig(5, None, 0.000001))
    (bare,) = topic.checkpoints()
    assert bare.rotated_files == ()
    assert bare.start_offset == bare.active_file_first_offset == 4
    log = topic.partition(0).log()
    assert log is not None
    assert log.start_sequence == 4
    with pytest.raises(SequenceExpiredError):
        next(log.read(3))


def test_reader_goes_on_after_its_records_were_deleted(shop: Shop) -> None:
    """S1-29, S1-20: open or closed, it gets every record once and in order, and commits on."""
    topic = archived(shop, 6, time_minutes=1)
    with topic.reader("slow") as reader:
        (first,) = reader.read_batch(1)
        reader.commit(first)
        shop.wait_minutes(10)
        assert len(topic.retain().deleted) == 6
        fill(topic, 1)
        rest = list(reader)
        assert [record.sequence for record in rest] == [1, 2, 3, 4, 5, 6, 7]
        assert [record.value[0] for record in rest] == [1, 2, 3, 4, 5, 6, 7]
        reader.commit(rest[3])
    with topic.reader("slow") as again:
        found = list(again)
        assert [record.sequence for record in found] == [5, 6, 7]
        again.commit()
        fill(topic, 1)
        assert [record.sequence for record in again] == [8]
        again.commit()
    with topic.reader("slow") as last:
        assert list(last) == []


def test_filesystem_errors_are_survived_and_the_others_go(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    """S1-31, S1-18: EACCES is counted and tried again, ENOENT is as good as deleted."""
    topic = archived(shop, 4, time_minutes=1)
    shop.wait_minutes(10)
    folder = f"{ROOT}/{NAME}"
    shop.fs.unlink(f"{folder}/000000002.q")
    shop.fs.fail_when(lambda o: o.kind == "unlink" and o.path.endswith("1.q"), Fault.EACCES)
    with caplog.at_level(logging.ERROR):
        report = topic.retain()
    assert len(report.errors) == 1
    assert "000000001.q" in report.errors[0]
    assert "not removed" in caplog.text
    assert report.deleted == ((0, 0), (0, 1), (0, 2), (0, 3))
    assert shop.segments()[0] == 1
    shop.fs.heal()
    assert topic.retain().errors == ()
    assert shop.segments()[0] == 4
    assert values(topic) == [0, 1, 2, 3, 4]


def test_checkpoint_that_cannot_be_written_deletes_nothing(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    """S1-22, S1-18: the manifest first; if it cannot change, no file goes, and it is told."""
    topic = archived(shop, 2, time_minutes=1)
    shop.wait_minutes(10)
    shop.fs.fail_when(lambda o: o.kind == "write" and "/manifest." in o.path, Fault.EIO)
    with caplog.at_level(logging.ERROR):
        report = topic.retain()
    assert report.deleted == ()
    assert len(report.errors) == 1
    assert "the manifest cannot be changed" in caplog.text
    assert shop.segments()[:2] == [0, 1]
    shop.fs.heal()
    assert topic.retain().deleted == ((0, 0), (0, 1))


def test_topics_are_handled_independently(shop: Shop) -> None:
    """S1-32, S1-3: own limits, own errors; one that fails does not hold up the other."""
    config = limits(time_minutes=1)
    config["topics"] = {
        "sales/kept": {"retention": {"time_minutes": 10000}},
        "sales/off": {"retention": False},
    }
    store = shop.store(config)
    topics = {name: store.topic(f"sales/{name}") for name in ("gone", "kept", "off", "broken")}
    for topic in topics.values():
        fill(topic, 3)
        topic.archive()
    shop.wait_minutes(10)
    shop.fs.fail_when(lambda o: o.kind == "write" and "/broken/manifest." in o.path, Fault.EIO)
    found = {name: topic.retain() for name, topic in topics.items()}
    assert {name: len(report.deleted) for name, report in found.items()} == {
        "gone": 2,
        "kept": 0,
        "off": 0,
        "broken": 0,
    }
    assert {name for name, report in found.items() if report.errors} == {"broken"}


def test_dry_run_says_everything_and_changes_nothing(shop: Shop) -> None:
    """The report of a rehearsal is that of the run; the disk is as before."""
    topic = archived(shop, 3, time_minutes=1)
    shop.wait_minutes(10)
    before = shop.fs.contents()
    plan = topic.retain(dry_run=True)
    assert shop.fs.contents() == before
    report = topic.retain()
    assert plan.dry_run
    assert not report.dry_run
    assert reasons(plan) == reasons(report)
    assert plan.deleted == ()
    assert report.bytes_reclaimed == sum(d.size_bytes for d in report.segments) > 0


def test_topic_without_archive_and_reader_keeps_everything_unless_it_says_so(shop: Shop) -> None:
    """Nobody ever loses the last copy by leaving a line out."""
    topic = shop.topic(limits(archive=False, time_minutes=1))
    fill(topic, 3)
    shop.wait_minutes(10)
    assert {d.reason for d in topic.retain().segments} == {"the log has no readers"}
    with topic.reader("r") as reader:
        reader.commit(reader.read_batch(1)[-1])
        reader.read_batch(1)
        reader.commit()
    assert topic.retain().deleted == ((0, 0),)
    topic.delete_reader("r")
    shop.stores[0].close()
    config = limits(archive=False, time_minutes=1)
    config["topics"] = {NAME: {"allow_unarchived": True}}
    assert shop.topic(config).retain().deleted == ((0, 1),)


def test_pin_of_a_topic_keeps_what_the_limits_want(shop: Shop) -> None:
    """A pin is a protector: it holds, is shown, and is moved or taken away."""
    topic = archived(shop, 4, time_minutes=1)
    topic.pin("audit", 2)
    shop.wait_minutes(10)
    report = topic.retain()
    assert report.deleted == ((0, 0), (0, 1))
    assert report.segments[2].reason == "pin 'audit' still needs sequence 2"
    assert topic.stats()[0].pins == (("audit", 2),)
    assert topic.unpin("audit")
    assert not topic.unpin("audit")
    assert topic.retain().deleted == ((0, 2), (0, 3))
    with pytest.raises(InvalidInputError):
        topic.pin("p", 9, partition=1)


def test_cleanup_of_the_log_itself_respects_the_archive(shop: Shop) -> None:
    """Who cleans a topic's log up by hand cannot lose what the archive lacks."""
    topic = shop.topic(limits(time_minutes=10000))
    fill(topic, 4)
    with topic.reader("r") as reader:
        list(reader)
        reader.commit()
    archive = topic.archive_of(0)
    assert archive is not None
    log = topic.partition(0).writer
    assert log.cleanup() == []
    archive.archiver.step()
    topic.retain()
    assert log.cleanup() == [0]
    assert values(topic) == [0, 1, 2, 3]


def test_trash_keeps_what_was_deleted_for_a_while(shop: Shop) -> None:
    """S1-37: put aside first, given back later; what the disk holds is still counted."""
    topic = archived(shop, 2, time_minutes=1, trash_minutes=30)
    shop.wait_minutes(10)
    report = topic.retain()
    assert report.deleted == ((0, 0), (0, 1))
    assert report.bytes_reclaimed == 0
    trash = f"{ROOT}/{NAME}/trash"
    assert [name[:11] for name in shop.fs.list(trash)] == ["000000000.q", "000000001.q"]
    shop.wait_minutes(29)
    assert topic.retain().bytes_reclaimed == 0
    shop.wait_minutes(2)
    last = topic.retain()
    assert last.bytes_reclaimed > 0
    assert shop.fs.list(trash) == []
    assert last.disk_bytes < report.disk_bytes


def test_limits_that_cannot_be_met_are_warned_about_once(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    """S1-22: a warning when it begins and when it changes, not every five minutes."""
    topic = shop.topic(limits(size_mb=0.000001))
    fill(topic, 3)
    with caplog.at_level(logging.WARNING):
        topic.retain()
        topic.retain()
    told = [r for r in caplog.records if "over a limit and must stay" in r.getMessage()]
    assert len(told) == 1
    assert told[0].__dict__["headwater"] == {"topic": NAME, "segments": 2}


def test_deletions_are_logged_with_range_size_and_age(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    """S1-22: INFO for what went, with its facts as fields; DEBUG for every evaluation."""
    topic = archived(shop, 1, time_minutes=1)
    shop.wait_minutes(10)
    with caplog.at_level(logging.DEBUG, logger="headwater"):
        topic.retain()
    (deleted,) = [r for r in caplog.records if "deleted segment" in r.getMessage()]
    assert deleted.levelno == logging.INFO
    assert "records 0 to 0" in deleted.getMessage()
    fields = deleted.__dict__["headwater"]
    assert (fields["start"], fields["stop"], fields["rule"]) == (0, 1, "time")
    assert fields["age_s"] >= 600
    assert any(r.levelno == logging.DEBUG and "Retained" in r.getMessage() for r in caplog.records)


def test_archive_of_another_log_is_an_error(shop: Shop) -> None:
    """A topic that was deleted and made again does not mix its records with the old ones."""
    store = shop.store(limits())
    fill(store.topic(NAME), 3)
    store.topic(NAME).archive()
    store.delete_topic(NAME)
    assert values(store.topic(NAME)) == [0, 1]  # what the archive has can still be read
    with pytest.raises(ArchiveError, match="restore the topic from it, or delete it"):
        store.topic(NAME).append(b"new")
    store.delete_topic(NAME, archive=True)
    assert store.topic(NAME).append(b"new") == 0
    store.topic(NAME).roll()
    store.topic(NAME).archive()
    assert [record.value for record in store.topic(NAME).history()] == [b"new"]


def test_partition_that_cannot_be_looked_at_does_not_keep_the_others(shop: Shop) -> None:
    """S1-31: an unreadable file keeps its partition, not the topic."""
    store = shop.store(limits(time_minutes=1))
    topic = store.topic(NAME, partitions=2)
    for number in range(2):
        fill(topic, 3, partition=number)
    topic.archive()
    shop.wait_minutes(10)
    bad = f"{ROOT}/{NAME}/partitions/0/000000000.q"
    shop.fs.fail_when(lambda o: o.kind == "stat" and o.path == bad, Fault.EACCES)
    report = topic.retain()
    assert report.deleted == ((1, 0), (1, 1))
    assert "cannot be looked at" in report.segments[0].reason
    assert report.errors
    shop.fs.heal()
    assert topic.retain().deleted == ((0, 0), (0, 1))


def test_cycle_looks_at_no_content(shop: Shop) -> None:
    """S1-6: where a file ends in the log is known without reading it; a cycle reads no segment."""
    topic = archived(shop, 3, time_minutes=1)
    shop.wait_minutes(10)

    def is_look(operation: Operation) -> bool:
        is_sealed = operation.path.endswith(("0.q", "1.q", "2.q"))
        return is_sealed and operation.kind in ("read", "map")

    shop.fs.fail_when(is_look, Fault.EIO)
    report = topic.retain()
    assert report.deleted == ((0, 0), (0, 1), (0, 2))
    assert report.errors == ()


def test_cycle_over_a_hundred_files_changes_the_manifest_once(shop: Shop) -> None:
    """S1-35: one look at each file, one manifest, whatever goes; `make bench` has the time."""
    topic = archived(shop, 100, time_minutes=1)
    shop.wait_minutes(10)
    before = len(shop.fs.operations)
    assert len(topic.retain().deleted) == 100
    done = shop.fs.operations[before:]
    assert sum(o.kind == "write" and "/manifest." in o.path for o in done) <= 4
    assert sum(o.kind == "unlink" and o.path.endswith(".q") for o in done) == 100
    assert len(done) < 2.5 * 100


def test_writer_and_deleter_never_undo_each_other(shop: Shop) -> None:
    """S1-17: while a cycle decides, another process rolls on; both changes are there at the end."""
    topic = archived(shop, 3, time_minutes=1)
    shop.wait_minutes(10)
    other = shop.store(limits(archive=True, time_minutes=1)).topic(NAME)
    honest = _retention_plan.plan

    def slow(*arguments: object) -> object:
        found = honest(*arguments)  # type: ignore[arg-type]
        fill(topic, 2)
        return found

    with mock.patch.object(_retention, "plan", slow):
        assert len(other.retain().deleted) == 3
    (left,) = topic.checkpoints()
    assert [number for number, _, _ in left.rotated_files] == [3, 4]
    assert left.start_offset == 3
    assert values(topic) == [0, 1, 2, 3, 4, 5]


def test_retention_is_off_by_default(shop: Shop) -> None:
    """S1-36, S1-13: without a section nothing is deleted, by nobody, ever."""
    store = shop.store({"archive": ARCHIVE})
    topic = store.topic(NAME)
    fill(topic, 3)
    shop.wait_minutes(10**6)
    for _ in range(3):
        store.step()
        shop.wait_minutes(10)
    assert topic.retain().deleted == ()
    assert shop.segments()[0] == 0


def test_retention_works_on_a_full_disk(shop: Shop) -> None:
    """Making room must not need room."""
    topic = archived(shop, 3, time_minutes=1)
    topic.retain(config=DeleterConfig(5, None, None))
    shop.wait_minutes(10)
    shop.fs.capacity_bytes = 0
    shop.fs.capacity_bytes = -shop.fs.volume.free_blocks() * 4096
    with pytest.raises(StorageError):
        topic.append(bytes(BIG))
    report = topic.retain()
    assert len(report.deleted) == 3
    assert report.errors == ()
    assert topic.append(bytes(BIG)) == 4
