"""The libraries of the extra `events`, in one place: zstd, xxHash and a typed JSON decoder.

The zstd of the standard library (Python 3.14) or its backport: both read concatenated frames.
"""

from __future__ import annotations

import sys

from headwater.errors import UnsupportedError

try:
    import msgspec
    from xxhash import xxh64, xxh64_hexdigest

    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
except ImportError as error:
    raise UnsupportedError(
        f"event logs need the extra `events` ({error}): pip install 'headwater[events]'"
    ) from error

__all__ = ["msgspec", "xxh64", "xxh64_hexdigest", "zstd"]
