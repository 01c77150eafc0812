"""What damage to one file leads to: a typed error that names the place, or nothing at all.

`judge` opens a damaged log in both modes, reads everything in every way there is, goes on writing,
and opens it again. Whatever is not an error must be exactly what the undamaged log gives.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from headwater._verify import verify
from headwater.errors import HeadwaterError
from tests.format.samples import BEGIN_NS, COMMITTED, FOLDER, READER, Sample, home_on, open_log

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headwater import Record
    from headwater.testing import FaultFS

#: Where a second opening finds the clock: a day later.
LATER_NS: Final = BEGIN_NS + 86_400 * 10**9
MORE: Final = b"one more"
#: What may change when a log is opened and found damaged.
VOLATILE: Final = ("lock", "state", ".lease", "manifest.lock")


class Outcome(NamedTuple):
    """What reading and what writing led to, None where there was no error; `verify` agrees."""

    reading: HeadwaterError | None
    writing: HeadwaterError | None
    #: The staged group was set aside with a reason.
    refused: bool
    #: `verify` reported a problem.
    verified: bool = False

    @property
    def harmless(self) -> bool:
        """True when nobody noticed anything."""
        return self.reading is None and self.writing is None and not self.refused


def judge(sample: Sample, damaged: FaultFS) -> Outcome:
    """Try a damaged log in both modes; fails on anything but an error or the right answers."""
    outcome = Outcome(_reading(sample, damaged), *_writing(sample, damaged.fork()))
    report = verify(home_on(damaged, LATER_NS))
    if outcome.writing is not None or outcome.refused:
        assert report.problems, "verify has found nothing"
    for problem in report.problems:
        assert FOLDER in problem.path
    return outcome._replace(verified=not report.ok)


def _reading(sample: Sample, fs: FaultFS) -> HeadwaterError | None:
    before = fs.contents()
    try:
        with open_log(fs, "r") as log:
            assert list(log.read()) == sample.records
            for start in (COMMITTED, sample.records[-1].sequence):
                assert list(log.read(start)) == sample.records[start:]
            for record in sample.records[-3:]:
                found = log._view.locate_time(record.timestamp_ns)
                assert found == _first_at(sample.records, record.timestamp_ns)
            (reader,) = log.readers()
            if reader.error is None:
                assert reader.sequence in (COMMITTED - 2, COMMITTED)
            else:
                assert FOLDER in reader.error
    except HeadwaterError as error:
        return checked(error)
    finally:
        assert fs.contents() == before, "reading has changed something"
    return None


def _writing(sample: Sample, fs: FaultFS) -> tuple[HeadwaterError | None, bool]:
    before = fs.contents()
    try:
        log = open_log(fs, start=LATER_NS)
    except HeadwaterError as error:
        changed = {path for path, data in fs.contents().items() if before.get(path) != data}
        assert not [path for path in changed if not path.endswith(VOLATILE)]
        return checked(error), False
    try:
        with log:
            refused = _refused(fs)
            staged = [] if refused else sample.staged
            expected = [*values(sample.records), *staged]
            assert list(log.values()) == expected
            assert log.cleanup() == []
            assert log.append(MORE) == len(expected)
            with log.reader(READER) as reader:
                first, *rest = reader.read_batch(100)
                assert first.sequence in (COMMITTED - 2, COMMITTED)
                assert values([first, *rest]) == [*expected[first.sequence :], MORE]
        with open_log(fs, start=LATER_NS) as again:
            assert list(again.read())[: len(sample.records)] == sample.records
            assert list(again.values()) == [*expected, MORE]
            assert again.next_sequence == again.durable_sequence == len(expected) + 1
            assert again.producers() == ({"etl": 7} if refused else {"etl": 7, "other": 1})
    except HeadwaterError as error:
        return checked(error), False
    return None, refused


def _first_at(records: list[Record], timestamp_ns: int) -> int:
    return next(r.sequence for r in records if r.timestamp_ns >= timestamp_ns)


def _refused(fs: FaultFS) -> bool:
    """True when the staged group was set aside; it is kept, with a reason that names it."""
    contents = fs.contents()
    found = [path for path in contents if path.endswith(".refused")]
    for path in found:
        reason = json.loads(contents[path.removesuffix("refused") + "reason"] or b"")["reason"]
        assert path.removesuffix("refused") in reason
    return bool(found)


def values(records: list[Record]) -> list[bytes]:
    """The values of records."""
    return [record.value for record in records]


def checked(error: HeadwaterError) -> HeadwaterError:
    """An error that says where: its text, or a note, names a file of the log, or the log."""
    text = " ".join([str(error), *getattr(error, "__notes__", [])])
    assert FOLDER in text, f"{type(error).__name__} names no file: {text}"
    return error


class Count:
    """How many damages led to what; shown at the end of the run."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.harmless: Counter[str] = Counter()
        self.failures: list[str] = []

    def judge(self, sample: Sample, damaged: FaultFS, field: str, what: str) -> None:
        """Judge one damage and count it."""
        try:
            outcome = judge(sample, damaged)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
            self.failures.append(f"{what}: {type(error).__name__}: {error}")
            return
        if outcome.harmless:
            self.harmless[field] += 1
        self.outcomes[self._name(outcome)] += 1
        self.outcomes["found by verify"] += outcome.verified

    @staticmethod
    def _name(outcome: Outcome) -> str:
        if outcome.refused:
            return "set aside"
        error = outcome.writing or outcome.reading
        if error is None:
            return "harmless"
        mode = {(True, True): "both modes", (True, False): "mode r"}.get(
            (outcome.reading is not None, outcome.writing is not None), "mode a"
        )
        return f"{type(error).__name__} in {mode}"

    def lines(self) -> Iterator[str]:
        """The counts, for a person."""
        found = self.outcomes.pop("found by verify", 0)
        counts = dict(self.outcomes.most_common())
        yield f"{self.outcomes.total()} damages, {found} found by verify: {counts}"
        yield from (f"  harmless {field}: {number}" for field, number in self.harmless.items())
