"""Runs one pipeline job in a process of its own, so that a test can kill it half way.

    python job_runner.py NAME KILL_AT ARGUMENTS

`ARGUMENTS` is JSON: positional ones, then keyword ones. When `KILL_AT` batches or units are done,
the process kills itself and with it the JVM; 0 lets it run to its end, and its figures are printed.
"""

from __future__ import annotations

import json
import os
import signal
import sys

from headwater.spark import pipeline, session
from tests.spark.conftest import FLAGS


def main() -> None:
    """Run the job that the command line names."""
    name, kill_at, text = sys.argv[1:]
    arguments, keywords = json.loads(text)

    def progress(done: int, _total: int, _last: str) -> None:
        if int(kill_at) and done >= int(kill_at):
            os.kill(os.getpid(), signal.SIGKILL)

    spark = session(master="local[2]", config=FLAGS)
    report = getattr(pipeline, name)(spark, *arguments, **keywords, progress=progress)
    sys.stdout.write(json.dumps(dict(report.figures)) + "\n")
    spark.stop()


if __name__ == "__main__":
    main()
