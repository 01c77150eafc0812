"""CRC32 with zlib's polynomial; from `isal` when it is installed: same numbers, much faster."""

from __future__ import annotations

import zlib

__all__ = ["ACCELERATED", "crc32"]

try:
    from isal import isal_zlib
except ImportError:
    ACCELERATED = False
    crc32 = zlib.crc32
else:
    ACCELERATED = True
    crc32 = isal_zlib.crc32
