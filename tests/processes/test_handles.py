"""One writer and one live handle per reader, over processes; what a fork leaves to the child."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING

import pytest

import headwater
from headwater.errors import ConflictError, LockedError, OverloadedError
from tests.processes.spawning import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path

    from tests.processes.spawning import Zygote


def test_log_open_in_another_process_is_locked_until_that_ends(
    zygote: Zygote, tmp_path: Path
) -> None:
    """A second writer is refused with the first one's pid; a closed or killed one lets go."""
    path = str(tmp_path / "log")
    for ending in ("close", "kill"):
        with zygote.spawn("log_holder", path=path) as holder:
            assert holder.hear() == "ready"
            with pytest.raises(LockedError, match=str(holder.pid)) as caught:
                headwater.open(path)
            assert caught.value.pid == holder.pid
            assert caught.value.started is not None
            headwater.open(path, mode="r").close()
            if ending == "close":
                holder.tell("close")
                assert holder.hear() == "done"
                assert holder.finish() == ""
            else:
                holder.kill()
            headwater.open(path).close()


def test_reader_open_in_another_process_is_locked_until_that_ends(
    zygote: Zygote, tmp_path: Path
) -> None:
    """A reader's name is taken as long as its process lives, and names it."""
    path = str(tmp_path / "log")
    with headwater.open(path) as log:
        for ending in ("close", "kill"):
            with zygote.spawn("reader_holder", path=path, name="billing") as holder:
                assert holder.hear() == "ready"
                with pytest.raises(LockedError, match=str(holder.pid)) as caught:
                    log.reader("billing")
                assert caught.value.pid == holder.pid
                with pytest.raises(LockedError):
                    log.delete_reader("billing")
                assert [info.live for info in log.readers()] == [True]
                if ending == "close":
                    holder.tell("close")
                    assert holder.finish() == ""
                else:
                    holder.kill()
                log.reader("billing").close()
        assert log.delete_reader("billing")


#: What a child may do with its parent's handles: let go of them.
HARMLESS = {"reader_close", "close", "close_again"}


def test_child_of_a_fork_can_do_nothing_with_the_handles(zygote: Zygote, tmp_path: Path) -> None:
    """Every verb refuses in the child, the parent goes on, and the lock dies with the parent."""
    path = str(tmp_path / "log")
    with zygote.spawn("forking_writer", path=path) as parent:
        said = {key: value for _ in range(4) for key, value in parent.hear().items()}
        child, answers = said.pop("pid"), said.pop("parent")
        try:
            assert answers in ([1, 2], [1])
            expected = {verb: "done" if verb in HARMLESS else "ClosedError" for verb in said}
            assert said == expected
            assert len(said) > 15
            with pytest.raises(LockedError):
                headwater.open(path)
            parent.kill()
            with headwater.open(path) as log:
                assert list(log.values()) == [b"parent", b"still here"]
                log.reader("forked").close()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)


def test_groups_staged_by_another_process_arrive_once(zygote: Zygote, tmp_path: Path) -> None:
    """A live writer takes every staged group once, refuses a wrong one, and tells its sender."""
    path, batches = str(tmp_path / "log"), 6
    with (
        headwater.open(path, durability="os") as log,
        zygote.spawn("stager", path=path, batches=batches) as stager,
    ):
        assert stager.hear() == ConflictError.__name__
        assert stager.finish() == ""
        expected = [b"%d/%d" % (batch, place) for batch in range(batches) for place in range(5)]
        assert list(log.values()) == expected


def test_group_staged_without_a_writer_waits_for_one(zygote: Zygote, tmp_path: Path) -> None:
    """The sender hears that nobody took it in time; it stays staged and the next writer has it."""
    path = str(tmp_path / "log")
    headwater.open(path).close()
    with zygote.spawn("lonely_stager", path=path) as stager:
        assert stager.hear() == OverloadedError.__name__
        assert stager.finish() == ""
    with headwater.open(path) as log, log.reader("new") as reader:
        assert [record.value for record in reader.read_batch(timeout=PATIENCE_S)] == [b"x"]
