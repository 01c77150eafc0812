"""The named reader of a stream: registered, held, moved, and what retention may delete."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import headwater
from headwater._home import Home
from headwater._positions import load_stored
from headwater.errors import (
    InvalidInputError,
    LockedError,
    PositionError,
    SequenceExpiredError,
    UnsupportedError,
)
from headwater.spark import _named
from headwater.spark._follow import Limit
from headwater.spark._named import NamedReader
from headwater.spark._sync import Checkpoint, sync_reader
from headwater.testing import FaultFS
from tests.spark.streams import TOPIC, Place, drained, kept, nexts, spans

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from headwater.spark._offsets import Offsets


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A topic of one partition with five records of a segment each, and one more."""
    found = Place(tmp_path / "store")
    found.make(1)
    found.append_sealed(5)
    found.append(1)
    yield found
    found.close()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for a reader that a test holds itself."""
    monkeypatch.setattr(_named, "_PATIENCE_S", 0.0)


def position(place: Place, name: str = "etl", partition: int = 0) -> tuple[int, int]:
    """Sequence and floor of a reader."""
    stored = load_stored(Home.on_disk(str(place.folder(partition))), name)
    assert stored is not None
    return stored.sequence or 0, stored.floor_sequence or 0


def cleaned(place: Place) -> list[int]:
    """Let retention delete what every reader has left behind."""
    with place.open() as log:
        return log.cleanup()


def batches(place: Place, limit: int = 2, **options: str) -> list[Offsets]:
    """The offsets of a whole run of a query, batch by batch, as Spark would call it."""
    follower = place.follow(reader="etl", **options)
    found = drained(follower, Limit(records=limit))
    follower.close()
    return found


# --- registration ---------------------------------------------------------------------------------


def test_reader_is_registered_where_the_query_begins(place: Place) -> None:
    """Before anything was read, everything from there on is protected."""
    follower = place.follow(reader="etl", startingSequence="2")
    assert nexts(follower.first()) == {0: 2}
    assert position(place) == (2, 2)
    assert cleaned(place) == [0, 1]


def test_new_reader_begins_at_the_earliest_record(place: Place) -> None:
    """As `log.reader` does, if nobody says otherwise."""
    assert nexts(place.follow(reader="etl").first()) == {0: 0}


def test_registered_reader_knows_better_than_the_options(place: Place) -> None:
    """A start counts only when the name is new: so batch 0 is the same after every crash."""
    place.follow(reader="etl", startingSequence="latest").first()
    place.append(3)
    place.close()
    assert nexts(place.follow(reader="etl", startingSequence="latest").first()) == {0: 6}
    place.close()
    assert nexts(place.follow(reader="etl", startingSequence="0").first()) == {0: 6}


def test_reader_of_a_restarted_batch_is_registered_at_its_start(place: Place) -> None:
    """Spark asks for the batch that it had planned and for nothing else."""
    start, end = batches(place)[:2]
    with headwater.open(place.folder(), mode="r") as log:
        assert log.delete_reader("etl")
    follower = place.follow(reader="etl")
    assert spans(follower, kept(start), kept(end)) == {0: (0, 2)}
    assert position(place) == (0, 0)


def test_partition_that_begins_later_is_protected_from_its_start(place: Place) -> None:
    """Its reader is registered when it enters the offsets."""
    follower = place.follow(reader="etl", startingSequence="latest")
    start = follower.first()
    place.folder(1).mkdir()
    place.append(2, 1)
    place.clock.now_s += 2
    follower.latest(start, Limit())
    assert position(place, partition=1) == (0, 0)


def test_second_query_of_the_same_name_is_refused(place: Place) -> None:
    """The lease lies in the process that follows; it is free when that ends."""
    place.follow(reader="etl").first()
    with pytest.raises(LockedError, match="give the other one another name"):
        place.follow(reader="etl").first()
    place.follow(reader="other").first()
    place.close()
    place.follow(reader="etl").first()


# --- position and floor ---------------------------------------------------------------------------


def test_commit_moves_the_position_and_not_yet_the_floor(place: Place) -> None:
    """A power cut may take Spark's checkpoint back by some batches."""
    follower = place.follow(reader="etl")
    start = follower.first()
    end = follower.latest(start, Limit(records=3))
    follower.commit(kept(end))
    assert position(place) == (3, 0)
    assert cleaned(place) == []
    follower.commit(kept(start))  # never back
    assert position(place) == (3, 0)


