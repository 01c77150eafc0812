"""The exhibits: defects that were made on purpose, each of which one named test must notice."""

# ruff: noqa: ANN401 - a defect goes around the types
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import headwater._cursor as cursor
import headwater._frame as frame
import headwater._recovery as recovery
import headwater._repair_survey as repair_survey
import headwater._retention as retention
import headwater._roll as roll
import headwater._segment as segment
import headwater._slots as slots
import headwater._startup as startup
import headwater._walk as walk
from headwater._durability import Syncer
from headwater._frame import MORE
from headwater._manifest_store import ManifestWriter
from headwater._repair import Repair
from headwater._writer import Writer
from headwater.testing import FaultFS
from headwater.testing._volume import Volume

if TYPE_CHECKING:
    import pytest

    from headwater._recovery import Recovered
    from headwater._retention_plan import Facts


def skip_a_folder_sync(patch: pytest.MonkeyPatch) -> None:
    """Names of new files are never made durable."""
    patch.setattr(FaultFS, "sync_dir", lambda _self, _path: None)


def ack_before_sync(patch: pytest.MonkeyPatch) -> None:
    """An append returns without waiting for the disk."""
    patch.setattr(Syncer, "wait", lambda _self, _sequence: None)


def skip_the_body_crc(patch: pytest.MonkeyPatch) -> None:
    """A header that checks out is enough."""
    for module in (frame, walk, cursor):
        patch.setattr(module, "read_frame", frame.read_header)


def reset_the_sequence(patch: pytest.MonkeyPatch) -> None:
    """Recovery forgets to count what lies behind the manifest's write position."""
    honest = recovery.recover

    def forgetful(opened: Any, manifest: Any, *rest: Any, **options: Any) -> Recovered:
        found = honest(opened, manifest, *rest, **options)
        return found._replace(sequence=manifest.next_sequence)

    patch.setattr(startup, "recover", forgetful)


def delete_one_segment_too_many(patch: pytest.MonkeyPatch) -> None:
    """Cleanup takes the slowest reader's own segment as well."""
    honest = retention.gather

    def generous(*arguments: Any, **options: Any) -> Facts:
        facts = honest(*arguments, **options)
        return facts._replace(floors={name: floor + 1 for name, floor in facts.floors.items()})

    patch.setattr(retention, "gather", generous)


def commit_word_first(patch: pytest.MonkeyPatch) -> None:
    """The first frame of a group is published before the others are there."""

    def hasty(self: Writer, bodies: list[Any]) -> None:
        self._make_room(sum(b.space for b in bodies), sum(b.records for b in bodies))
        position, sequence = self.position, self.sequence
        for body in bodies:
            flags = body.flags if body is bodies[-1] else body.flags | MORE
            self._store(position, sequence, body, flags, publish=True)
            self._advance(body, position, body.space, word=self.words[position + 36 >> 2])
            self.quads[segment_next()] = self.sequence
            position, sequence = self.position, self.sequence

    patch.setattr(Writer, "_place_group", hasty)


def segment_next() -> int:
    """Number of the word that says how far records are published."""
    from headwater._state import NEXT  # noqa: PLC0415 - one name, one place

    return NEXT


def zero_only_the_torn_frame(patch: pytest.MonkeyPatch) -> None:
    """What stands behind the first broken frame is left where it is."""
    honest = recovery.recover

    def tidy(*arguments: Any, **options: Any) -> Recovered:
        found = honest(*arguments, **options)
        return found._replace(torn_stop=min(found.torn_stop, found.position + 512))

    patch.setattr(startup, "recover", tidy)


def skip_the_rewrite(patch: pytest.MonkeyPatch) -> None:
    """Recovery trusts the page cache: what it shows is not written again."""

    def trusting(opened: Any, found: Recovered, _watermark: int) -> None:
        opened.file.write(found.position, bytes(found.torn_stop - found.position))
        opened.file.datasync()

    patch.setattr(startup, "_settle", trusting)


def publish_what_came_during_the_sync(patch: pytest.MonkeyPatch) -> None:
    """The durable end is taken after the sync instead of before."""

    def late(self: Any, *, sync_watermark: bool = False) -> None:
        self._owner.capture().segment.file.datasync()
        self.publish(self._owner.capture())
        if sync_watermark:
            self._watermark.sync()
        self._step_down()

    patch.setattr(Syncer, "_lead", late)


