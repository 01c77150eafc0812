"""A recovery that cuts a tail under a living reader: rewound, told so, nothing skipped.

A process that dies leaves everything it stored; only the machine can lose it. So the writer is
killed, and a frame that was never synced is damaged the way a machine that stops damages it.
"""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any, Final

import pytest

import headwater
from tests.processes.workload import SEGMENT_BYTES

if TYPE_CHECKING:
    from pathlib import Path

    from tests.processes.spawning import Zygote

OLD: Final = 200
CUT: Final = 150
#: More than what was cut, so that a reader that stays where it was would find records there too.
NEW: Final = 90
LOOKERS: Final = 12


def _damage(path: str, sequence: int) -> None:
    """Change one byte of the body of a record that was never synced."""
    with headwater.open(path, mode="r") as log:
        segment, offset = log._view.locate(sequence)
    file = os.open(f"{path}/{segment:09d}.q", os.O_RDWR)
    try:
        place = offset + 40
        os.pwrite(file, bytes([os.pread(file, 1, place)[0] ^ 0xFF]), place)
    finally:
        os.close(file)


def _kill_a_writer(zygote: Zygote, path: str, count: int) -> None:
    with zygote.spawn("writer_to_kill", path=path, count=count) as writer:
        assert writer.hear() == {"next": count}
        writer.kill()


def _judge(said: list[Any]) -> None:
    """Old records in order; one rewind to the cut; from there every new record, in order."""
    *records, end = said
    rewinds = [entry[2] for entry in records]
    assert rewinds == sorted(rewinds)
    before = [entry[:2] for entry in records if not entry[2]]
    after = [entry[:2] for entry in records if entry[2]]
    assert before == [[number, f"old {number}"] for number in range(len(before))]
    values = [f"old {number}" for number in range(CUT)]
    values += [*(f"new {number}" for number in range(NEW)), "last"]
    start = min(CUT, len(before))
    assert after == [[start + place, value] for place, value in enumerate(values[start:])]
    assert end == [CUT + NEW + 1, "end", 1]


@pytest.mark.parametrize("heard", [OLD, CUT + 20, CUT - 40])
def test_reader_whose_tail_was_cut_is_rewound_and_told(
    zygote: Zygote, tmp_path: Path, heard: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Readers at the tail, behind the cut and before it: nobody misses or keeps a wrong record.

    The next writer has written more than was cut before the slow reader looks again.
    """
    path = str(tmp_path / "log")
    headwater.open(path, segment_bytes=SEGMENT_BYTES).close()
    pause_s = 0 if heard == OLD else 0.003
    with zygote.spawn("rewound", path=path, pause_s=pause_s) as reader:
        _kill_a_writer(zygote, path, OLD)
        said = [reader.hear() for _ in range(heard)]
        _damage(path, CUT)
        with headwater.open(path, durability="os") as log:
            assert log.next_sequence == CUT
            log.append_many([b"new %d" % number for number in range(NEW)])
            log.append(b"last")
            assert f"the log goes on at sequence {CUT}" in caplog.text
            said += reader.messages()
        assert f"records from {CUT} on were cut off by a recovery" in reader.finish()
    _judge(said)
    with headwater.open(path, mode="r") as log:
        assert [info.sequence for info in log.readers()] == [CUT + NEW]  # all but the last one
    assert headwater.verify(path).ok


def test_reader_that_reads_while_the_tail_is_cut_sees_no_damage(
    zygote: Zygote, tmp_path: Path
) -> None:
    """A reader in the middle of the records that are being cut takes the cut for no corruption."""
    new = [f"new {number}" for number in range(NEW)]
    for life in range(LOOKERS):
        path = str(tmp_path / f"log{life}")
        headwater.open(path, segment_bytes=SEGMENT_BYTES).close()
        with zygote.spawn("looker", path=path, start=CUT + 20, cut=CUT, count=NEW) as reader:
            _kill_a_writer(zygote, path, OLD)
            assert reader.hear() == "looking"
            _damage(path, CUT)
            with headwater.open(path, durability="os") as log:
                time.sleep(life % 4 * 0.001)
                log.append_many([value.encode() for value in new])
                looks, *found = reader.hear()
            assert looks > 0
            assert found == new
            assert "Corruption" not in reader.finish()


def test_record_whose_writer_died_before_publishing_it_stays(
    zygote: Zygote, tmp_path: Path
) -> None:
    """A whole frame is a record: readers may have it, commit behind it and come back to it."""
    path = str(tmp_path / "log")
    with zygote.spawn("writer_dying_unpublished", path=path, count=OLD) as writer:
        assert writer.hear() == "dying"
        writer.drain_all()
        assert writer.reap() == -signal.SIGKILL
    with headwater.open(path, mode="r") as log:
        assert log.next_sequence == OLD
        with log.reader("early") as reader:
            assert len(list(reader)) == OLD + 1
            reader.commit()
        with log.reader("early") as reader:
            assert (reader.sequence, reader.lag, list(reader)) == (OLD + 1, 0, [])
    with headwater.open(path) as log, log.reader("early") as reader:
        assert log.next_sequence == OLD + 1
        log.append(b"new")
        assert [record.value for record in reader] == [b"new"]
        assert reader.rewinds == 0


def test_reader_file_beyond_the_cut_is_rewound_at_the_next_open(
    zygote: Zygote, tmp_path: Path
) -> None:
    """A reader that nobody has open is taken back to the cut as well."""
    path = str(tmp_path / "log")
    _kill_a_writer(zygote, path, OLD)
    with headwater.open(path, mode="r") as log, log.reader("away") as reader:
        assert len(reader.read_batch(OLD)) == OLD
        reader.commit()
    _damage(path, CUT)
    with headwater.open(path) as log:
        assert [info.sequence for info in log.readers()] == [CUT]
        log.append(b"new")
        with log.reader("away") as reader:
            assert [record.value for record in reader] == [b"new"]
