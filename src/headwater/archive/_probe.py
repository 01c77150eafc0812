"""Does a store keep what conditional puts promise? Asked with two small objects, never assumed.

Some servers speak S3 and ignore the conditions: every put succeeds. There the archive needs one
writer, and must know it before it relies on the contrary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.errors import UnsupportedError
from headwater.fs import random_bytes

if TYPE_CHECKING:
    from headwater.archive._store import ObjectStore


def is_conditional(store: ObjectStore, folder: str) -> bool:
    """True when a second create and an update of an old version are refused."""
    name = f"{folder}/probe-{random_bytes(8).hex()}"
    try:
        return _refuses(store, name)
    except UnsupportedError:
        return False
    finally:
        store.delete(name)


def _refuses(store: ObjectStore, name: str) -> bool:
    first, second, third = b"first", b"second", b"third"
    if not store.put_new(name, first) or store.put_new(name, second):
        return False
    got = store.get(name)
    if got is None or got.data != first or not store.replace(name, second, got.version):
        return False
    if store.replace(name, third, got.version):
        return False
    found = store.get(name)
    return found is not None and found.data == second
