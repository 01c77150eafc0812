"""Sizes and bounds, each with its reason. Pure constants; knows nothing."""

from __future__ import annotations

from typing import Final

MIB: Final = 1024 * 1024

#: Default size of a segment: large enough that rolls are rare, small enough to archive and delete.
DEFAULT_SEGMENT_BYTES: Final = 128 * MIB
#: Smallest size that `open` accepts; tests go lower through a private door.
MIN_SEGMENT_BYTES: Final = 64 * 1024
#: Largest size: positions inside a segment must fit the signed 32-bit offsets of Arrow.
MAX_SEGMENT_BYTES: Final = 2**31 - 4096
#: A frame never exceeds this, so that one checksum, one map range and one batch stay handy.
MAX_FRAME_BYTES: Final = 16 * MIB
#: File names have nine digits.
MAX_SEGMENT_ID: Final = 999_999_999
#: Sequences are signed 64-bit everywhere they travel (Arrow, Parquet, Spark).
MAX_SEQUENCE: Final = 2**63 - 1
#: Frames start at multiples of this.
ALIGNMENT: Final = 8
#: A log keeps the last number of at most this many producers ...
MAX_PRODUCERS: Final = 4096
#: ... and their table, repeated in every segment, takes at most this share of one.
PRODUCER_TABLE_SHARE: Final = 8
#: Names of producers and readers, in UTF-8 bytes.
MAX_NAME_BYTES: Final = 200
#: Waiters that can sleep on one log at the same time; a further one looks again every few ms.
MAX_WAITERS: Final = 128
#: However a waiter sleeps, it looks again after this long.
SAFETY_RECHECK_S: Final = 0.1
#: One entry of the sparse index for about this many bytes of a segment.
INDEX_STRIDE_BYTES: Final = 64 * 1024
#: Default pause between two syncs in mode "interval".
DEFAULT_INTERVAL_MS: Final = 50
