"""What a view folds: a history of items, places in it, and a folder to keep snapshots in.

Event logs and logs of records are such histories. A view knows nothing else about them, and they
know nothing about views.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headwater.fs import FileSystem

Item_co = TypeVar("Item_co", covariant=True)


class Place(NamedTuple):
    """A place between two items; only the history that made it can say what it means.

    `sequence` is the number of the next item. None for it, or for `base`, is what a snapshot says
    that somebody else has written: the history finds it out.
    """

    offset: int = 0
    hash: str = ""
    sequence: int | None = 0
    base: int | str | None = 0


class Source(Protocol[Item_co]):
    """A history that only grows at its end."""

    @property
    def fs(self) -> FileSystem:
        """Where the snapshots are kept."""

    @property
    def views_folder(self) -> str:
        """The folder they are kept in."""

    @property
    def syncs_snapshots(self) -> bool:
        """False where a snapshot may be lost in a power cut, and is then built again."""

    def first_place(self) -> Place:
        """The place in front of the very first item."""

    def fit(self, place: Place, written_ns: int) -> Place | None:
        """The same place with everything known about it; None when it is none of this history.

        `written_ns` is when the snapshot that names it was written.
        """

    def batches(
        self, place: Place, stop: int | None = None
    ) -> Iterator[tuple[Sequence[Item_co], Place]]:
        """The items from a place on, each batch with the place behind it; ends at the end.

        With `stop`, only the items whose sequence is below it.
        """

    def wait(self, place: Place, timeout_s: float) -> bool:
        """Sleep until there is an item behind the place; False when the time was over first."""
