"""Which entries a quorum has, and from where on the parent log is still needed. Pure, in memory.

An entry is *needed* until a quorum of the members has it **and** it was applied here. What a quorum
once had stays so, whoever leaves. Everything is derived from the parent log and from what the
replicas say: after a start it is built again. Knows neither disks nor the network.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple

from headwater.errors import ConflictError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from headwater.cluster._master import MasterPolicy


@dataclass(slots=True)
class _Pending:
    """An entry that is still needed."""

    global_index: int
    acks: set[int] = field(default_factory=set)
    quorate: bool = False


@dataclass(slots=True)
class _Partition:
    """The needed entries of a partition, oldest first, and how far it is."""

    pending: dict[int, _Pending] = field(default_factory=dict)
    landed: int = 0
    applied: int = 0
    quorum: int = 0

    def advance(self) -> None:
        """See how far the quorum reaches, and let go of what nobody needs."""
        while (pending := self.pending.get(self.quorum + 1)) is not None and pending.quorate:
            self.quorum += 1
        done = min(self.quorum, self.applied)
        for index in list(takewhile(lambda index: index <= done, self.pending)):
            del self.pending[index]


class Watermarks(NamedTuple):
    """How far the parent log is durable, and how much of it is still needed."""

    parent_durable: int
    #: The oldest entry that is needed; the next one to land when none is.
    minimum_required: int
    #: Everything up to here may be cut away.
    truncatable: int


class PartitionWatermarks(NamedTuple):
    """How far one partition is."""

    landed_index: int
    #: Every entry up to here is on a quorum.
    quorum_index: int
    applied_index: int
    #: Its oldest entry that is needed, as an index of the parent; None when none is.
    required: int | None


def quorum_of(members: Collection[int]) -> int:
    """How many of the members are more than half."""
    return len(members) // 2 + 1


class AckTracker:
    """Acknowledgements by partition and index, and what follows from them."""

    def __init__(self, node: int, members: Collection[int], policy: MasterPolicy) -> None:
        self.node = node
        self.policy = policy
        #: Acknowledgements that meant nothing: of nodes that are no members, of unknown entries.
        self.foreign_acks = 0
        self._configurations: list[frozenset[int]] = [frozenset(members)]
        self._partitions: dict[int, _Partition] = {}
        self._parent_durable = 0
        self._next_global = 1

    @property
    def members(self) -> frozenset[int]:
        """Everybody who counts, in both sets while one takes the place of the other."""
        return frozenset().union(*self._configurations)

    def set_members(
        self, members: Collection[int], outgoing: Collection[int] | None = None
    ) -> None:
        """Change who counts; with `outgoing`, a majority of those is needed as well."""
        self._configurations = [frozenset(members)]
        if outgoing is not None:
            self._configurations.append(frozenset(outgoing))
        for partition in self._partitions.values():
            for pending in partition.pending.values():
                self._count(pending)
            partition.advance()

    def master_of(self, partition_id: int) -> int | None:
        """Who owns a partition, by the policy."""
        return self.policy.master_of(partition_id, self._configurations[0])

    # --- what happens -----------------------------------------------------------------------------

    def land(self, partition_id: int, log_index: int, global_index: int) -> None:
        """An entry is in this node's parent log: the node's own acknowledgement.

        Raises `ConflictError` when the indexes do not go on.
        """
        partition = self._partitions.get(partition_id)
        known = partition is not None
        partition = partition or _Partition()
        if known and log_index != partition.landed + 1:
            raise ConflictError(
                f"entry {log_index} of partition {partition_id} does not follow {partition.landed}"
            )
        if global_index < self._next_global:
            raise ConflictError(f"global index {global_index} has landed before")
        if not known:
            partition.applied = partition.quorum = log_index - 1
            self._partitions[partition_id] = partition
        partition.pending[log_index] = pending = _Pending(global_index, {self.node})
        partition.landed = log_index
        self._next_global = global_index + 1
        self._count(pending)
        partition.advance()

    def acknowledge(self, node: int, partition_id: int, log_index: int) -> bool:
        """A replica has an entry; True when a quorum has it, by this or before.

        The same again changes nothing. Of a node that is no member, or for an entry that is not in
        the parent log here, it is counted and otherwise ignored.
        """
        partition = self._partitions.get(partition_id)
        if node not in self.members or partition is None or log_index > partition.landed:
            self.foreign_acks += 1
            return False
        pending = partition.pending.get(log_index)
        if pending is None:
            return True
        pending.acks.add(node)
        self._count(pending)
        partition.advance()
        return pending.quorate

    def apply(self, partition_id: int, log_index: int) -> None:
        """Entries of a partition up to this one were applied here."""
        partition = self._partitions.get(partition_id)
        if partition is None or log_index > partition.landed:
            raise ConflictError(f"entry {log_index} of partition {partition_id} is not there")
        partition.applied = max(partition.applied, log_index)
        partition.advance()

    def sync(self, global_index: int) -> None:
        """The parent log is durable up to here."""
        self._parent_durable = max(self._parent_durable, global_index)

    def truncate_from(self, global_index: int) -> None:
        """This entry of the parent log and all behind it were taken back.

        Raises `ConflictError`, and changes nothing, if a quorum has one of them or it was applied.
        """
        gone = [
            (partition, index)
            for partition in self._partitions.values()
            for index, pending in partition.pending.items()
            if pending.global_index >= global_index
        ]
        for partition, index in gone:
            if partition.pending[index].quorate or index <= partition.applied:
                raise ConflictError(
                    f"the parent log cannot be taken back from {global_index} on: "
                    "a quorum has more of it, or more was applied"
                )
        for partition, index in gone:
            del partition.pending[index]
            partition.landed = min(partition.landed, index - 1)
        self._next_global = min(self._next_global, global_index)
        self._parent_durable = min(self._parent_durable, global_index - 1)

    def forget(self, partition_id: int) -> None:
        """A partition was torn down: it needs nothing any more."""
        self._partitions.pop(partition_id, None)

    # --- what follows -----------------------------------------------------------------------------

    def watermarks(self) -> Watermarks:
        """What is durable and what is needed, over all partitions."""
        required = [index for _, index in self._required()]
        minimum = min(required, default=self._next_global)
        return Watermarks(self._parent_durable, minimum, min(minimum - 1, self._parent_durable))

    def holder(self) -> int | None:
        """The partition that needs the oldest entry; None when none needs any."""
        found = min(self._required(), key=lambda item: item[1], default=None)
        return None if found is None else found[0]

    def partition(self, partition_id: int) -> PartitionWatermarks:
        """How far a partition is; all 0 for one that has no entry."""
        partition = self._partitions.get(partition_id, _Partition())
        first = next(iter(partition.pending.values()), None)
        return PartitionWatermarks(
            partition.landed,
            partition.quorum,
            partition.applied,
            None if first is None else first.global_index,
        )

    def _required(self) -> Iterator[tuple[int, int]]:
        """Every partition that needs something, and the oldest entry that it needs."""
        for partition_id, partition in self._partitions.items():
            for pending in partition.pending.values():
                yield partition_id, pending.global_index
                break

    def _count(self, pending: _Pending) -> None:
        """See whether a quorum has an entry; it stays so."""
        pending.quorate = pending.quorate or all(
            len(pending.acks & members) >= quorum_of(members) for members in self._configurations
        )
