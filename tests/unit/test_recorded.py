"""What was left open at first is written down where a reader of the project looks for it."""

from __future__ import annotations

import re
from typing import Final

import pytest

from tests.trees import ROOT

#: Page -> what it must say about an edge that the requirements left open.
EDGES: Final = {
    "padding": ("docs/format/segment-v1.md", r"pad\* bytes between are zero, and are checked"),
    "unused space": ("docs/format/segment-v1.md", r"reserved space and says nothing"),
    "room for the end": ("docs/format/segment-v1.md", r"nothing but the SEALED frame"),
    "boundary": ("docs/format/segment-v1.md", r"Two checksums that agree are a frame"),
    "retention, unreadable reader": ("docs/format/readers-v1.md", r"deletes nothing until then"),
    "retention, order": ("docs/format/readers-v1.md", r"until its manifest is durable"),
    "retention, power cut": ("docs/design/002-reader-slots.md", r"what retention relied on"),
    "what users see": ("CHANGELOG.md", r"every reader has left behind go away"),
}


@pytest.mark.parametrize("edge", EDGES)
def test_edge_of_the_design_is_written_down(edge: str) -> None:
    """S0-31: padding, boundaries and the edges of retention, on the page that decides them."""
    page, words = EDGES[edge]
    text = " ".join((ROOT / page).read_text("utf-8").split())
    assert re.search(words, text), f"{page} does not say: {words}"