def test_position_is_the_place_that_an_ordinary_reader_goes_on_from(place: Place) -> None:
    """Anybody may take the name over when the query has ended."""
    found = batches(place, limit=3)
    follower = place.follow(reader="etl")
    follower.latest(found[1], Limit())
    follower.commit(found[1])
    follower.close()
    with place.open() as log, log.reader("etl") as reader:
        assert [record.sequence for record in reader] == [3, 4, 5]


def test_floor_follows_at_the_distance_of_the_margin(place: Place) -> None:
    """What was committed longer ago is on the disk by now."""
    home = Home.on_disk(str(place.folder()))._replace(monotonic=place.clock)
    with NamedReader(home, "etl", 120.0, lambda: 0) as reader:
        seen = []
        for sequence in (1, 2, 3, 4):
            reader.commit(sequence)
            seen.append(position(place)[1])
            place.clock.now_s += 50
        assert seen == [0, 0, 0, 1]
        place.clock.now_s += 60
        reader.ripen()
        assert position(place) == (4, 1)
        place.clock.now_s += 10
        reader.ripen()
        assert position(place) == (4, 4)


def test_commits_without_end_are_noted_in_few_places(place: Place) -> None:
    """What is remembered of a margin does not grow with the number of batches."""
    home = Home.on_disk(str(place.folder()))._replace(monotonic=place.clock)
    place.append(500)
    with NamedReader(home, "etl", 100.0, lambda: 0) as reader:
        for sequence in range(1, 400):
            reader.commit(sequence)
            place.clock.now_s += 0.5
            assert position(place)[1] <= max(0, sequence - 199)
        assert len(reader._commits) < 80
        assert position(place)[1] >= 390 - 200 - 4


def test_floor_goes_back_to_where_the_query_goes_on(place: Place) -> None:
    """A checkpoint that a power cut took back behind the floor is protected from there."""
    start, end, *_ = batches(place)
    follower = place.follow(reader="etl", readerMargin="0")
    follower.latest(end, Limit())
    follower.commit(end)
    assert position(place) == (2, 2)
    follower.close()
    place.follow(reader="etl").latest(start, Limit())
    assert position(place) == (2, 0)


def test_retention_beside_a_query_never_takes_what_it_needs(place: Place) -> None:
    """Whatever is deleted after each step, the query and its restart find their records."""
    follower = place.follow(reader="etl", readerMargin="0")
    at = follower.first()
    gone: list[int] = []
    for _ in range(6):
        gone += cleaned(place)
        end = kept(follower.latest(at, Limit(records=1)))
        for process in (follower, None):
            if process is None:
                follower.close()
                follower = place.follow(reader="etl", readerMargin="0")
            assert spans(follower, at, end) == {0: (at_of(at), at_of(end))}
        follower.commit(at)
        at = end
    assert gone == [0, 1, 2, 3]


def at_of(offsets: Offsets) -> int:
    """How far the only partition is."""
    return nexts(offsets)[0]


def test_query_without_a_reader_is_told_of_what_retention_took(place: Place) -> None:
    """The same without a name fails."""
    follower = place.follow()
    at = follower.first()
    end = kept(follower.latest(at, Limit(records=1)))
    with place.open() as log, log.reader("other", "latest"):
        pass
    assert cleaned(place)
    with pytest.raises(SequenceExpiredError):
        follower.ranges(at, end)


# --- the checkpoint -------------------------------------------------------------------------------


def write_checkpoint(folder: Path, offsets: list[Offsets], committed: int) -> None:
    """A checkpoint as Spark writes it: plans of all batches, commits of the first ones."""
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
    (folder / "metadata").write_text('{"id":"q"}', "utf-8")
    for number, each in enumerate(offsets):
        text = f'v1\n{{"batchWatermarkMs":0}}\n{{"other":1}}\n{json.dumps(each.pack())}'
        (folder / "offsets" / str(number)).write_text(text, "utf-8")
        (folder / "offsets" / f".{number}.crc").write_bytes(b"crc")
    for number in range(committed):
        (folder / "commits" / str(number)).write_text("v1\n{}", "utf-8")


