"""What a stream reads, without Spark: beginnings, ends, limits, restarts, and what goes missing."""

from __future__ import annotations

import logging
import shutil
import time
from typing import TYPE_CHECKING

import pytest

import headwater
from headwater.archive import restore
from headwater.errors import (
    ConfigError,
    InvalidInputError,
    NotALogError,
    PositionError,
    SequenceExpiredError,
    UnsupportedError,
)
from headwater.spark._follow import Limit
from headwater.spark._live import FAR_LOOK_S, LOOK_S
from headwater.spark._offsets import Offsets
from headwater.spark._targets import open_archive, targets_of
from tests.spark.streams import TOPIC, Place, drained, kept, nexts, spans

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.measured import Measured


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A topic with no partition yet, in a folder of its own."""
    found = Place(tmp_path / "store")
    yield found
    found.close()


# --- where it begins ------------------------------------------------------------------------------


def test_stream_from_the_earliest_record_begins_with_the_first_batch(place: Place) -> None:
    """A beginning that options fix needs no batch of its own."""
    place.make(2)
    place.append(3, 0)
    place.append(2, 1)
    follower = place.follow()
    assert list(map(nexts, drained(follower, Limit()))) == [{0: 0, 1: 0}, {0: 3, 1: 2}]


def test_stream_from_the_latest_record_notes_its_beginning_first(place: Place) -> None:
    """Spark asks for a beginning again until batch 0 is done, so batch 0 is what writes it down."""
    place.make(1)
    place.append(3)
    first = place.follow(startingSequence="latest").first()
    noted = place.follow(startingSequence="latest").latest(first, Limit())
    place.append(2)  # after the plan of batch 0, in front of its commit; then the process dies
    again = place.follow(startingSequence="latest")
    assert again.first() == first
    assert spans(again, kept(first), kept(noted)) == {}
    following = again.latest(kept(noted), Limit())
    assert spans(again, kept(noted), following) == {0: (3, 5)}


def test_stream_begins_where_each_partition_is_told_to(place: Place) -> None:
    """JSON names partitions; what it does not name begins at its earliest record."""
    place.make(2)
    place.append(5, 0)
    place.append(5, 1)
    follower = place.follow(startingSequence='{"1": 4}')
    assert nexts(follower.first()) == {0: 0, 1: 4}


def test_stream_begins_at_a_time(place: Place) -> None:
    """The first record at or after it, noted by an empty batch."""
    place.make(1)
    with place.open() as log:
        for second in range(5):
            log.append(b"v", timestamp_ns=second * 10**9)
    follower = place.follow(startingTimestamp="1970-01-01T00:00:03+00:00")
    assert [nexts(each) for each in drained(follower, Limit())] == [{}, {0: 3}, {0: 5}]


def test_start_beyond_the_end_is_refused(place: Place) -> None:
    """A number that the log does not reach is a mistake."""
    place.make(1)
    place.append(3)
    with pytest.raises(PositionError, match="begin at 9, the log ends at 3"):
        place.follow(startingSequence="9").first()


def test_stream_of_nothing_is_refused_at_its_start(place: Place) -> None:
    """A path without any log is a typing error, not an empty stream."""
    with pytest.raises(NotALogError, match="names no log"):
        place.follow().first()


def test_two_logs_of_one_name_are_refused(tmp_path: Path) -> None:
    """Offsets name logs by topic and partition, so those must differ."""
    place = Place(tmp_path)
    for store in ("one", "two"):
        with headwater.open(tmp_path / store / TOPIC) as log:
            log.append(b"v")
    with pytest.raises(InvalidInputError, match=r"both called sales/orders\[0\]"):
        place.follow(path=f"{tmp_path}/*/{TOPIC}", topic="").first()


def test_stream_ends_where_it_is_told_to_although_more_came(place: Place) -> None:
    """A number is the end of a partition for good; a partition without one has none."""
    place.make(2)
    place.append(5, 0)
    place.append(5, 1)
    follower = place.follow(endingSequence='{"0": 3}')
    *_, at = drained(follower, Limit())
    assert nexts(at) == {0: 3, 1: 5}
    place.append(2, 0)
    place.append(2, 1)
    assert nexts(drained(follower, Limit(), at)[-1]) == {0: 3, 1: 7}


# --- what appears ---------------------------------------------------------------------------------


def test_partition_that_begins_later_is_read_from_its_start(place: Place) -> None:
    """It enters the offsets at its start; its records come with the next batch, after any crash."""
    place.make(2)
    place.append(2, 0)
    follower = place.follow(startingSequence="latest")
    *_, at = drained(follower, Limit())
    assert nexts(at) == {0: 2}
    place.append(3, 1)
    place.clock.now_s += LOOK_S
    entered = kept(follower.latest(at, Limit()))
    assert nexts(entered) == {0: 2, 1: 0}
    assert spans(place.follow(startingSequence="latest"), at, entered) == {}
    assert spans(follower, entered, kept(follower.latest(entered, Limit()))) == {1: (0, 3)}


def test_topic_that_appears_later_under_a_pattern_is_read_from_its_start(place: Place) -> None:
    """The same for a topic of a store."""
    place.make(1)
    place.append(1)
    follower = place.follow(topic="sales/*")
    *_, at = drained(follower, Limit())
    place.make(1, "sales/refunds")
    place.append(2, 0, "sales/refunds")
    place.clock.now_s += LOOK_S
    entered, end = drained(follower, Limit(), at)[1:]
    assert (entered.logs or {})["sales/refunds", 0].next == 0
    assert (end.logs or {})["sales/refunds", 0].next == 2


def test_topic_whose_logs_do_not_exist_yet_has_an_empty_first_batch(place: Place) -> None:
    """Nothing is there, nothing is wrong."""
    place.make(2)
    follower = place.follow()
    start = follower.first()
    assert start.logs == {}
    assert kept(follower.latest(start, Limit())) == start
    assert follower.ranges(start, start) == []


def test_log_that_is_just_being_made_is_waited_for(place: Place) -> None:
    """A folder with a pointer and no header yet is not an error."""
    place.make(2)
    place.append(1, 0)
    place.append(0, 1)
    segment = place.folder(1) / "000000000.q"
    segment.write_bytes(bytes(len(segment.read_bytes())))  # reserved, and no header yet
    for name in ("index.meta", "state"):
        (place.folder(1) / name).unlink()
    with pytest.raises(NotALogError, match="just being made"):
        headwater.open(place.folder(1), mode="r")
    follower = place.follow()
    *_, at = drained(follower, Limit())
    assert nexts(at) == {0: 1}
    place.append(2, 1)
    place.clock.now_s += LOOK_S
    assert nexts(drained(follower, Limit(), at)[-1]) == {0: 1, 1: 2}


def test_records_that_are_not_durable_are_not_offered(place: Place) -> None:
    """A power cut may take them back, and Spark cannot."""
    place.make(1)
    with headwater.open(place.folder(), durability="os") as log:
        log.append(b"one")
        log.sync()
        log.append(b"two")
        follower = place.follow()
        start = follower.first()
        assert nexts(follower.latest(start, Limit())) == {0: 1}
        log.sync()
        assert nexts(follower.latest(start, Limit())) == {0: 2}


def test_configuration_that_is_just_being_edited_does_not_end_a_query(
    place: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What was known goes on; a wrong one ends the query at its start only."""
    config = tmp_path / "headwater.json"
    config.write_text("{}", "utf-8")
    place.make(1)
    place.append(1)
    follower = place.follow(config=str(config))
    start = follower.first()
    config.write_text('{"archi', "utf-8")
    place.clock.now_s += LOOK_S
    assert nexts(follower.latest(start, Limit())) == {0: 1}
    assert "cannot be looked at now" in caplog.text
    with pytest.raises(ConfigError):
        place.follow(config=str(config)).first()


