"""Every file of a small log, cut at every length, and missing altogether.

As with flipped bits: a typed error that names the file, or harmless and listed with the reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from headwater._positions import parse_stored
from headwater._segment import open_segment, segment_path
from headwater._state import STATE_BYTES, State
from headwater.errors import CorruptionError, ManifestCorrupted, ManifestNotFound
from tests.format.anatomy import regions
from tests.format.damage import Count, judge
from tests.format.samples import FOLDER, READER, SEGMENT_BYTES, open_log, small_log
from tests.format.test_flips import IDLE, kind_of, report

if TYPE_CHECKING:
    from headwater.testing import FaultFS
    from tests.measured import Measured

#: Kind of file -> why it may be shorter, or gone.
HARMLESS: Final = {
    "idx": "derived: the segment is walked instead",
    "lock": "a note for people",
    "lease": "a note for people",
    "state": "derived: a short one is not used, and made anew at open",
    "manifest": "only the copy that the pointer does not name",
}
#: Files whose cuts are judged by the whole procedure; unused space at its ends only.
JUDGED: Final = [
    "000000000.q",
    "000000001.q",
    "000000000.idx",
    "index.meta",
    "lock",
    "manifest.1",
    "manifest.2",
    "manifest.current",
    f"readers/{READER}.lease",
    f"readers/{READER}.meta",
    "state",
]


def cut(fs: FaultFS, path: str, size: int) -> FaultFS:
    """A copy in which one file is shorter."""
    copy = fs.fork()
    file = copy.open(path, write=True)
    file.truncate(size)
    file.close()
    return copy


def lengths(path: str, data: bytes) -> list[int]:
    """Where to cut: everywhere, in unused space at both ends only."""
    found: set[int] = set()
    for start, stop, field in regions(path, data):
        edges = {start, start + 1, stop - 1}
        found |= edges if field in IDLE else set(range(start, stop))
    return sorted(found)


@pytest.mark.parametrize("name", JUDGED)
def test_cut_file_is_a_typed_error_or_listed_as_harmless(name: str, measured: Measured) -> None:
    """No length of any file leads to wrong data, an untyped error, or a lost record (S0-2, D-6)."""
    found = small_log(close=True)
    path = f"{FOLDER}/{name}"
    data = found.fs.contents()[path] or b""
    count = Count()
    for size in lengths(path, data):
        count.judge(found, cut(found.fs, path, size), kind_of(path), f"{path} cut at {size}")
    report(measured, f"{path} cut", count)
    assert count.failures == []
    named = name == "manifest." + str(
        (found.fs.contents()[f"{FOLDER}/manifest.current"] or b" ")[0]
    )
    harmless = kind_of(path) in HARMLESS and not named
    # An empty index.meta is one that was just made: as good as none.
    assert count.harmless.total() == (
        len(lengths(path, data)) if harmless else name == "index.meta"
    )


def test_cut_staged_group_is_set_aside_at_every_length(measured: Measured) -> None:
    """A staged group that is not whole is never appended, and kept with the reason."""
    found = small_log(close=True)
    (path,) = [path for path in found.fs.contents() if path.endswith(".group")]
    size = found.fs.size(path)
    count = Count()
    for length in range(size):
        count.judge(found, cut(found.fs, path, length), "inbox", f"{path} cut at {length}")
    report(measured, f"{path} cut", count)
    assert count.failures == []
    assert count.outcomes == {"set aside": size}


@pytest.mark.parametrize("segment_id", [0, 1])
def test_cut_segment_is_never_mapped_at_any_length(segment_id: int) -> None:
    """A segment shorter than its header says is an error before it is mapped: no SIGBUS (S0-2)."""
    fs = small_log(close=True).fs.fork()
    path = segment_path(FOLDER, segment_id)
    for size in reversed(range(SEGMENT_BYTES)):
        file = fs.open(path, write=True)
        file.truncate(size)
        file.close()
        with pytest.raises(CorruptionError, match=path):
            open_segment(fs, FOLDER, segment_id)


def test_cut_reader_file_is_never_taken_for_an_older_form() -> None:
    """Shorter at any length it is damaged, also at 8 and 16 bytes, the older forms (S0-4, S0-5)."""
    path = f"{FOLDER}/readers/{READER}.meta"
    data = small_log(close=True).fs.contents()[path] or b""
    assert parse_stored(data, path).sequence == 4
    for size in range(len(data)):
        with pytest.raises(CorruptionError, match=path):
            parse_stored(data[:size], path)


def test_cut_state_is_not_used_at_any_length() -> None:
    """A `state` that is too short to be mapped whole is as good as none."""
    fs = small_log(close=True).fs.fork()
    with open_log(fs, "r") as log:
        log_id = log.log_id
    for size in reversed(range(STATE_BYTES)):
        file = fs.open(f"{FOLDER}/state", write=True)
        file.truncate(size)
        file.close()
        assert State.open(fs, f"{FOLDER}/state", log_id) is None


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("000000000.q", CorruptionError),
        ("000000001.q", CorruptionError),
        ("manifest.current", ManifestNotFound),
        ("manifest.1", ManifestCorrupted),
        ("manifest.2", None),
        ("manifest.lock", None),
        ("index.meta", None),
        ("000000000.idx", None),
        ("state", None),
        ("lock", None),
    ],
)
def test_missing_file_is_a_typed_error_or_harmless(
    name: str, error: type[Exception] | None
) -> None:
    """A missing segment or named manifest is an error (S0-17, S4-23, D-5, D-6), the rest is not."""
    found = small_log(close=True)
    assert found.fs.contents()[f"{FOLDER}/manifest.current"] == b"\x01"
    copy = found.fs.fork()
    copy.unlink(f"{FOLDER}/{name}")
    outcome = judge(found, copy)
    if error is None:
        assert outcome.harmless
        return
    for seen in (outcome.reading, outcome.writing):
        assert isinstance(seen, error)
        assert f"{FOLDER}/{name}" in str(seen)
