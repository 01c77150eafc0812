"""The file system that crashes on purpose: what is durable when.

The proof that no crash loses a record is only as good as this file system, so each promise of its
model has a test that would notice if the model became kinder than a disk.
"""

from __future__ import annotations

import pytest

from headwater.fs import replace_file
from headwater.testing import FaultFS
from tests.unit.crashing import SEEDS, fs, make_durable, outcomes

__all__ = ["fs"]  # a fixture, found by its name


class TestNames:
    """A name is durable after the sync of its folder, and not before."""

    def test_new_file_before_the_folder_sync_may_be_lost(self, fs: FaultFS) -> None:
        """The sync of a file does not make its name durable; the sync of the folder does."""
        file = fs.open("/log/a", write=True, exclusive=True)
        file.write(0, b"data")
        file.sync()
        assert outcomes(fs.fork(), "/log/a") == {None, b"data"}
        assert "/log/a" not in fs.fork().after_power_crash(0, "drop").contents()
        fs.sync_dir("/log")
        assert outcomes(fs, "/log/a") == {b"data"}

    def test_named_file_never_synced_may_be_empty_or_partial(self, fs: FaultFS) -> None:
        """The sync of a folder does not make the bytes of its files durable."""
        file = fs.open("/log/a", write=True, exclusive=True)
        file.write(0, b"a" * 600)
        file.write(600, b"b" * 600)
        fs.sync_dir("/log")
        found = outcomes(fs, "/log/a")
        assert None not in found
        assert {b"", bytes(1200), b"a" * 600, b"a" * 600 + b"b" * 600} <= found
        assert {len(content or b"") for content in found} == {0, 600, 1200}

    def test_new_folder_before_its_parents_sync_takes_its_files_along(self, fs: FaultFS) -> None:
        """A file is only as durable as every folder above it."""
        fs.make_dir("/log/x/y")
        make_durable(fs, "/log/x/y/a", b"data")
        assert outcomes(fs.fork(), "/log/x/y/a") == {None, b"data"}
        fs.sync_dir("/log/x")
        assert outcomes(fs.fork(), "/log/x/y/a") == {None, b"data"}
        fs.sync_dir("/log")
        assert outcomes(fs, "/log/x/y/a") == {b"data"}

    def test_removed_file_may_come_back_until_the_folder_sync(self, fs: FaultFS) -> None:
        """An unlink that is not durable can be undone by a power cut."""
        make_durable(fs, "/log/a", b"data").close()
        fs.unlink("/log/a")
        assert outcomes(fs.fork(), "/log/a") == {None, b"data"}
        fs.sync_dir("/log")
        assert outcomes(fs, "/log/a") == {None}

    def test_removed_folder_may_come_back_until_the_folder_sync(self, fs: FaultFS) -> None:
        """The same holds for folders."""
        fs.make_dir("/log/x")
        fs.sync_dir("/log")
        fs.remove_dir("/log/x")
        assert {fs.fork().after_power_crash(s).exists("/log/x") for s in SEEDS} == {False, True}
        fs.sync_dir("/log")
        assert not fs.after_power_crash(0).exists("/log/x")

    def test_rename_shows_the_old_or_the_new_file(self, fs: FaultFS) -> None:
        """A rename happens as a whole: the target is never missing, the source goes with it."""
        make_durable(fs, "/log/old", b"old")
        make_durable(fs, "/log/new", b"new")
        fs.rename("/log/new", "/log/old")
        found = [fs.after_power_crash(seed).contents() for seed in SEEDS]
        pairs = {(content["/log/old"], content.get("/log/new")) for content in found}
        assert pairs == {(b"old", b"new"), (b"new", None)}

    def test_rename_of_a_lost_name_does_not_happen(self, fs: FaultFS) -> None:
        """What builds on a dropped change is dropped: only prefixes per name are possible."""
        for content in (b"one", b"two"):
            file = fs.open("/log/a.tmp", write=True, create=True)
            file.write(0, content)
            file.sync()
            file.close()
            fs.rename("/log/a.tmp", "/log/a")
        assert outcomes(fs, "/log/a") == {None, b"one", b"two"}

    def test_chain_of_renames_keeps_exactly_one_name(self, fs: FaultFS) -> None:
        """A rename whose source was never renamed to does not happen on its own."""
        make_durable(fs, "/log/x", b"data")
        fs.rename("/log/x", "/log/y")
        fs.rename("/log/y", "/log/z")
        found = {tuple(fs.after_power_crash(seed).list("/log")) for seed in SEEDS}
        assert found == {("x",), ("y",), ("z",)}

    def test_names_are_lost_independently(self, fs: FaultFS) -> None:
        """Of two new files either may be lost: the second does not vouch for the first."""
        for name in "ab":
            fs.open(f"/log/{name}", write=True, exclusive=True)
        found = {tuple(fs.after_power_crash(seed).list("/log")) for seed in SEEDS}
        assert found == {(), ("a",), ("b",), ("a", "b")}

    def test_rename_between_folders_needs_both_syncs(self, fs: FaultFS) -> None:
        """Before any sync it is one change; after the sync of one folder the other half is open."""
        fs.make_dir("/log/from")
        fs.make_dir("/log/to")
        fs.sync_dir("/log")
        make_durable(fs, "/log/from/a", b"data")
        fs.rename("/log/from/a", "/log/to/a")

        def places(image: FaultFS) -> set[tuple[bool, bool]]:
            crashed = (image.after_power_crash(seed) for seed in SEEDS)
            return {(c.exists("/log/from/a"), c.exists("/log/to/a")) for c in crashed}

        assert places(fs.fork()) == {(True, False), (False, True)}
        half = fs.fork()
        half.sync_dir("/log/from")
        assert places(half) == {(False, False), (False, True)}
        half = fs.fork()
        half.sync_dir("/log/to")
        assert places(half.fork()) == {(True, True), (False, True)}
        half.sync_dir("/log/from")
        assert places(half) == {(False, True)}

    def test_replaced_file_is_old_or_new_at_every_operation(self, fs: FaultFS) -> None:
        """`replace_file` keeps its promise under every power cut at every moment."""
        replace_file(fs, "/log/a", b"old" * 300)
        before = len(fs.operations)
        replace_file(fs, "/log/a", b"new" * 300)
        found: dict[int, set[bytes | None]] = {}
        for done, image in FaultFS.moments(fs.journal):
            if done >= before:
                found[done] = outcomes(image, "/log/a")
        last = len(fs.operations)
        assert found.pop(last) == {b"new" * 300}
        assert found.pop(last - 1) == {b"old" * 300, b"new" * 300}
        assert set.union(*found.values()) == {b"old" * 300}

    def test_replace_file_without_syncs_survives_the_death_of_the_process(
        self, fs: FaultFS
    ) -> None:
        """Without `sync` nothing is synced, and a crash of the process alone leaves old or new."""
        replace_file(fs, "/log/a", b"old")
        done = len(fs.operations)
        replace_file(fs, "/log/a", b"new", sync=False)
        assert not [o for o in fs.operations[done:] if "sync" in o.kind]
        for moment, image in FaultFS.moments(fs.journal):
            if moment >= done:
                assert image.fork().contents()["/log/a"] in (b"old", b"new")