# --- how much -------------------------------------------------------------------------------------


def test_limit_in_records_is_shared_and_used_up(place: Place) -> None:
    """What one partition does not need goes to the others, and no batch takes more."""
    place.make(3)
    for partition, count in enumerate((1, 10, 10)):
        place.append(count, partition)
    found = drained(place.follow(), Limit(records=7))
    assert list(map(nexts, found)) == [
        {0: 0, 1: 0, 2: 0},
        {0: 1, 1: 3, 2: 3},
        {0: 1, 1: 6, 2: 7},
        {0: 1, 1: 10, 2: 10},
    ]


def test_limit_in_bytes_is_about_kept(place: Place) -> None:
    """Counted by what the segments really hold, not by the size of their files."""
    place.make(2)
    place.append(40, 0, value=bytes(1000))
    place.append_sealed(2, 1)
    found = drained(place.follow(), Limit(bytes=20_000))
    assert nexts(found[1])[0] in range(8, 11)
    assert nexts(found[1])[1] == 1  # a record that is larger than its share goes alone
    assert nexts(found[3])[0] - nexts(found[2])[0] in range(16, 21)  # the other one is done
    assert nexts(found[-1]) == {0: 40, 1: 2}


def test_least_records_are_waited_for(place: Place) -> None:
    """Below that there is no batch, unless this is all there will be."""
    place.make(1)
    place.append(3)
    follower = place.follow()
    start = follower.first()
    assert follower.latest(start, Limit(least=4)) == start
    follower.fix_target()
    assert nexts(follower.latest(start, Limit(least=4))) == {0: 3}