def test_synced_checkpoint_moves_position_and_floor_to_the_last_complete_batch(
    place: Place, tmp_path: Path
) -> None:
    """The last batch, which Spark never tells a source of, included."""
    offsets = batches(place)
    write_checkpoint(tmp_path / "c", offsets[1:], committed=2)
    options = {"path": str(place.root), "topic": TOPIC}
    assert sync_reader(tmp_path / "c", **options) == {"sales/orders[0]": 4}
    assert position(place) == (4, 4)
    assert cleaned(place) == [0, 1, 2, 3]
    (tmp_path / "c" / "commits" / "2").write_text("v1\n{}", "utf-8")
    assert sync_reader(f"file://{tmp_path}/c", **options) == {"sales/orders[0]": 6}
    assert cleaned(place) == [4]


def test_sync_works_beside_the_query_that_holds_the_reader(place: Place, tmp_path: Path) -> None:
    """Both write the reader's file, and neither undoes the other."""
    offsets = batches(place)
    write_checkpoint(tmp_path / "c", offsets[1:], committed=1)
    follower = place.follow(reader="etl")
    follower.latest(offsets[1], Limit())
    sync_reader(tmp_path / "c", path=str(place.root), topic=TOPIC)
    assert position(place) == (2, 2)
    follower.commit(offsets[2])
    assert position(place) == (4, 2)
    sync_reader(tmp_path / "c", path=str(place.root), topic=TOPIC)
    assert position(place) == (4, 2)


def test_sync_without_a_complete_batch_proves_nothing(place: Place, tmp_path: Path) -> None:
    """A plan without its commit may run again."""
    write_checkpoint(tmp_path / "c", batches(place)[1:], committed=0)
    assert sync_reader(tmp_path / "c", path=str(place.root), topic=TOPIC) == {}
    assert position(place) == (0, 0)


def test_sync_makes_no_reader_and_touches_no_other_log(place: Place, tmp_path: Path) -> None:
    """A reader that somebody deleted stays deleted; a checkpoint of other logs is refused."""
    offsets = batches(place)
    write_checkpoint(tmp_path / "c", offsets[1:], committed=1)
    with headwater.open(place.folder(), mode="r") as log:
        log.delete_reader("etl")
    with pytest.raises(PositionError, match="their reader was deleted"):
        sync_reader(tmp_path / "c", path=str(place.root), topic=TOPIC)
    elsewhere = Place(tmp_path / "elsewhere")
    elsewhere.make(1)
    elsewhere.append(9)
    with elsewhere.open() as log, log.reader("etl"):
        pass
    with pytest.raises(PositionError, match="of other logs"):
        sync_reader(tmp_path / "c", path=str(elsewhere.root), topic=TOPIC)
    assert position(elsewhere) == (0, 0)


def test_sync_of_a_query_without_a_reader_is_refused(place: Place, tmp_path: Path) -> None:
    """There is nothing to move."""
    offsets = drained(place.follow(), Limit())
    write_checkpoint(tmp_path / "c", offsets[1:], committed=1)
    with pytest.raises(InvalidInputError, match="has the option reader"):
        sync_reader(tmp_path / "c", path=str(place.root), topic=TOPIC)


@pytest.mark.parametrize("url", ["s3://bucket/c", "hdfs://host/c"])
def test_checkpoint_that_is_not_here_cannot_be_synced(url: str) -> None:
    """Said at once, with what happens instead."""
    with pytest.raises(UnsupportedError, match="readerMargin"):
        Checkpoint(url)


def test_settled_checkpoint_survives_a_power_cut() -> None:
    """Every file and name that a restart reads is still there, whatever the disk drops."""
    fs = FaultFS()
    names = ["metadata", ".metadata.crc"]
    names += [f"offsets/{name}" for n in range(4) for name in (n, f".{n}.crc")]
    names += [f"commits/{name}" for n in range(3) for name in (n, f".{n}.crc")]
    for folder in ("/q/c/offsets", "/q/c/commits"):
        fs.make_dir(folder)
    fs.sync_dir("/")
    for name in names:
        file = fs.open(f"/q/c/{name}", write=True, create=True)
        file.write(0, b"v1\n{}\nline of " + str(name).encode())
        file.close()
    assert Checkpoint("/q/c", fs).settle() == ["line of offsets/2"]
    for seed in range(8):
        left = fs.fork().after_power_crash(seed).contents()
        for name in ("metadata", "offsets/1", "offsets/.1.crc", "offsets/2", "commits/2"):
            assert left[f"/q/c/{name}"] == b"v1\n{}\nline of " + name.encode()