class TestBytes:
    """Bytes are durable after a sync, per sector, and are torn and reordered before it."""

    def test_unsynced_store_is_kept_lost_or_torn(self, fs: FaultFS) -> None:
        """A store within a sector reaches the disk whole, not at all, or cut at 8 bytes."""
        file = make_durable(fs, "/log/a", b"o" * 512)
        file.write(4, b"n" * 20)
        whole = b"o" * 4 + b"n" * 20 + b"o" * 488
        torn = {whole[:cut] + b"o" * (512 - cut) for cut in (8, 16)} | {
            b"o" * cut + whole[cut:] for cut in (8, 16)
        }
        assert outcomes(fs, "/log/a") == {b"o" * 512, whole} | torn

    def test_large_store_is_torn_in_any_of_its_sectors(self, fs: FaultFS) -> None:
        """Every sector of a store has its own tear, the last one as likely as the first."""
        file = make_durable(fs, "/log/a", b"o" * 20480)
        file.write(0, b"n" * 20480)
        images = [fs.after_power_crash(seed).open("/log/a") for seed in SEEDS]
        torn = [sum(len(set(image.read(at, 512))) == 2 for image in images) for at in (0, 19968)]
        assert min(torn) > 8

    @pytest.mark.parametrize(("face", "index"), [("words", 3), ("quads", 3)])
    def test_unsynced_word_is_never_torn(self, fs: FaultFS, face: str, index: int) -> None:
        """One machine word is there or not."""
        file = make_durable(fs, "/log/a", bytes(512))
        mapping = file.map(512, writable=True)
        getattr(mapping, face)[index] = 0xA5A5A5A5
        width = 4 if face == "words" else 8
        stored = bytes(index * width) + (0xA5A5A5A5).to_bytes(width, "little")
        assert outcomes(fs, "/log/a") == {bytes(512), stored + bytes(512 - len(stored))}

    def test_later_store_in_a_sector_does_not_come_alone(self, fs: FaultFS) -> None:
        """Within a sector the stores reach the disk in order."""
        mapping = make_durable(fs, "/log/a", bytes(512)).map(512, writable=True)
        for index in range(4):
            mapping.words[index] = 1
        found = {(content or b"")[0:16:4] for content in outcomes(fs, "/log/a")}
        assert found == {bytes([1] * n + [0] * (4 - n)) for n in range(5)}

    def test_later_sector_may_come_alone(self, fs: FaultFS) -> None:
        """Sectors reach the disk in any order: store order proves nothing across them."""
        mapping = make_durable(fs, "/log/a", bytes(1024)).map(1024, writable=True)
        mapping.words[0] = 1
        mapping.words[128] = 1
        found = {(content or b"")[::512] for content in outcomes(fs, "/log/a")}
        assert found == {b"\0\0", b"\0\1", b"\1\0", b"\1\1"}

    @pytest.mark.parametrize("sync", ["sync", "datasync"])
    def test_synced_store_is_never_lost(self, fs: FaultFS, sync: str) -> None:
        """After a sync through any handle every store before it is durable, also one of a map."""
        file = make_durable(fs, "/log/a", bytes(1024))
        mapping = file.map(1024, writable=True)
        file.write(3, b"written")
        mapping.bytes[600:606] = b"stored"
        getattr(fs.open("/log/a"), sync)()
        expected = fs.contents()["/log/a"]
        assert outcomes(fs, "/log/a") == {expected}

    def test_models_keep_and_drop_take_all_or_nothing(self, fs: FaultFS) -> None:
        """Keeping loses nothing, dropping everything since the last sync, names included."""
        file = make_durable(fs, "/log/a", b"old")
        file.write(0, b"new!")
        fs.open("/log/b", write=True, exclusive=True)
        assert fs.after_power_crash(1, "keep").contents() == fs.contents()
        dropped = fs.after_power_crash(1, "drop").contents()
        assert dropped == {"/": None, "/log": None, "/log/a": b"old"}

    def test_drops_nothing_makes_every_power_cut_harmless(self) -> None:
        """The defective file system, with which crash tests are tested, loses nothing."""
        fs = FaultFS(drops_nothing=True)
        file = fs.open("/a", write=True, create=True)
        file.write(0, b"data")
        again = fs.after_power_crash(1).after_process_crash()
        assert again.contents() == {"/": None, "/a": b"data"}
        again.unlink("/a")
        assert again.after_power_crash(2, "drop").contents() == {"/": None}
        for _, image in FaultFS.moments(fs.journal):
            assert image.after_power_crash(3, "drop").contents() == image.contents()

    def test_unsynced_length_is_one_of_those_it_had(self, fs: FaultFS) -> None:
        """Growth that was not synced is lost or shows zeros; the lengths keep their order."""
        file = make_durable(fs, "/log/a", b"abc")
        file.allocate(2048)
        file.truncate(4096)
        assert outcomes(fs, "/log/a") == {b"abc" + bytes(n - 3) for n in (3, 2048, 4096)}

    def test_unsynced_cut_brings_old_bytes_back_only_as_a_whole(self, fs: FaultFS) -> None:
        """Old bytes show with the old length, or zeros or new bytes with the new one."""
        file = make_durable(fs, "/log/a", b"o" * 1024)
        file.truncate(0)
        file.write(0, b"n" * 1024)
        found = outcomes(fs, "/log/a")
        assert {b"o" * 1024, b"", bytes(1024), b"n" * 1024} <= found
        assert not any(b"o" in content and b"n" in content for content in found if content)
        assert not any(b"o" in content and b"\0" in content for content in found if content)

    def test_blocks_come_back_with_the_bytes(self, fs: FaultFS) -> None:
        """A cut or punch that a power cut undoes has freed nothing."""
        file = make_durable(fs, "/log/a", b"o" * 12288)
        file.punch(0, 4096)
        file.truncate(8192)
        found = {
            model: fs.after_power_crash(1, model).open("/log/a").allocated_bytes()
            for model in ("drop", "keep")
        }
        assert found == {"drop": 12288, "keep": 4096}

    def test_unsynced_punch_is_zeros_or_nothing(self, fs: FaultFS) -> None:
        """A punched range comes back or is zeros."""
        file = make_durable(fs, "/log/a", b"o" * 1024)
        file.punch(0, 1024)
        assert outcomes(fs, "/log/a") == {b"o" * 1024, bytes(1024)}

    def test_unlinked_file_is_gone_after_a_crash(self, fs: FaultFS) -> None:
        """What only an open handle kept alive ends with the process."""
        file = make_durable(fs, "/log/a", b"data")
        fs.unlink("/log/a")
        fs.sync_dir("/log")
        file.write(0, b"more")
        assert fs.fork().contents() == {"/": None, "/log": None}
        assert fs.after_power_crash(1).contents() == {"/": None, "/log": None}

    def test_survivors_of_a_power_cut_are_durable(self, fs: FaultFS) -> None:
        """A second power cut without any change in between loses nothing more."""
        file = make_durable(fs, "/log/a", bytes(4096))
        for start in range(0, 4096, 100):
            file.write(start, b"x" * 50)
        fs.open("/log/b", write=True, exclusive=True)
        for seed in range(20):
            once = fs.after_power_crash(seed)
            for model in ("random", "keep", "drop"):
                assert once.after_power_crash(seed, model).contents() == once.contents()
