"""Calls of the C library that Python does not offer, or offers without releasing the interpreter.

`populate` and `punch` are advice: where the library or the call is missing, nothing happens.
"""

from __future__ import annotations

import errno
import os
import sys
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ctypes
    import mmap

#: Linux 5.14: make the pages present and writable without storing into them.
_MADV_POPULATE_WRITE = 23
_FALLOC_FL_KEEP_SIZE = 1
_FALLOC_FL_PUNCH_HOLE = 2
#: A file system or kernel that does not know the call; advice may be declined.
_DECLINED = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})


@cache
def _library() -> ctypes.CDLL | None:
    """Load the C library of a 64-bit Linux; None where its types are not the ones used here."""
    if sys.platform != "linux" or sys.maxsize < 2**32:
        return None
    try:
        import ctypes  # noqa: PLC0415 - slow to load, and rarely needed
    except ImportError:  # an interpreter built without libffi
        return None
    return ctypes.CDLL(None, use_errno=True)


def populate(target: mmap.mmap, start: int, size: int) -> None:
    """Fault the pages of a writable map in, while other threads of this process run on."""
    library = _library()
    if library is None or size <= 0:
        return
    import ctypes  # noqa: PLC0415 - loaded by `_library`

    page = os.sysconf("SC_PAGE_SIZE")
    first = start // page * page
    pin = ctypes.c_char.from_buffer(target, first)  # the map cannot go away while this lives
    address = ctypes.c_void_p(ctypes.addressof(pin))
    length = ctypes.c_size_t(start + size - first)
    if library.madvise(address, length, _MADV_POPULATE_WRITE):
        _refuse(ctypes.get_errno())


def punch(descriptor: int, offset: int, size: int) -> None:
    """Give the blocks of a range back to the file system; the range reads as zeros."""
    library = _library()
    if library is None or size <= 0:
        return
    import ctypes  # noqa: PLC0415 - loaded by `_library`

    flags = _FALLOC_FL_PUNCH_HOLE | _FALLOC_FL_KEEP_SIZE
    if library.fallocate(descriptor, flags, ctypes.c_int64(offset), ctypes.c_int64(size)):
        _refuse(ctypes.get_errno())


def boot_session() -> str:
    """Ask macOS for the name of this boot, 32 hexadecimal digits and dashes."""
    import ctypes  # noqa: PLC0415 - slow to load, and rarely needed

    answer = ctypes.create_string_buffer(64)
    size = ctypes.c_size_t(len(answer))
    library = ctypes.CDLL(None, use_errno=True)
    if library.sysctlbyname(b"kern.bootsessionuuid", answer, ctypes.byref(size), None, 0):
        raise OSError(ctypes.get_errno(), "the system does not name its boots")
    return answer.value.decode("ascii")


def _refuse(number: int) -> None:
    if number not in _DECLINED:
        raise OSError(number, os.strerror(number))
