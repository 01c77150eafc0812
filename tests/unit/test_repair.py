"""`repair` makes a log whole: it loses only what is damaged, and no sequence comes back."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

import headwater
from headwater._crc import crc32
from headwater._repair import repair
from headwater._repair_build import seed_that_leads_to
from headwater._verify import verify
from headwater.errors import (
    CorruptionError,
    LockedError,
    NotALogError,
    SequenceExpiredError,
    StorageError,
    UnsupportedManifestVersion,
)
from headwater.testing import Fault, FaultFS
from tests.unit.mending import (
    COMMITTED,
    DAMAGE,
    LAST,
    RECORDS,
    Site,
    body,
    both_copies,
    sample,
    several_places,
)

if TYPE_CHECKING:
    from pathlib import Path

    from headwater._types import RepairReport


def _mended(site: Site) -> RepairReport:
    """Repair, and check everything that must hold after any repair."""
    before = site.readable()
    report = repair(site.home())
    checked = verify(site.home())
    assert checked.ok, (checked.problems, report)
    assert site.readable() == before  # in the log or in the backup
    assert repair(site.home()).actions == ()
    for record in site.records():
        assert before[record.sequence] == record
    with site.open() as log:
        assert log.append(b"new") >= RECORDS
    return report


@pytest.mark.parametrize("name", DAMAGE)
def test_repair_of_damage_leaves_a_sound_log(name: str) -> None:
    """`verify` is clean, the log goes on, no sequence comes back, nothing whole is lost."""
    damage, cost = DAMAGE[name]
    site = sample()
    damage(site)
    assert not verify(site.home()).ok or name == "no manifest at all"
    report = _mended(site)
    assert report.changed
    if cost is not None:
        assert report.records_lost == cost
    assert bool(report.skipped) == bool(cost) or cost in (0, None)


@pytest.mark.parametrize("name", DAMAGE)
def test_dry_run_says_the_same_and_touches_nothing(name: str) -> None:
    """`dry_run` reports the actions of the real run; not one byte changes."""
    site = sample()
    DAMAGE[name][0](site)
    before = site.fs.contents()
    operations = len(site.fs.operations)
    planned = repair(site.home(), dry_run=True)
    assert site.fs.contents() == before
    assert len(site.fs.operations) == operations
    done = repair(site.home())
    assert (planned.actions, planned.records_lost, planned.skipped) == (
        done.actions,
        done.records_lost,
        done.skipped,
    )
    assert planned.backup is None


def test_repair_of_a_sound_log_does_nothing() -> None:
    """Nothing to do: no action, no backup folder, no change of a file of the log."""
    site = sample()
    before = {path: data for path, data in site.fs.contents().items() if "lock" not in path}
    report = repair(site.home())
    assert not report.changed
    assert report.backup is None
    assert before.items() <= site.fs.contents().items()
    assert len(site.fs.contents()) == len(before) + sum("lock" in p for p in site.fs.contents())


def test_records_in_front_of_damage_are_a_log_of_their_own() -> None:
    """What leaves the log can be opened, read and verified in the backup folder."""
    site = sample()
    several_places(site)
    report = repair(site.home())
    assert report.backup is not None
    assert [record.sequence for record in site.records()] == list(range(70, RECORDS))
    for start, stop in ((0, 9), (10, 30), (31, 69)):
        folder = f"{report.backup}/records-{start}-{stop}"
        assert verify(site.home(folder)).ok
        assert [record.sequence for record in site.records(folder)] == list(range(start, stop))


def test_backup_keeps_the_damaged_files_as_they_were() -> None:
    """Every changed file is in the backup, under its name, byte by byte."""
    site = sample()
    body(1, 69)(site)
    before = site.fs.contents()
    report = repair(site.home())
    assert report.backup is not None
    after = site.fs.contents()
    for name in ("000000001.q", "manifest.1", "manifest.2", "manifest.current"):
        assert after[f"{report.backup}/{name}"] == before[f"/log/{name}"]


def test_reader_behind_the_damage_keeps_its_sequence() -> None:
    """Frames that moved take a reader's position along; its sequence stays."""
    site = sample()
    body(1, 58)(site)
    _mended(site)
    with site.open() as log, log.reader("billing") as reader:
        assert reader.sequence == COMMITTED
        assert next(iter(reader)).sequence == COMMITTED


def test_reader_in_front_of_the_damage_is_not_moved() -> None:
    """A reader whose records left the log is told so when it is opened, never skipped ahead."""
    site = sample()
    body(1, 69)(site)
    _mended(site)
    with site.open() as log, pytest.raises(SequenceExpiredError, match="70"):
        log.reader("billing")


def test_reader_with_two_damaged_copies_starts_again() -> None:
    """Reset to the start, and said so: at least once is the contract."""
    site = sample()
    both_copies(site)
    report = _mended(site)
    assert any("billing" in action for action in report.actions)
    with site.open() as log, log.reader("billing") as reader:
        assert reader.sequence == 0


def test_producer_table_survives_a_split_of_the_active_segment() -> None:
    """A producer's last batch, known from frames that left the log, still counts."""
    site = sample()
    body(LAST, RECORDS - 3)(site)  # the last group stands behind it
    _mended(site)
    with site.open() as log:
        batch = RECORDS // 6 - 1
        first = log.append_many([b"a%d" % batch, b"b"], producer="etl", batch=batch)
        assert first == range(RECORDS - 2, RECORDS)


def test_damaged_staged_group_is_moved_aside() -> None:
    """The inbox holds only groups that can be read."""
    site = sample()
    site.fs.make_dir("/log/inbox")
    site.write("inbox/7.group", 0, b"garbage")
    report = _mended(site)
    assert site.fs.contents()[f"{report.backup}/inbox/7.group"] == b"garbage"


