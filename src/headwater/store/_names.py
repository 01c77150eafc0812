"""Names of topics: they become folders here and prefixes in an archive, so they are kept plain."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from headwater.errors import InvalidInputError

_PLAIN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_RIGHT: Final = "1 to 100 of the characters A-Z a-z 0-9 . _ -, beginning with a letter or digit"


class TopicName(NamedTuple):
    """A namespace and a topic in it, as in `sales/orders`."""

    namespace: str
    topic: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.topic}"


def to_namespace(text: object) -> str:
    """A namespace's name. Raises `InvalidInputError`."""
    if not isinstance(text, str) or not _PLAIN.fullmatch(text):
        raise InvalidInputError(f"{text!r} is no name of a namespace: give {_RIGHT}")
    return text


def to_topic_name(text: object) -> TopicName:
    """A topic's name. Raises `InvalidInputError`; no name leads out of the store's folder."""
    parts = text.split("/") if isinstance(text, str) else []
    if len(parts) != 2 or not all(map(_PLAIN.fullmatch, parts)):  # noqa: PLR2004 - a pair
        raise InvalidInputError(
            f'{text!r} is no name of a topic: give "<namespace>/<topic>", each {_RIGHT}'
        )
    return TopicName(*parts)
