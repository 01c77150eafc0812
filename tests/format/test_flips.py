"""Every single bit of the used bytes of every file of a small log, flipped one at a time.

Each flip leads to a typed error that names the file, or it is harmless: then its field stands in
`HARMLESS` with the reason. Everything is durable here and `index.meta` says so, hence nothing may
pass for a torn tail.
"""

from __future__ import annotations

import random
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import pytest

from headwater._notes import parse_note
from headwater.errors import CorruptionError, HeadwaterError, LockedError
from tests.format.anatomy import UNUSED, Region, regions
from tests.format.damage import Count, checked
from tests.format.samples import FOLDER, READER, Sample, open_log, small_log

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headwater.testing import FaultFS
    from tests.measured import Measured

#: Bytes of each run of unused space that are tried; drawn by the seed.
UNUSED_TRIED: Final = 24
SEED: Final = 20260105
_DERIVED: Final = "derived: rebuilt from the segment, or the segment is walked instead"
_SHARED: Final = "shared memory of live processes, rewritten at each open for writing"
_OTHER_COPY: Final = "the other copy counts; at worst an older commit: at least once"
_NOTE: Final = "a note for people; the lock is the kernel's"

#: (kind of file, field) -> why a flip there changes nothing that anybody was promised.
HARMLESS: Final[dict[tuple[str, str], str]] = {
    ("segment", UNUSED): "beyond the end: zeroed at open, never read before it is written",
    ("index.meta", "current_segment"): "an older segment is ignored: one check less",
    ("index.meta", "write_offset"): "a lower place only weakens the check, a higher is an error",
    ("manifest", "slot not named"): "the pointer names the other copy",
    ("lock", "content"): _NOTE,
    ("lease", "content"): _NOTE,
    **{
        ("idx", field): _DERIVED
        for field in (
            [
                "magic",
                "version",
                "reserved",
                "count",
                "body_crc",
                "max_timestamp_ns",
                "log_id",
                "head_crc",
                "entries",
            ]
        )
    },
    **{
        ("reader", field): _OTHER_COPY
        for field in [
            "magic",
            "flags",
            "version",
            "payload_bytes",
            "generation",
            "segment_id",
            "offset",
            "sequence",
            "floor_sequence",
            "committed_ns",
            "crc",
        ]
    },
    ("reader", UNUSED): "behind the copies; never read",
    ("state", "magic"): "another identity: nobody trusts the words, the segment is read instead",
    ("state", "log_id"): "the same",
    ("state", "boot_id"): "the same",
    ("state", UNUSED): "never read",
    **{
        ("state", field): _SHARED
        for field in [
            "epoch",
            "next_sequence",
            "durable_sequence",
            "wake",
            "cut_count",
            "inbox",
            "hint_segment",
            "hint_position",
            "hint_sequence",
            "poisoned",
            "cuts",
            "waiters",
        ]
    },
}
#: Zero as long as nothing was cut and nobody sleeps, so counted among the unused bytes.
IDLE: Final = frozenset({UNUSED, "cuts", "waiters"})
KINDS: Final = {
    ".q": "segment",
    ".idx": "idx",
    ".group": "inbox",
    "index.meta": "index.meta",
    ".meta": "reader",
    "manifest.current": "pointer",
    "manifest.1": "manifest",
    "manifest.2": "manifest",
    "manifest.lock": "lock",
    "lock": "lock",
    ".lease": "lease",
    "state": "state",
}
#: What a closed log has, and of a log whose writer was killed what differs.
CASES: Final = {
    True: [
        "000000000.q",
        "000000001.q",
        "000000000.idx",
        "inbox",
        "index.meta",
        "lock",
        "manifest.1",
        "manifest.2",
        "manifest.current",
        "readers",
        "state",
    ],
    False: ["000000001.q", "index.meta", "manifest.2", "manifest.current"],
}


@lru_cache(maxsize=2)
def sample(*, close: bool) -> Sample:
    """The small log, made once."""
    return small_log(close=close)


def kind_of(path: str) -> str:
    """What kind of file a path is."""
    return next(kind for suffix, kind in KINDS.items() if path.endswith(suffix))


def flip(fs: FaultFS, path: str, position: int, bit: int) -> None:
    """Turn one bit of a file over, behind everybody's back."""
    fs.volume.file(fs.volume.existing(path)).cache[position] ^= 1 << bit


def bits(region: Region, rng: random.Random) -> Iterator[tuple[int, int]]:
    """Every bit of a used region; of unused space a sample."""
    if region.field not in IDLE:
        yield from ((at, bit) for at in range(region.start, region.stop) for bit in range(8))
        return
    size = region.stop - region.start
    for at in rng.sample(range(region.start, region.stop), min(size, UNUSED_TRIED)):
        yield at, rng.randrange(8)


def count_flips(found: Sample, path: str, data: bytes) -> Count:
    """Flip the bits of one file, one at a time."""
    current = found.fs.contents()[f"{FOLDER}/manifest.current"]
    named = not path.endswith(("manifest.1", "manifest.2")) or path[-1:] == str(
        (current or b" ")[0]
    )
    count, rng = Count(), random.Random(f"{SEED} {path}")
    for region in regions(path, data, current=named):
        for position, bit in bits(region, rng):
            flip(found.fs, path, position, bit)
            what = f"{path} {region.field}, byte {position}, bit {bit}"
            count.judge(found, found.fs, region.field, what)
            flip(found.fs, path, position, bit)
    return count


