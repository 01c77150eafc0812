"""Who owns a partition: decided by members and policy alone, the same on every node. Pure.

The owner is who archives. `Automatic` gives each partition to the member with the largest hash of
member and partition: when a member goes, only its own partitions find another owner.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


class MasterPolicy(Protocol):
    """Chooses the owner of a partition."""

    def master_of(self, partition_id: int, members: Collection[int]) -> int | None:
        """The owner; None when the partition has none."""


@dataclass(frozen=True, slots=True)
class Automatic:
    """The member with the largest hash."""

    def master_of(self, partition_id: int, members: Collection[int]) -> int | None:
        """One of the members; None when there are none."""
        return max(
            members, key=lambda member: (_weight(partition_id, member), member), default=None
        )


@dataclass(frozen=True, slots=True)
class Fixed:
    """As it is written down; a partition that is not, or whose node is no member, has no owner."""

    masters: Mapping[int, int]

    def master_of(self, partition_id: int, members: Collection[int]) -> int | None:
        """The node that is written down, as long as it is a member."""
        master = self.masters.get(partition_id)
        return master if master in members else None


@dataclass(frozen=True, slots=True)
class Disabled:
    """Nobody."""

    def master_of(self, partition_id: int, members: Collection[int]) -> int | None:  # noqa: ARG002
        """No owner, whoever is there."""
        return None


def _weight(partition_id: int, member: int) -> bytes:
    numbers = partition_id.to_bytes(8, "little") + member.to_bytes(8, "little")
    return blake2b(numbers, digest_size=8, person=b"hw-master").digest()
