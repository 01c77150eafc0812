"""The zygote: reads requests from its standard input, a socket, and forks a worker for each.

Requests are JSON lines: `{"fork": role, "options": {...}, "life_s": n}` with four descriptors
(input, output, errors, shared memory), answered with the pid, and `{"reap": pid}`, answered with
the exit code. Ends when the socket is closed.
"""

from __future__ import annotations

import faulthandler
import json
import mmap
import os
import signal
import socket
import sys
import traceback
from typing import Any, Final

from tests.processes import roles

_MESSAGE_BYTES: Final = 65536
_DESCRIPTORS: Final = 4


def serve(requests: socket.socket) -> None:
    """Answer requests until there are no more."""
    while True:
        data, fds, _, _ = socket.recv_fds(requests, _MESSAGE_BYTES, _DESCRIPTORS)
        while data and not data.endswith(b"\n"):
            data += requests.recv(_MESSAGE_BYTES)
        if not data:
            return
        message = json.loads(data)
        if "reap" in message:
            _, status = os.waitpid(message["reap"], 0)
            answer = os.waitstatus_to_exitcode(status)
        else:
            answer = os.fork()
            if not answer:
                requests.close()
                play(message, fds)
        for descriptor in fds:
            os.close(descriptor)
        requests.sendall(str(answer).encode())


def play(message: dict[str, Any], fds: list[int]) -> None:
    """Be a worker; never returns."""
    signal.alarm(message["life_s"])
    faulthandler.register(signal.SIGUSR1)  # a worker that hangs is asked where
    code = 1
    try:
        source, out, errors, shared = fds
        os.dup2(source, 0)
        os.dup2(errors, 2)
        stage = roles.Stage(out, mmap.mmap(shared, mmap.PAGESIZE))
        roles.ROLES[message["fork"]](stage, **message["options"])
        code = 0
    except BaseException:  # noqa: BLE001 - whatever it was, the test reads it
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    with socket.socket(fileno=os.dup(0)) as inherited:
        serve(inherited)
