"""JSON that proves itself: the small objects of a catalogue.

A document is one line of JSON: the facts, and the SHA-256 of their canonical form. What does not
agree with it was cut, mixed up or edited, and is never used. Pure.
"""

from __future__ import annotations

import hashlib
import json
from typing import Final, TypeAlias

from headwater.errors import ArchiveError, UnsupportedError

#: What JSON can say.
Fact: TypeAlias = "str | int | bool | list[Fact] | dict[str, Fact] | None"
Facts: TypeAlias = "dict[str, Fact]"

FORMAT: Final = 1


def _canonical(facts: Facts) -> bytes:
    return json.dumps(facts, sort_keys=True, separators=(",", ":")).encode()


def pack_document(facts: Facts) -> bytes:
    """The bytes of a document."""
    body = _canonical(facts)
    digest = hashlib.sha256(body).hexdigest()
    return b'{"format":%d,"sha256":"%s","facts":%s}\n' % (FORMAT, digest.encode(), body)


def parse_document(data: bytes, where: str) -> Facts:
    """The facts of a document. Raises `ArchiveError` when it is damaged, `UnsupportedError`."""
    try:
        found = json.loads(data)
    except ValueError as error:
        raise ArchiveError(f"{where} is damaged: {error}") from error
    number = found.get("format") if isinstance(found, dict) else None
    if isinstance(number, int) and number > FORMAT:
        raise UnsupportedError(f"{where} has format {number}, this release knows {FORMAT}: upgrade")
    facts = found.get("facts") if isinstance(found, dict) else None
    if number != FORMAT or not isinstance(facts, dict):
        raise ArchiveError(f"{where} is not a document of an archive")
    digest = hashlib.sha256(_canonical(facts)).hexdigest()
    if digest != found.get("sha256"):
        raise ArchiveError(f"{where} is damaged: its content does not have the checksum it names")
    return facts
