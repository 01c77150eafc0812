"""What every object store keeps, stated once; a subclass brings the store.

A store that ignores conditional puts keeps everything but the tests of `Conditional`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headwater.archive import MissingError, is_conditional
from headwater.archive._store import PIECE_BYTES, holds, pieces
from headwater.errors import InvalidInputError

if TYPE_CHECKING:
    from headwater.archive import ObjectStore

LARGE = bytes(range(256)) * (PIECE_BYTES // 256) + b"and more"


class StoreContract:
    """Objects come back as they were put."""

    @pytest.fixture
    def store(self) -> ObjectStore:
        """Bring an empty store."""
        raise NotImplementedError

    def test_object_put_is_read_back_whole_and_in_ranges(self, store: ObjectStore) -> None:
        """What was put comes back, whole, in parts, and its size by itself."""
        assert store.put_new("a/b=1/c.bin", b"0123456789")
        got = store.get("a/b=1/c.bin")
        assert got is not None
        assert got.data == b"0123456789"
        assert store.read("a/b=1/c.bin", 3, 4) == b"3456"
        info = store.stat("a/b=1/c.bin")
        assert info is not None
        assert info.size == 10

    def test_object_of_many_pieces_is_put_from_a_map_and_compared(self, store: ObjectStore) -> None:
        """A large object from a buffer comes back piece by piece and is found equal."""
        assert store.put_new("large", memoryview(LARGE))
        assert b"".join(pieces(store, "large", len(LARGE))) == LARGE
        assert holds(store, "large", LARGE)
        assert not holds(store, "large", LARGE[:-1] + b"!")
        assert not holds(store, "large", LARGE[:-1])

    def test_object_that_is_missing_is_none_or_an_error_of_its_own(
        self, store: ObjectStore
    ) -> None:
        """Looking for what is not there says so, and deleting it is no error."""
        assert store.get("no/thing") is None
        assert store.stat("no/thing") is None
        with pytest.raises(MissingError, match="no/thing"):
            store.read("no/thing", 0, 1)
        store.delete("no/thing")
        assert list(store.list("no")) == []
        assert store.clear("no") == 0

    def test_object_put_again_is_replaced(self, store: ObjectStore) -> None:
        """An unconditional put takes the place of what is there."""
        store.put("x/y", b"first")
        store.put("x/y", b"second")
        got = store.get("x/y")
        assert got is not None
        assert got.data == b"second"

    def test_listing_of_a_folder_is_everything_below_in_order(self, store: ObjectStore) -> None:
        """A listing names what is below a folder, deeply, sorted, and nothing beside it."""
        for name in ("t/p=1/b", "t/p=1/a", "t/p=1/_in/c", "t/p=10/d", "t/e"):
            store.put(name, name.encode())
        assert [info.name for info in store.list("t/p=1")] == ["t/p=1/_in/c", "t/p=1/a", "t/p=1/b"]
        assert sorted(info.size for info in store.list("t")) == [3, 7, 7, 8, 11]

    def test_folder_cleared_is_gone_and_its_neighbours_stay(self, store: ObjectStore) -> None:
        """Clearing removes everything below a folder and counts it."""
        for name in ("t/p=1/a", "t/p=1/_in/c", "t/p=10/d"):
            store.put(name, b"1")
        assert store.clear("t/p=1") == 2
        assert [info.name for info in store.list("t")] == ["t/p=10/d"]

    @pytest.mark.parametrize("name", ["", "/a", "a/../b", "..", "a//b", "a/", "a\0b", "."])
    def test_name_that_leaves_the_store_is_refused(self, store: ObjectStore, name: str) -> None:
        """No name reaches outside the store."""
        with pytest.raises(InvalidInputError):
            store.put(name, b"")


class ConditionalContract(StoreContract):
    """Of many who want the same, one succeeds."""

    def test_probe_finds_conditional_puts(self, store: ObjectStore) -> None:
        """The probe trusts the store, and leaves no object behind."""
        assert is_conditional(store, "probing")
        assert list(store.list("probing")) == []

    def test_name_that_is_taken_is_not_put_again(self, store: ObjectStore) -> None:
        """A second create is refused and changes nothing."""
        assert store.put_new("n", b"first")
        assert not store.put_new("n", b"second")
        got = store.get("n")
        assert got is not None
        assert got.data == b"first"

    def test_replacing_needs_the_version_that_is_there(self, store: ObjectStore) -> None:
        """An update of an older version, of nothing, or a create over something is refused."""
        assert store.replace("n", b"first", None)
        assert not store.replace("n", b"other", None)
        got = store.get("n")
        assert got is not None
        assert store.replace("n", b"second", got.version)
        assert not store.replace("n", b"third", got.version)
        now = store.get("n")
        assert now is not None
        assert now.data == b"second"
        store.delete("n")
        assert not store.replace("n", b"third", now.version)
