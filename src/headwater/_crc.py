"""CRC32 with zlib's polynomial: compiled, else from `isal`, else zlib's; all the same numbers."""

from __future__ import annotations

import zlib

__all__ = ["CRC_FROM", "SHORT_BYTES", "crc32", "crc32_short"]

#: Input below this length is short.
SHORT_BYTES = 256
#: The same for short input, where the way into `isal` costs more than it saves.
crc32_short = crc32 = zlib.crc32
#: Whose code it is.
CRC_FROM = "zlib"

try:
    from headwater._native import crc32 as compiled
except ImportError:
    try:
        from isal import isal_zlib
    except ImportError:
        pass
    else:
        crc32, CRC_FROM = isal_zlib.crc32, "isal"
else:
    crc32_short = crc32 = compiled
    CRC_FROM = "native"
