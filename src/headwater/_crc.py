"""CRC32 with zlib's polynomial; from `isal` when it is installed: same numbers, much faster."""

from __future__ import annotations

import zlib

__all__ = ["ACCELERATED", "SHORT_BYTES", "crc32", "crc32_short"]

#: The same for input of up to `SHORT_BYTES`, where the way into `isal` costs more than it saves.
crc32_short = zlib.crc32
SHORT_BYTES = 256

try:
    from isal import isal_zlib
except ImportError:
    ACCELERATED = False
    crc32 = zlib.crc32
else:
    ACCELERATED = True
    crc32 = isal_zlib.crc32