def files_of(found: Sample, case: str) -> dict[str, bytes]:
    """The files of one case: one file, or all in a folder."""
    prefix = f"{FOLDER}/{case}"
    contents = found.fs.contents().items()
    files = {path: data for path, data in contents if data}
    return {p: d for p, d in files.items() if p == prefix or p.startswith(prefix + "/")}


def report(measured: Measured, title: str, count: Count) -> None:
    """Show the counts in the summary of the run."""
    measured(f"{title}: " + "; ".join(line.strip() for line in count.lines()))


@pytest.mark.parametrize(
    ("close", "case"), [(close, case) for close, cases in CASES.items() for case in cases]
)
def test_flipped_bit_is_a_typed_error_or_listed_as_harmless(
    measured: Measured, *, close: bool, case: str
) -> None:
    """Never wrong data, never an untyped error, never a lost record; harmless fields are listed."""
    found = sample(close=close)
    files = files_of(found, case)
    assert files
    for path, data in files.items():
        count = count_flips(found, path, data)
        report(measured, f"{path} of a {'closed' if close else 'killed'} log", count)
        assert count.failures == []
        kind = kind_of(path)
        listed = {field for name, field in HARMLESS if name == kind}
        assert set(count.harmless) <= listed


def test_harmless_fields_are_all_seen() -> None:
    """The list of harmless fields has no entry that the small log does not have."""
    seen = {("manifest", "slot not named")}
    for path, data in sample(close=True).fs.contents().items():
        if data:
            seen |= {(kind_of(path), region.field) for region in regions(path, data)}
    assert set(HARMLESS) <= seen


def test_flipped_bit_never_misleads_a_seek_by_time() -> None:
    """Without an index the segments are walked: the right record, a typed error, or too early.

    Too early means in front of the damage, so that reading on from there meets it.
    """
    found = sample(close=False)
    path = f"{FOLDER}/000000000.q"
    wanted = [(r.timestamp_ns, r.sequence) for r in found.records if r.sequence in (1, 5, 9, 10)]
    data = found.fs.contents()[path] or b""
    places = [p for p in regions(path, data) if p.field not in IDLE]
    for position in range(places[-1].stop):
        flip(found.fs, path, position, position % 8)
        with open_log(found.fs, "r") as log:
            for timestamp_ns, right in wanted:
                try:
                    sequence = log._view.locate_time(timestamp_ns)
                    assert sequence <= right
                    if sequence < right:
                        assert not list(log.read(sequence))
                except HeadwaterError as error:
                    checked(error)
        flip(found.fs, path, position, position % 8)


@pytest.mark.parametrize("name", ["lock", f"readers/{READER}.lease"])
def test_flipped_note_in_a_held_lock_still_says_locked(name: str) -> None:
    """Whatever the note of a lock says: while it is held, the answer is `LockedError`.

    Every bit for the code that reads notes; one bit of every fourth byte for those who use it.
    """
    fs = small_log(close=True).fs
    path = f"{FOLDER}/{name}"
    with open_log(fs) as log, log.reader(READER), open_log(fs, "r") as other:
        note = fs.contents()[path] or b""
        assert parse_note(note)["pid"]
        for position in range(len(note)):
            for bit in range(8):
                turned = note[position] ^ 1 << bit
                assert isinstance(
                    parse_note(note[:position] + bytes([turned]) + note[position + 1 :]), dict
                )
        for position in range(0, len(note), 4):
            flip(fs, path, position, position // 4 % 8)
            with pytest.raises(LockedError):
                open_log(fs) if name == "lock" else other.reader(READER)
            flip(fs, path, position, position // 4 % 8)


def test_flips_in_both_copies_of_a_reader_are_an_error_that_names_the_choices() -> None:
    """Both copies damaged: `CorruptionError` with the path; cleanup deletes nothing and says so."""
    fs = small_log(close=True).fs.fork()
    path = f"{FOLDER}/readers/{READER}.meta"
    flip(fs, path, 30, 3)
    flip(fs, path, 4096 + 30, 3)
    with open_log(fs) as log:
        with pytest.raises(CorruptionError, match="seek") as caught:
            log.reader(READER)
        assert caught.value.path == path
        (info,) = log.readers()
        assert path in (info.error or "")
        assert log.cleanup() == []
        (kept,) = log.plan_cleanup()
        assert not kept.delete
        assert READER in kept.reason


def test_flipped_bit_in_a_prepared_segment_never_reaches_a_record() -> None:
    """A prepared file is zeros; one that is not is made so before it becomes a segment."""
    fs = small_log(close=True).fs.fork()
    with open_log(fs) as log:
        log.append(b"x" * 3000)  # more than half full: the next segment is prepared
        log.upkeep()
    path = f"{FOLDER}/000000002.q"
    assert set(fs.contents()[path] or b"") == {0}
    for position in range(3, 500, 7):
        damaged = fs.fork()
        flip(damaged, path, position, position % 8)
        with open_log(damaged) as log:
            before = log.next_sequence
            log.roll()
            for size in range(1, 20):
                log.append(b"v" * size)
            assert [len(v) for v in log.values(before)] == list(range(1, 20))
