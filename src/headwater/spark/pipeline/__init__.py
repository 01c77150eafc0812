"""Pipeline jobs: what is done with a whole history at once.

Each job is a function with the options of the command `headwater spark <job>`. It takes a session,
shows progress while it runs, goes on where it was after a kill, can be run again at any time, and
returns a `JobReport`. Spark carries descriptors of the work to the workers, which read logs and
archives themselves: rows never pass through the JVM for it.
"""

from headwater.spark.pipeline._compact import compact
from headwater.spark.pipeline._export import export
from headwater.spark.pipeline._ingest import ingest
from headwater.spark.pipeline._job import JobReport
from headwater.spark.pipeline._rebuild import rebuild_view
from headwater.spark.pipeline._replay import replay
from headwater.spark.pipeline._retention import retention_plan
from headwater.spark.pipeline._verify import verify

__all__ = [
    "JobReport",
    "compact",
    "export",
    "ingest",
    "rebuild_view",
    "replay",
    "retention_plan",
    "verify",
]
