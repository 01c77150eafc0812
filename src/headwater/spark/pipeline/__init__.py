"""Pipeline jobs: what is done with a whole history at once.

Each job is a function with the options of the command `headwater spark <job>`. It takes a session,
shows progress while it runs, goes on where it was after a kill, can be run again at any time, and
returns a `JobReport`. Spark carries descriptors of the work to the workers, which read logs and
archives themselves: rows never pass through the JVM for it.
"""

from headwater.spark.pipeline._job import JobReport

__all__ = ["JobReport"]
