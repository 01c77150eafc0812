"""`verify` finds every damage, names its place, and changes nothing."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

import headwater
from headwater._repair import repair
from headwater._segment import FIRST_FRAME
from headwater._verify import verify
from headwater.errors import NotALogError
from headwater.testing import FaultFS
from tests.unit.mending import RECORDS, SEGMENT_BYTES, Site, lying_index, sample

if TYPE_CHECKING:
    from pathlib import Path

    from headwater import VerifyReport


@pytest.mark.parametrize("closed", [True, False])
def test_verify_of_a_sound_log_counts_everything(closed: bool) -> None:  # noqa: FBT001 - a case
    """A log as it was written, closed or not, has no problem, and each record is counted."""
    site = sample(closed=closed)
    report = verify(site.home())
    assert report.ok, report.problems
    assert (report.start_sequence, report.next_sequence) == (0, RECORDS)
    assert report.records == RECORDS
    assert report.segments == 1 + max(n for n in range(9) if site.fs.exists(site.path(n + 1)))
    assert report.frames >= RECORDS * 5 // 6
    assert report.bytes_read > report.segments * 1000


def test_verify_changes_nothing() -> None:
    """Not one byte or name of the folder changes, sound or damaged."""
    site = sample()
    site.flip(1, 500)
    before = site.fs.contents()
    operations = len(site.fs.operations)
    assert not verify(site.home()).ok
    assert site.fs.contents() == before
    assert len(site.fs.operations) == operations


def test_verify_tells_its_progress_up_to_the_end() -> None:
    """The callback sees growing numbers and, last, as many bytes as there were."""
    seen: list[tuple[int, int]] = []
    verify(sample().home(), lambda done, total: seen.append((done, total)))
    assert seen
    assert seen == sorted(seen)
    assert all(done <= total for done, total in seen)
    assert seen[-1][0] == seen[-1][1] > SEGMENT_BYTES


@pytest.mark.parametrize("number", [0, 1, 2])
def test_verify_of_every_used_byte_of_a_segment_finds_its_change(number: int) -> None:
    """Any changed byte of the frames is found, with the segment, and in front of the change."""
    site = sample()
    used = len(site.read(number).rstrip(b"\0"))
    for position in range(0, used, 7):
        damaged = site.copy()
        damaged.flip(number, position)
        problems = verify(damaged.home()).problems
        assert problems, position
        assert all(problem.path == site.path(number) for problem in problems[:1]), problems
        places = [problem.position for problem in problems if problem.position is not None]
        assert not places or min(places) <= position


def test_verify_of_a_damaged_record_names_its_sequence() -> None:
    """The problem says which record is damaged, where, and that `repair` is next."""
    site = sample()
    position = site.position(1, 69)
    site.flip(1, position + 45)
    (problem,) = verify(site.home()).problems
    assert (problem.segment_id, problem.position, problem.sequence) == (1, position, 69)
    assert "repair" in problem.message


def test_verify_of_two_damages_in_one_segment_names_both() -> None:
    """Behind damage the check goes on, so that one run shows all of it."""
    site = sample()
    first, second = site.position(0, 9), site.position(0, 30)
    site.flip(0, first + 45)
    site.flip(0, second + 45)
    report = verify(site.home())
    assert [problem.position for problem in report.problems] == [first, second]
    assert report.records == RECORDS - 2


def test_verify_of_bytes_behind_a_sealed_end_finds_them() -> None:
    """Space behind SEALED was never written to."""
    site = sample()
    site.write(0, SEGMENT_BYTES - 1, b"x")
    (problem,) = verify(site.home()).problems
    assert "behind the end" in problem.message


def test_verify_of_a_missing_segment_names_it() -> None:
    """A file that the manifest names and nobody has is a problem (S0-17)."""
    site = sample()
    site.fs.unlink(site.path(1))
    assert any(
        problem.path == site.path(1) and "missing" in problem.message
        for problem in verify(site.home()).problems
    )


@pytest.mark.parametrize("size", [0, 63, 64, 500, SEGMENT_BYTES - 8])
def test_verify_of_a_segment_cut_short_finds_it(size: int) -> None:
    """A file shorter than the log's segments is a problem, whatever it still holds (S0-2)."""
    site = sample()
    site.cut(1, size)
    assert not verify(site.home()).ok