def unlink_before_the_manifest(patch: pytest.MonkeyPatch) -> None:
    """Files go first; the manifest names them a little longer."""
    honest = ManifestWriter.change

    def late(self: Any, apply: Any) -> Any:
        def unlink_first(manifest: Any) -> Any:
            changed = apply(manifest)
            gone = len(manifest.files) - len(changed.files)
            for entry in list(manifest.files)[: max(gone, 0)]:
                self._fs.unlink(f"{self._folder}/{entry.path}")
            return changed

        return honest(self, unlink_first)

    patch.setattr(ManifestWriter, "change", late)


def ignore_an_unreadable_reader(patch: pytest.MonkeyPatch) -> None:
    """A reader whose position cannot be read is treated as if it were not there."""
    honest = retention.gather

    def careless(*arguments: Any, **options: Any) -> Facts:
        return honest(*arguments, **options)._replace(unreadable={})

    patch.setattr(retention, "gather", careless)


def drop_nothing(patch: pytest.MonkeyPatch) -> None:
    """The file system of the tests forgets nothing in a power cut."""
    honest = Volume.after_power_cut

    def kind(self: Volume, seed: Any, _model: Any) -> Volume:
        return honest(self, seed, "keep")

    patch.setattr(Volume, "after_power_cut", kind)


def overwrite_without_pointing_again(patch: pytest.MonkeyPatch) -> None:
    """The other slot is overwritten although the disk may still point to it."""

    def bold(self: Any, current: int, _old: bytes, data: bytes) -> None:
        self._overwrite(3 - current, data)
        self._point(3 - current)

    patch.setattr(slots.PointerSlots, "replace", bold)


def open_without_settling_the_manifest(patch: pytest.MonkeyPatch) -> None:
    """The log goes on in a segment whose name only the cache knows."""
    patch.setattr(ManifestWriter, "settle", ManifestWriter.read_latest)


def alternate_slots_in_plain_commits(patch: pytest.MonkeyPatch) -> None:
    """Every commit changes places, so the second one overwrites the durable copy."""
    honest = slots.SlotFile.write

    def flipping(self: Any, payload: bytes, *, sync: bool = False, **options: Any) -> bool:
        written = honest(self, payload, sync=sync, **options)
        if written and not sync:
            self._target = 1 - self._target
        return written

    patch.setattr(slots.SlotFile, "write", flipping)


def forget_the_name_of_a_reader(patch: pytest.MonkeyPatch) -> None:
    """Opening a reader does not make its name durable."""
    honest = FaultFS.sync_dir

    def once(self: FaultFS, path: str) -> None:
        renamed = self.operations and self.operations[-1].kind == "rename"
        if path != "/log/readers" or renamed:
            honest(self, path)

    patch.setattr(FaultFS, "sync_dir", once)


def leave_the_mark_unsynced(patch: pytest.MonkeyPatch) -> None:
    """The producer table of a new segment is stored after its sync."""
    honest = segment.create_segment

    def late(fs: Any, root: str, header: Any, *, first: bytes = b"", wipe: int = 0) -> Any:
        made = honest(fs, root, header, wipe=wipe)
        if first:
            made.file.write(segment.FIRST_FRAME, first)
        return made

    patch.setattr(roll, "create_segment", late)


def move_frames_below_the_watermark(patch: pytest.MonkeyPatch) -> None:
    """Repair moves frames while watermark and manifest still speak of their old places."""
    patch.setattr(Repair, "_retract_places", lambda _self, _found, _number: None)


def repair_on_what_may_not_be_durable(patch: pytest.MonkeyPatch) -> None:
    """Repair goes on from what the cache shows of the one before."""
    patch.setattr(Repair, "_settle", lambda _self: None)


def repair_without_a_backup(patch: pytest.MonkeyPatch) -> None:
    """Repair changes files of which there is no copy."""
    patch.setattr(Repair, "save", lambda _self, _path: None)


def repair_to_the_last_whole_record(patch: pytest.MonkeyPatch) -> None:
    """A log whose end is lost goes on with the numbers that were lost."""
    patch.setattr(repair_survey, "_claimed", lambda _found, end: end)
    patch.setattr(repair_survey, "_look_behind", lambda _found, _file: None)