def test_fixed_target_ends_where_the_logs_ended(place: Place) -> None:
    """What comes later, in old logs and in new ones, is for the next run."""
    place.make(2)
    place.append(3, 0)
    follower = place.follow(startingSequence="latest")
    follower.fix_target()
    place.append(4, 0)
    place.append(5, 1)
    place.clock.now_s += LOOK_S
    assert nexts(drained(follower, Limit())[-1]) == {0: 3}
    again = place.follow()
    again.fix_target()
    assert nexts(drained(again, Limit(records=2))[-1]) == {0: 7, 1: 5}


def test_idle_look_at_four_partitions_takes_less_than_a_millisecond(
    place: Place, measured: Measured
) -> None:
    """Spark asks a hundred times a second: no folder is listed and no file is opened for it."""
    place.make(4)
    for partition in range(4):
        place.append(100, partition)
    follower = place.follow(reader="etl")
    *_, at = drained(follower, Limit())
    costs = []
    for _ in range(200):
        begun = time.perf_counter()
        follower.latest(at, Limit())
        costs.append(time.perf_counter() - begun)
    middle_us = sorted(costs)[len(costs) // 2] * 1e6
    measured(f"idle latestOffset of 4 partitions: {middle_us:.0f} us")
    assert middle_us < 1000


# --- again after a restart ------------------------------------------------------------------------


def test_same_offsets_give_the_same_rows_wherever_they_are_now(
    place: Place, tmp_path: Path
) -> None:
    """Planned by one process, read by another after records were archived and deleted here."""
    place.make(1)
    place.append_sealed(4)
    place.append(3)
    options = {"archive": str(tmp_path / "archive")}
    first = place.follow(**options)
    start = first.first()
    end = kept(first.latest(start, Limit(records=6)))
    place.archive(options["archive"])
    with place.open() as log:
        with log.reader("done", "latest"):
            pass
        assert log.cleanup() == [0, 1, 2, 3]
    assert spans(place.follow(**options), start, end) == spans(first, start, end) == {0: (0, 6)}


def test_checkpoint_of_another_log_is_refused(place: Place) -> None:
    """The error names both."""
    place.make(1)
    place.append(3)
    follower = place.follow()
    *_, at = drained(follower, Limit())
    (known,) = (at.logs or {}).values()
    shutil.rmtree(place.folder())
    place.append(9)
    place.clock.now_s += LOOK_S
    for process in (follower, place.follow()):
        with pytest.raises(
            PositionError, match=f"of log {known.log_id}.* holds log [0-9a-f]{{32}}"
        ):
            process.latest(at, Limit())


def test_checkpoint_of_a_deleted_log_is_refused_or_goes_on_without_it(place: Place) -> None:
    """A log that the checkpoint names and nobody finds is lost data."""
    place.make(2)
    place.append(3, 0)
    place.append(3, 1)
    *_, at = drained(place.follow(), Limit())
    shutil.rmtree(place.folder(1))
    place.folder(1).mkdir()
    with pytest.raises(PositionError, match=r"sales/orders\[1\].* was it deleted"):
        place.follow().latest(at, Limit())
    assert place.follow(failOnDataLoss="false").latest(at, Limit()) == at


def test_checkpoint_beyond_the_end_is_refused_or_goes_on_at_the_end(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """The log lost what the query has seen."""
    place.make(1)
    place.append(3)
    *_, at = drained(place.follow(), Limit())
    (key, known), *_ = (at.logs or {}).items()
    ahead = Offsets(None, {key: known._replace(next=9)})
    with pytest.raises(PositionError, match="at sequence 9, the log ends at 3"):
        place.follow().latest(ahead, Limit())
    follower = place.follow(failOnDataLoss="false")
    with caplog.at_level(logging.WARNING, "headwater"):
        assert nexts(follower.latest(ahead, Limit())) == {0: 3}
    assert follower.lost == 6
    assert "records 3 to 8 are lost" in caplog.text


def test_expired_records_are_refused_or_counted(place: Place) -> None:
    """Without a reader nobody protects what a query needs."""
    place.make(1)
    place.append_sealed(3)
    place.append(2)
    start = place.follow().first()
    end = kept(place.follow().latest(start, Limit()))
    with place.open() as log:
        with log.reader("other", 2):
            pass
        assert log.cleanup() == [0, 1]
    with pytest.raises(SequenceExpiredError) as caught:
        place.follow().ranges(start, end)
    assert "option reader protects" in caught.value.__notes__[0]
    follower = place.follow(failOnDataLoss="false")
    assert spans(follower, start, end) == {0: (2, 5)}
    assert follower.lost == 2


def test_lost_records_are_no_part_of_a_limit(place: Place) -> None:
    """A query does not need a batch for each of them."""
    place.make(1)
    place.append_sealed(9)
    start = place.follow().first()
    with place.open() as log:
        with log.reader("other", 7):
            pass
        log.cleanup()
    for limit in (Limit(records=1), Limit(bytes=1)):
        follower = place.follow(failOnDataLoss="false")
        end = kept(follower.latest(start, limit))
        assert follower.lost == 7
        assert spans(follower, start, end) == {0: (7, 8)}
        assert follower.lost == 7


# --- restored logs --------------------------------------------------------------------------------


def test_checkpoint_of_the_old_host_holds_up_to_the_restored_end(
    place: Place, tmp_path: Path
) -> None:
    """Same log id, next epoch: what was archived goes on, what was never archived is refused."""
    url = str(tmp_path / "archive")
    place.make(1)
    place.append_sealed(3)
    place.append(2)
    *_, ahead = drained(place.follow(archive=url), Limit())
    (key, known), *_ = (ahead.logs or {}).items()
    place.archive(url)
    archive = open_archive(targets_of(place.options(archive=url))[0])
    assert archive is not None
    shutil.rmtree(place.folder())
    assert restore(archive, place.folder()).next_sequence == 3
    behind = Offsets(None, {key: known._replace(next=1)})
    follower = place.follow(archive=url)
    end = kept(follower.latest(behind, Limit()))
    assert spans(follower, behind, end) == {0: (1, 3)}
    assert [each.epoch for each in (end.logs or {}).values()] == [2]
    with pytest.raises(PositionError, match="beyond the restored end, 3"):
        follower.latest(ahead, Limit())
    place.append(4)
    with pytest.raises(PositionError, match="name the archive"):
        place.follow().latest(ahead, Limit())


def test_checkpoint_of_a_newer_epoch_is_refused(place: Place) -> None:
    """The host that the log was restored from has nothing to say any more."""
    place.make(1)
    place.append(3)
    *_, at = drained(place.follow(), Limit())
    newer = Offsets(None, {key: one._replace(epoch=2) for key, one in (at.logs or {}).items()})
    with pytest.raises(PositionError, match=r"of epoch 2, .* of epoch 1"):
        place.follow().latest(newer, Limit())


def test_archive_alone_is_followed_as_it_grows(place: Place, tmp_path: Path) -> None:
    """What is archived next is what comes next; the store is not asked all the time."""
    url = str(tmp_path / "archive")
    place.make(1)
    place.append_sealed(2)
    place.archive(url)
    follower = place.follow(path=f"{url}/{TOPIC}", topic="")
    *_, at = drained(follower, Limit())
    assert nexts(at) == {0: 2}
    place.append_sealed(1)
    place.archive(url)
    place.clock.now_s += LOOK_S
    assert follower.latest(at, Limit()) == at
    place.clock.now_s += FAR_LOOK_S
    end = follower.latest(at, Limit())
    assert spans(follower, at, end) == {0: (2, 3)}


def test_archive_alone_has_no_reader(place: Place, tmp_path: Path) -> None:
    """A reader protects records from retention, and there is none in an archive."""
    url = str(tmp_path / "archive")
    place.make(1)
    place.append_sealed(1)
    place.archive(url)
    with pytest.raises(UnsupportedError, match="an archive alone"):
        place.follow(path=f"{url}/{TOPIC}", topic="", reader="etl").first()