def test_missing_index_is_built_again() -> None:
    """A sparse index is derived: it comes back from its segment."""
    site = sample()
    good = site.read("000000001.idx")
    site.fs.unlink("/log/000000001.idx")
    assert repair(site.home()).actions == ("build 000000001.idx anew",)
    assert site.read("000000001.idx") == good


def test_segments_that_retention_had_removed_do_not_come_back() -> None:
    """A good manifest says where the log starts; older files are not part of it."""
    site = sample()
    left = site.read(0)
    with site.open() as log:
        with log.reader("billing") as reader:
            list(reader)
            reader.commit(sync=True)
        assert log.cleanup() == [0, 1]
    site.write(0, 0, left)
    site.flip("index.meta", 0)
    repair(site.home())
    assert next(record.sequence for record in site.records()) > 0


def test_repair_while_the_log_is_written_is_refused() -> None:
    """It needs the log for itself, also to look."""
    site = sample()
    with site.open():
        for dry_run in (True, False):
            with pytest.raises(LockedError):
                repair(site.home(), dry_run=dry_run)


def test_repair_of_a_reader_in_use_is_refused_before_anything_changes() -> None:
    """A live reader would go on writing to a file that was replaced."""
    site = sample()
    with headwater._log.open_home(site.home(), mode="r") as log, log.reader("billing"):
        both_copies(site)
        before = {p: d for p, d in site.fs.contents().items() if not p.endswith("lock")}
        with pytest.raises(LockedError, match="billing"):
            repair(site.home())
        assert before.items() <= site.fs.contents().items()


def test_repair_of_a_newer_manifest_is_refused() -> None:
    """Too new is never corrupt."""
    site = sample()
    site.write(f"manifest.{site.read('manifest.current')[0]}", 4, b"\x02")
    with pytest.raises(UnsupportedManifestVersion):
        repair(site.home())


def test_repair_without_any_segment_says_that_nothing_is_left() -> None:
    """A manifest alone brings no record back."""
    site = sample()
    for number in range(4):
        site.fs.unlink(site.path(number))
    with pytest.raises(CorruptionError, match="nothing was changed"):
        repair(site.home())


def test_repair_of_something_else_is_refused() -> None:
    """A folder that is not a log stays as it is."""
    with pytest.raises(NotALogError):
        repair(Site(FaultFS(), "/nothing").home())
    site = Site()
    site.fs.make_dir("/log")
    with pytest.raises(NotALogError):
        repair(site.home())


def test_repair_on_a_disk_that_fails_ends_with_an_error_and_can_be_repeated() -> None:
    """EIO at any operation is a typed error; the next repair ends well."""
    site = sample()
    body(1, 69)(site)
    full = site.copy()
    repair(full.home())
    for step in range(len(full.fs.operations)):
        run = site.copy()
        run.fs.fail_at[step] = Fault.EIO
        try:
            repair(run.home())
        except StorageError:
            run.fs.heal()
            run.fs = run.fs.fork()
            repair(run.home())
        assert verify(run.home()).ok, step


@pytest.mark.parametrize("seed", range(60))
def test_repair_of_random_damage_ends_well_or_refuses(seed: int) -> None:
    """Flips, zeros, garbage, cuts and missing files, several at once, by a seed."""
    rng = random.Random(seed)
    site = sample(closed=rng.random() < 0.5)
    names = [
        path.removeprefix("/log/")
        for path, data in site.fs.contents().items()
        if data and "lock" not in path
    ]
    for name in rng.sample(names, rng.choice((1, 1, 2, 3))):
        data = site.read(name)
        place = rng.randrange(len(data.rstrip(b"\0")) or 1)
        length = min(rng.randrange(1, 600), len(data) - place)
        rng.choice(
            (
                lambda n=name, p=place: site.flip(n, p),
                lambda n=name, p=place, z=length: site.write(n, p, bytes(z)),
                lambda n=name, p=place, z=length: site.write(n, p, rng.randbytes(z)),
                lambda n=name, p=place: site.cut(n, p),
                lambda n=name: site.fs.unlink(site.path(n)),
            )
        )()
    try:
        repair(site.home(), dry_run=True)
    except (UnsupportedManifestVersion, CorruptionError):
        return  # no segment is left, or the version is newer
    _mended(site)


@pytest.mark.parametrize("size", [0, 4, 40, 4000])
def test_seed_that_leads_to_a_chain_does(size: int) -> None:
    """For any words and any chain there is one start value, and it is found."""
    rng = random.Random(size)
    words, chain = rng.randbytes(size), rng.getrandbits(32)
    assert crc32(words, seed_that_leads_to(chain, words)) == chain


def test_public_verify_and_repair_work_on_a_folder(tmp_path: Path) -> None:
    """The two public functions, on a real disk."""
    path = tmp_path / "log"
    with headwater.open(path, segment_bytes=1 << 16) as log:
        for number in range(2000):
            log.append(b"%08d" % number * 10)
    assert headwater.verify(path).ok
    file = path / "000000000.q"
    data = bytearray(file.read_bytes())
    data[30_000] ^= 1
    file.write_bytes(data)
    assert not headwater.verify(path).ok
    seen: list[tuple[int, int]] = []
    report = headwater.repair(path, progress=lambda done, total: seen.append((done, total)))
    assert seen
    assert report.records_lost == 1
    assert headwater.verify(path).ok
    with headwater.open(path) as log:
        assert log.next_sequence == 2000
        assert log.start_sequence == sum(1 for _ in range(log.start_sequence))
    assert report.backup is not None