def test_verify_without_a_pointer_still_reads_the_segments() -> None:
    """The pointer is reported missing, and the records are counted all the same (S4-23)."""
    site = sample()
    site.fs.unlink(site.path("manifest.current"))
    report = verify(site.home())
    assert len(report.problems) == 1
    assert "Manifest not found" in report.problems[0].message
    assert report.records == RECORDS


@pytest.mark.parametrize("data", [b"", b"\x03", b"12"])
def test_verify_of_a_pointer_to_nowhere_reports_it(data: bytes) -> None:
    """Only one byte, 1 or 2, is a pointer (S4-14)."""
    site = sample()
    site.cut("manifest.current", 0)
    site.write("manifest.current", 0, data)
    report = verify(site.home())
    assert "Manifest corrupted" in report.problems[0].message
    assert report.records == RECORDS


def test_verify_of_the_unused_slot_is_a_note() -> None:
    """The slot that the pointer does not name may be torn; the next change rewrites it (S4-8)."""
    site = sample()
    unused = 3 - site.read("manifest.current")[0]
    site.flip(f"manifest.{unused}", 40)
    report = verify(site.home())
    assert report.ok
    assert any(f"manifest.{unused}" in note for note in report.notes)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"short", "5 bytes"),
        (bytes([9]) + bytes(15), "names segment 9"),
        (None, "nothing ends"),
    ],
    ids=["length", "segment", "position"],
)
def test_verify_of_a_wrong_watermark_reports_it(data: bytes | None, what: str) -> None:
    """`index.meta` has 16 bytes and names a place of the active segment (S0-3)."""
    site = sample()
    good = site.read("index.meta")
    site.cut("index.meta", 0)
    site.write("index.meta", 0, data or good[:8] + (100).to_bytes(8, "little"))
    (problem,) = verify(site.home()).problems
    assert what in problem.message


def test_verify_of_damage_below_the_watermark_is_no_torn_tail() -> None:
    """What `index.meta` vouches for must be there."""
    site = sample(closed=False)
    last = verify(site.home()).segments - 1
    stop = int.from_bytes(site.read("index.meta")[8:], "little")
    site.write(last, stop - 48, bytes(48))
    assert not verify(site.home()).ok


def test_verify_of_a_torn_tail_is_a_note() -> None:
    """Bytes behind the last whole frame that nobody vouches for are cut by the next open."""
    site = sample(closed=False)
    last = verify(site.home()).segments - 1
    used = len(site.read(last).rstrip(b"\0")) + 7 & -8
    site.write(last, used, b"\x60\0\0\0" + bytes(20) + b"torn")
    report = verify(site.home())
    assert report.ok, report.problems
    assert any("torn tail" in note for note in report.notes)
    site.open().close()
    assert not any("torn tail" in note for note in verify(site.home()).notes)


def test_verify_of_a_shared_state_that_claims_too_much_reports_it() -> None:
    """In the boot in which it was written, what is published is there."""
    site = sample(closed=False)
    site.write("state", 48, (RECORDS + 5).to_bytes(8, "little"))
    (problem,) = verify(site.home()).problems
    assert f"published up to {RECORDS + 5}" in problem.message


def test_verify_of_a_damaged_index_is_a_note_and_of_a_wrong_one_a_problem() -> None:
    """A sparse index that does not check out is not used; one that lies steers every seek."""
    site = sample()
    good = site.read("000000001.idx")
    site.flip("000000001.idx", 50)
    report = verify(site.home())
    assert report.ok
    assert any("000000001.idx" in note for note in report.notes)
    site.cut("000000001.idx", 0)
    site.write("000000001.idx", 0, lying_index(site))
    (problem, *_) = verify(site.home()).problems
    assert problem.path == site.path("000000001.idx")
    site.cut("000000001.idx", 0)
    site.write("000000001.idx", 0, good)
    assert verify(site.home()).ok


