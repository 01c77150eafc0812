"""How far each partition is: what is landed, durable, applied and in a snapshot. Pure.

Always, for every partition: snapshot <= applied <= durable <= highest. Each of them only grows;
`highest_index` alone may step back, when a suffix of the parent log is taken back. An update that
does not fit raises and changes nothing. All of it is derived from the logs again at each start;
nothing here is a second source of truth. `durable_global` and `applied_global` are kept apart: a
record that is durable need not be applied.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headwater.errors import ConflictError, InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(slots=True)
class PartitionManifest:
    """The indexes of one partition; its own count entries from 1, the global ones are the parent's.

    All begin at 0: nothing.
    """

    partition_id: int
    durable_index: int = 0
    applied_index: int = 0
    durable_global: int = 0
    applied_global: int = 0
    snapshot_index: int | None = None
    highest_index: int = 0

    def update_highest(self, log_index: int) -> None:
        """An entry of the partition is in the parent log."""
        self._grow("highest", self.highest_index, log_index)
        self.highest_index = log_index

    def truncate_highest(self, log_index: int) -> None:
        """Entries behind this one were taken back; durable ones are committed and never are."""
        if not self.durable_index <= log_index <= self.highest_index:
            raise self._unfit("highest", log_index, self.durable_index, self.highest_index)
        self.highest_index = log_index

    def update_durable(self, log_index: int, global_index: int) -> None:
        """Entries up to this one are durable in the partition's own log."""
        self._grow("durable", self.durable_index, log_index)
        self._grow("durable global", self.durable_global, global_index)
        self.durable_index, self.durable_global = log_index, global_index
        self.highest_index = max(self.highest_index, log_index)

    def update_applied(self, log_index: int, global_index: int) -> None:
        """Entries up to this one were applied."""
        if not self.applied_index <= log_index <= self.durable_index:
            raise self._unfit("applied", log_index, self.applied_index, self.durable_index)
        if not self.applied_global <= global_index <= self.durable_global:
            raise self._unfit(
                "applied global", global_index, self.applied_global, self.durable_global
            )
        self.applied_index, self.applied_global = log_index, global_index

    def set_snapshot(self, log_index: int) -> None:
        """A snapshot holds everything up to this entry."""
        if not (self.snapshot_index or 0) <= log_index <= self.applied_index:
            raise self._unfit("snapshot", log_index, self.snapshot_index or 0, self.applied_index)
        self.snapshot_index = log_index

    def lag_entries(self) -> int:
        """Entries that are durable and not applied."""
        return self.durable_index - self.applied_index

    def _grow(self, what: str, old: int, new: int) -> None:
        if new < old:
            raise ConflictError(
                f"partition {self.partition_id}: its {what} index is {old} and cannot become {new}"
            )

    def _unfit(self, what: str, index: int, least: int, most: int) -> ConflictError:
        return ConflictError(
            f"partition {self.partition_id}: its {what} index cannot become {index}, "
            f"it must be from {least} to {most}"
        )


class Roster:
    """The partitions that there are: each appears with its first entry and goes when torn down."""

    __slots__ = ("_manifests",)

    def __init__(self) -> None:
        self._manifests: dict[int, PartitionManifest] = {}

    def __len__(self) -> int:
        """Number of partitions."""
        return len(self._manifests)

    def __iter__(self) -> Iterator[PartitionManifest]:
        """The partitions, oldest first."""
        return iter(self._manifests.values())

    def __contains__(self, partition_id: int) -> bool:
        """True for a partition that has appeared and is not torn down."""
        return partition_id in self._manifests

    def appear(self, partition_id: int) -> PartitionManifest:
        """The partition, made when it is new."""
        return self._manifests.setdefault(partition_id, PartitionManifest(partition_id))

    def get(self, partition_id: int) -> PartitionManifest:
        """A partition that is there. Raises `InvalidInputError`."""
        found = self._manifests.get(partition_id)
        if found is None:
            raise InvalidInputError(f"there is no partition {partition_id}: write to it first")
        return found

    def disappear(self, partition_id: int) -> None:
        """Forget a partition; nothing happens when it is not there."""
        self._manifests.pop(partition_id, None)

    def applied_floor(self) -> int:
        """The global index that every partition has applied up to; 0 without partitions."""
        return min((manifest.applied_global for manifest in self), default=0)
