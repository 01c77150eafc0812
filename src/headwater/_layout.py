"""Byte layouts, declared once.

A `Layout` is a table of fields. The codecs pack and unpack with it, and the tables of `docs/format`
are compared with it, so a layout cannot be written down twice and drift apart. Everything is
little-endian.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple


class Field(NamedTuple):
    """One field: its name, its `struct` code and what it means."""

    name: str
    code: str
    meaning: str

    @property
    def size(self) -> int:
        """Width in bytes."""
        return Struct("<" + self.code).size

    @property
    def type_name(self) -> str:
        """The type as the format pages write it: u32, i64, 16 bytes."""
        names = {"B": "u8", "H": "u16", "I": "u32", "Q": "u64", "q": "i64"}
        return names.get(self.code, f"{self.size} bytes")


class Layout:
    """A run of fields without gaps."""

    __slots__ = ("fields", "name", "offsets", "struct")

    def __init__(self, name: str, *fields: Field) -> None:
        self.name = name
        self.fields = fields
        self.struct = Struct("<" + "".join(field.code for field in fields))
        self.offsets: dict[str, int] = {}
        position = 0
        for field in fields:
            self.offsets[field.name] = position
            position += field.size

    @property
    def size(self) -> int:
        """Width of the whole run in bytes."""
        return self.struct.size

    def table(self) -> list[tuple[int, str, str]]:
        """Rows (offset, type, name), as the format pages show them."""
        return [(self.offsets[f.name], f.type_name, f.name) for f in self.fields]
