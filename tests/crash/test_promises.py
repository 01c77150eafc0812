"""One test for each way in which a log could lose, repeat or invent something in a crash.

Each is small, and each has an exhibit in `test_museum.py`: a defect that makes exactly it fail.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater._log import open_home
from headwater.testing import Fault, FaultFS, World, explore, explore_faults
from tests.crash import workloads
from tests.crash.damaged import Damaged, keeps_the_old_files, repeated

if TYPE_CHECKING:
    from headwater.testing import Operation


def _in_segments(operation: Operation) -> bool:
    return operation.path.endswith(".q")


def _is_flip(operation: Operation) -> bool:
    return operation.path == "/log/manifest.current" and operation.kind == "write"


def test_names_of_segments_power_cut_anywhere_are_there() -> None:
    """Creation and rolls make their new names durable before anything relies on them (S0-10)."""
    explore(workloads.one_roll, models=("drop", "random"))


def test_acked_record_power_cut_anywhere_is_there() -> None:
    """In mode sync a record that was acked survives a power cut that drops what it can."""
    explore(workloads.two_records, models=("drop",))


def test_torn_body_power_cut_is_never_read() -> None:
    """A record of which only a part reached the disk is not delivered (S0-13)."""
    explore(workloads.long_records, models=("random",), seeds=4, at=_in_segments)


def test_sequence_reopened_after_any_crash_continues() -> None:
    """The first record after a recovery follows the last one that was recovered (S4-16)."""
    explore(workloads.two_records, models=("process",))


def test_cleanup_any_crash_keeps_what_a_reader_needs() -> None:
    """No crash leaves a reader in front of the first record kept (S0-17, S0-22)."""
    explore(workloads.one_cleanup, models=("process", "drop"))


def test_cleanup_any_crash_never_misses_a_named_segment() -> None:
    """Whatever the manifest names is there while a cleanup deletes files (D-8)."""
    explore(workloads.one_cleanup, models=("process",), at=lambda o: o.kind in {"unlink", "write"})


def test_group_seen_by_another_process_is_whole() -> None:
    """At every moment a reading process sees a group entirely or not at all (S0-13)."""
    explore(workloads.one_group, models=("process",))


def test_leftovers_behind_a_torn_frame_never_come_back() -> None:
    """What stood behind a torn frame is gone for good, even when a new frame fits exactly."""
    explore(workloads.equal_records, models=("random",), seeds=8, at=_in_segments)


def test_failed_sync_log_reopened_is_written_again() -> None:
    """What a reopened log shows after a failed sync is durable before it says so (S0-15)."""
    explore_faults(workloads.one_flush, Fault.EIO, {"datasync"})


def test_record_appended_during_a_sync_is_not_called_durable() -> None:
    """The durable end is what was there before the sync began."""
    explore(workloads.append_during_sync, models=("drop",))


def test_unreadable_reader_cleanup_deletes_nothing() -> None:
    """A position that cannot be read may be anywhere, so every segment stays (S0-26)."""
    world = World(FaultFS())
    log = world.open("os")
    with log.reader("broken"), log.reader("fine") as reader:
        log.append(b"a")
        log.roll()
        list(reader)
        reader.commit(sync=True)
    file = world.fs.open("/log/readers/broken.meta", write=True)
    file.write(0, bytes(8192))
    file.close()
    assert log.cleanup() == []
    assert [record.value for record in log.read()] == [b"a"]
    log.close()


def test_unsynced_record_power_cut_that_drops_is_lost() -> None:
    """The model can lose things: in mode os a record without a flush does not survive."""
    world = World(FaultFS())
    log = world.open("os")
    log.append(b"fleeting")
    found = world.fs.fork().after_power_crash(1, "drop")
    log.close()
    again = open_home(World(found).home)
    assert list(again.read()) == []
    again.close()


def test_manifest_interrupted_flip_cleaned_up_elsewhere_is_whole() -> None:
    """A cleanup behind a flip that was never synced survives a torn slot (S4-8, S4-10)."""
    explore(
        workloads.consumed_and_rolled,
        models=("process",),
        nested=1.0,
        at=_is_flip,
        again=workloads.cleanup_elsewhere,
        seeds=8,
    )


def test_manifest_interrupted_flip_log_reopened_goes_on_durably() -> None:
    """Who opens a log behind a flip that was never synced makes the flip durable (S4-10)."""
    explore(workloads.one_roll, models=("process",), nested=1.0, at=_is_flip)


def test_reader_position_unsynced_commits_power_cut_stays() -> None:
    """Any number of plain commits leaves the last synced one to fall back to (S0-20)."""
    explore(
        workloads.many_commits,
        models=("drop", "random"),
        seeds=12,
        at=lambda o: o.path.endswith(".meta"),
    )


def test_reader_name_interrupted_registration_is_durable_for_the_next() -> None:
    """Who opens a reader whose registration died half way makes its name durable."""
    explore_faults(workloads.commits_that_sync, Fault.EIO, {"sync_dir"})


def test_producer_table_power_cut_in_a_roll_is_there() -> None:
    """The answers to numbered groups move into the next segment durably."""
    explore(workloads.numbered_roll, models=("drop", "random"), seeds=2)


def test_repair_stopped_between_its_files_keeps_the_same_records() -> None:
    """A segment that was moved to the front is not taken for one that lost its end."""
    explore(
        workloads.repairs,
        begin=Damaged("a record of the active segment"),
        models=("process", "drop"),
        at=lambda o: o.kind in {"rename", "sync_dir"},
    )


def test_repair_repeated_behind_a_failed_sync_is_durable() -> None:
    """What a repair finds done it makes durable, before it moves other names (S0-15)."""
    world = Damaged("a record of a sealed segment")()
    world.repair()
    for operation in world.fs.operations:
        if operation.kind in {"sync_dir", "datasync"}:
            repeated("a record of a sealed segment", Fault.EIO, operation)


def test_repair_stopped_anywhere_has_the_old_files() -> None:
    """Nothing is changed before its copy is durable."""
    keeps_the_old_files("a record of the active segment")


def test_sequences_of_a_lost_tail_never_come_back() -> None:
    """Behind records that were durable and are lost, the log goes on with unused numbers."""
    explore(workloads.repairs, begin=Damaged("the end of the active segment"), models=("drop",))
