"""Workloads in which one thing fails and life goes on: nothing false is promised, ever."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headwater.errors import StorageError
from headwater.testing import (
    Fault,
    FaultFS,
    explore_exhaustion,
    explore_faults,
    explore_full_disk,
)
from headwater.testing._faulting import SPACE, SYNCS
from tests.crash.test_explorer import WORKLOADS

if TYPE_CHECKING:
    from headwater.testing._world import Workload

each_workload = pytest.mark.parametrize("workload", WORKLOADS, ids=lambda work: work.__name__)


@each_workload
def test_sync_failing_nothing_false_is_promised(workload: Workload) -> None:
    """After EIO in any sync nothing is acked that does not survive; reopening heals (S0-15)."""
    assert explore_faults(workload, Fault.EIO, SYNCS).operations >= 20


@each_workload
def test_space_refused_errors_are_typed_and_nothing_is_lost(workload: Workload) -> None:
    """ENOSPC of any one creation, allocation or write is a typed error and costs nothing acked."""
    assert explore_faults(workload, Fault.ENOSPC, SPACE).operations >= 20


@pytest.mark.parametrize("workload", WORKLOADS[5:], ids=lambda work: work.__name__)
def test_write_cut_short_nothing_is_lost(workload: Workload) -> None:
    """A long write of which the disk takes only a part is a typed error and costs nothing acked."""
    assert explore_faults(workload, Fault.SHORT, SPACE).operations >= 1


@each_workload
def test_disk_full_for_a_while_log_stays_readable_and_goes_on(workload: Workload) -> None:
    """On a full disk the log opens and reads; with space again it writes, without a reopen."""
    assert explore_full_disk(workload).operations >= 5


@each_workload
def test_descriptors_exhausted_errors_are_typed_and_nothing_is_lost(workload: Workload) -> None:
    """EMFILE of any single opening is a typed error and costs nothing acked."""
    assert explore_exhaustion(workload).operations >= 30


def test_sync_failing_is_told_to_every_open_file_once() -> None:
    """As on Linux: a failed sync is reported by the next sync of each file open at that time."""
    fs = FaultFS()
    one = fs.open("/f", write=True, create=True)
    two = fs.open("/f", write=True)
    fs.fail_at[2] = Fault.EIO
    one.write(0, b"x")
    with pytest.raises(StorageError):
        one.datasync()
    one.datasync()
    with pytest.raises(StorageError):
        two.datasync()
    two.datasync()
    fs.open("/f", write=True).datasync()