def test_verify_of_a_reader_with_one_whole_copy_is_a_note_and_with_none_a_problem() -> None:
    """Two copies, one of which a power cut may tear."""
    site = sample()
    site.flip("readers/billing.meta", 20)
    report = verify(site.home())
    assert report.ok
    assert any("billing.meta" in note for note in report.notes)
    site.flip("readers/billing.meta", 4096 + 20)
    (problem,) = verify(site.home()).problems
    assert problem.path == site.path("readers/billing.meta")


def test_verify_of_a_reader_in_the_middle_of_a_frame_reports_it() -> None:
    """A position is the start of the frame that holds the sequence (S0-20)."""
    site = sample()
    with site.open() as log:
        log.reader("other").close()
    legacy = (0).to_bytes(8, "little") + (FIRST_FRAME + 8).to_bytes(8, "little")
    site.cut("readers/other.meta", 0)
    site.write("readers/other.meta", 0, legacy)
    (problem,) = verify(site.home()).problems
    assert problem.position == FIRST_FRAME + 8


def test_verify_of_a_damaged_staged_group_reports_it() -> None:
    """A group in the inbox that cannot be read is named; other files there are noted."""
    site = sample()
    site.fs.make_dir(site.path("inbox"))
    site.write("inbox/1.group", 0, b"HWIB but not really")
    site.write("inbox/1.reason", 0, b"{}")
    report = verify(site.home())
    assert [problem.path for problem in report.problems] == [site.path("inbox/1.group")]
    assert any("1.reason" in note for note in report.notes)


def test_verify_of_files_that_the_log_does_not_know_notes_them() -> None:
    """What lies about is named, not judged."""
    site = sample()
    site.write("notes.txt", 0, b"mine")
    site.write(77, 0, bytes(64))
    report = verify(site.home())
    assert report.ok
    assert any("notes.txt" in note for note in report.notes)
    assert any("000000077.q" in note for note in report.notes)


def test_verify_of_something_else_refuses() -> None:
    """A folder that is not a log is an error, not a report."""
    with pytest.raises(NotALogError):
        verify(Site(FaultFS(), "/nothing").home())


def test_verify_beside_a_busy_writer_finds_nothing(tmp_path: Path) -> None:
    """Rolls, appends, commits and cleanup under its eyes are no damage."""
    stop, enough = threading.Event(), threading.Event()
    log = headwater.open(tmp_path / "log", durability="os", segment_bytes=1 << 16)

    def write() -> None:
        for number in range(10**9):
            log.append(b"x" * (number % 300))
            if number % 40 == 0:
                log.append_many([b"y" * 50] * 20, producer="etl", batch=number)
            if number == 20_000:
                enough.set()
            if stop.is_set():
                return

    def read() -> None:
        with log.reader("billing") as reader:
            while not stop.is_set():
                reader.read_batch(max_records=3000)
                reader.commit()
                log.cleanup()

    threads = [threading.Thread(target=write), threading.Thread(target=read)]
    for thread in threads:
        thread.start()
    reports: list[VerifyReport] = []
    try:
        while len(reports) < 40 or not enough.is_set():
            reports.append(headwater.verify(tmp_path / "log"))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        log.close()
    assert [report.problems for report in reports if not report.ok] == []
    assert len({report.next_sequence for report in reports}) > 10
    assert max(report.start_sequence for report in reports) > 0


def test_verify_of_a_shared_state_in_front_of_the_active_segment_reports_it() -> None:
    """Readers would believe that the log has ended; `repair` disowns such a state."""
    site = sample(closed=False)
    site.write("state", 48, (5).to_bytes(8, "little"))
    (problem,) = verify(site.home()).problems
    assert problem.path == site.path("state")
    assert any("disown" in action for action in repair(site.home()).actions)
    assert verify(site.home()).ok
    assert len(site.records()) == RECORDS
