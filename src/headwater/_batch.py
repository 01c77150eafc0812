"""Collecting records, to append them together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from headwater._encode import to_bytes, to_headers, to_key
from headwater.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater._encode import BytesLike, HeadersLike


class BatchBuilder:
    """Collects records and appends them together; see `Log.batch`."""

    def __init__(self, append_many: Callable[..., range]) -> None:
        self._append_many = append_many
        self._values: list[BytesLike] = []
        self._keys: list[BytesLike | None] = []
        self._headers: list[HeadersLike] = []
        self._open = False
        #: What the append returned, once the block has ended.
        self.sequences: range | None = None

    def append(
        self, value: BytesLike, *, key: BytesLike | None = None, headers: HeadersLike = None
    ) -> None:
        """Add a record to the batch. Raises `InvalidInputError` outside the `with` block."""
        if not self._open:
            raise InvalidInputError("a batch collects inside its `with` block only")
        copied = to_bytes(value), to_key(key), to_headers(headers)
        self._values.append(copied[0])
        self._keys.append(copied[1])
        self._headers.append(copied[2])

    def __len__(self) -> int:
        """Number of records collected."""
        return len(self._values)

    def __enter__(self) -> Self:
        if self._values or self._open or self.sequences is not None:
            raise InvalidInputError("a batch is used once: ask the log for another one")
        self._open = True
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._open = False
        if kind is None:
            self.sequences = self._append_many(self._values, keys=self._keys, headers=self._headers)
