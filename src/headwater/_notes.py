"""Small notes for people and other processes: one line of JSON, never trusted.

The JSON module is loaded when the first note is written or read, not with the package.
"""

from __future__ import annotations


def pack_note(facts: dict[str, object], size: int = 0) -> bytes:
    """The note's bytes, filled up with spaces to `size`, so that it can be overwritten in place."""
    import json  # noqa: PLC0415 - not everybody who imports the package writes a note

    return json.dumps(facts).ljust(size).encode()


def parse_note(data: bytes) -> dict[str, object]:
    """The facts of a note; empty when it is missing or damaged."""
    import json  # noqa: PLC0415 - as above

    try:
        found = json.loads(data)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
