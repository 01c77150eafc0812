"""The archive of a log: its sealed segments as Parquet files in an object store or a folder.

`Archiver` fills it, `History` reads through it and the log as if they were one, `restore` makes a
log from it that goes on where it ends. `compact` makes few large files of many small ones,
`publish_delta` a Delta table over them. Needs the extra `archive`.
"""

from headwater.archive._archive import Archive, Lease, partition_folder
from headwater.archive._archiver import Archived, Archiver, Pending, Vouched
from headwater.archive._catalogue import Entry, Head
from headwater.archive._checkpoint import Progress
from headwater.archive._compact import (
    CompactionReport,
    commit_compaction,
    compact,
    plan_compaction,
)
from headwater.archive._delta import Published, publish_delta
from headwater.archive._history import History
from headwater.archive._local import LocalStore
from headwater.archive._merge import CompactionGroup, Merged, merge_group, sweep_compactions
from headwater.archive._open import open_store
from headwater.archive._probe import is_conditional
from headwater.archive._restore import Restored, restore
from headwater.archive._retry import Retry, Retrying
from headwater.archive._store import Got, MissingError, ObjectInfo, ObjectStore, UnreachableError

__all__ = [
    "Archive",
    "Archived",
    "Archiver",
    "CompactionGroup",
    "CompactionReport",
    "Entry",
    "Got",
    "Head",
    "History",
    "Lease",
    "LocalStore",
    "Merged",
    "MissingError",
    "ObjectInfo",
    "ObjectStore",
    "Pending",
    "Progress",
    "Published",
    "Restored",
    "Retry",
    "Retrying",
    "UnreachableError",
    "Vouched",
    "commit_compaction",
    "compact",
    "is_conditional",
    "merge_group",
    "open_store",
    "partition_folder",
    "plan_compaction",
    "publish_delta",
    "restore",
    "sweep_compactions",
]
