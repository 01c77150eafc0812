"""Verifying a log in parts: some sealed segments each, and one part for all that moves.

The checks are those of `headwater.verify`; here they are only divided. What must hold between the
segments of two parts, chain and sequence, comes back as `Joint`s for the driver to compare.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headwater._limits import MAX_SEGMENT_ID, MIB
from headwater._segment import parse_segment_id
from headwater._verify import Verification
from headwater._verify_files import read_readers
from headwater.errors import CorruptionError, ManifestNotFound, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from headwater._home import Home
    from headwater._manifest import Manifest
    from headwater._types import VerifyReport

#: Sealed segments of about so many bytes are one part.
PART_BYTES: Final = 256 * MIB


class Joint(NamedTuple):
    """How a segment begins and, if it is sealed, how it ends: what its neighbours must agree to."""

    segment_id: int
    prev_chain: int
    base_sequence: int
    chain: int | None
    next_sequence: int | None


class _Some(Verification):
    """Only some of the sealed segments."""

    chosen: Container[int] = ()

    def _check_sealed(self, manifest: Manifest) -> None:
        files = [each for each in manifest.files if parse_segment_id(each.path) in self.chosen]
        super()._check_sealed(manifest._replace(files=files))  # type: ignore[arg-type]

    def manifest(self) -> Manifest:
        """The manifest as it is now."""
        return self._read_manifest()

    def of_range(self, first: int, stop: int) -> VerifyReport:
        """The sealed segments from `first` up to `stop`, and nothing else."""
        self.chosen = range(first, stop)
        self._check_sealed(self.manifest())
        return self._summed(0, 0)

    def of_rest(self) -> VerifyReport:
        """Everything but those: manifest, active segment, readers, inbox.

        Segments that a reader stands in are looked at too, and the last sealed one, which the
        active segment continues.
        """
        files = self.manifest().files
        last = [parse_segment_id(files[len(files) - 1].path) or 0] if len(files) else []
        stands = [r.stored.segment_id for r in read_readers(self.home) if r.stored is not None]
        self.chosen = {*last, *stands, *(number - 1 for number in stands)}
        return self.report()

    def joints(self) -> list[Joint]:
        """The first and the last segment that was looked at."""
        numbers = sorted(self.scans)
        return [self._joint(number) for number in numbers[:1] + numbers[-1:]]

    def _joint(self, number: int) -> Joint:
        scan = self.scans[number]
        begins = (number, scan.header.prev_chain, scan.header.base_sequence)
        if scan.sealed is None:
            return Joint(*begins, None, None)
        return Joint(*begins, scan.sealed.chain, scan.next_sequence)


def log_parts(home: Home, part_bytes: int = PART_BYTES) -> list[tuple[int, int]]:
    """Ranges of sealed segments that are worth a worker of their own; none in a small log.

    None either where the manifest cannot be read: one worker finds out what is left.
    """
    try:
        files = _Some(home).manifest().files
    except (CorruptionError, UnsupportedError, ManifestNotFound):
        return []
    found: list[tuple[int, int]] = []
    first, number, size = None, 0, 0
    for entry in files:
        number = parse_segment_id(entry.path) or 0
        first = number if first is None else first
        size += entry.size
        if size >= part_bytes:
            found.append((first, number + 1))
            first, size = None, 0
    if found and first is not None:
        found.append((first, number + 1))
    return found


def verify_part(home: Home, part: tuple[int, int] | None, *, whole: bool) -> dict[str, Any]:
    """In a worker: a range of sealed segments, or what is beside them (None), or the whole log."""
    some = _Some(home)
    if part is not None:
        report = some.of_range(*part)
    elif whole:
        some.chosen = range(MAX_SEGMENT_ID + 1)
        report = some.report()
    else:
        report = some.of_rest()
    seen_elsewhere = some.chosen if part is None and not whole else ()
    counted = [scan for number, scan in some.scans.items() if number not in seen_elsewhere]
    return {
        "segments": len(counted),
        "records": sum(scan.records for scan in counted),
        "bytes": sum(scan.stop for scan in counted),
        "start": report.start_sequence,
        "stop": report.next_sequence,
        "problems": [problem.message for problem in report.problems],
        "joints": [] if part is None else some.joints(),
    }


def broken_joints(joints: Iterable[Joint]) -> list[str]:
    """Where a segment does not continue the one before it, over the joints of several parts."""
    ordered = sorted(set(joints))
    found = []
    for before, behind in pairwise(ordered):
        if behind.segment_id != before.segment_id + 1 or before.chain is None:
            continue
        if (behind.prev_chain, behind.base_sequence) != (before.chain, before.next_sequence):
            found.append(
                f"segment {behind.segment_id} begins at sequence {behind.base_sequence} with chain "
                f"{behind.prev_chain}, segment {before.segment_id} ends at {before.next_sequence} "
                f"with {before.chain}; run `headwater repair`"
            )
    return found
