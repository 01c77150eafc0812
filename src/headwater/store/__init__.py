"""Topics: partitioned logs with limits on what is kept here, an archive, and readers over all.

with headwater.Store("data", config="headwater.yaml") as store:
    topic = store.topic("sales/orders", partitions=4)
    topic.append(b"paid", key=b"order-7")
    with topic.reader("billing") as reader:
        for record in reader:
            reader.commit(record)
    topic.retain(dry_run=True)
"""

from __future__ import annotations

from headwater.store._deleter import Deleter
from headwater.store._metrics import METRICS, Hook, Meters
from headwater.store._partition import Partition, WalCheckpoint
from headwater.store._reader import TopicReader, TopicRecord
from headwater.store._retain import RetentionReport
from headwater.store._settings import DeleterConfig, Settings
from headwater.store._stats import PartitionStats
from headwater.store._store import Store
from headwater.store._topic import Topic

__all__ = [
    "METRICS",
    "Deleter",
    "DeleterConfig",
    "Hook",
    "Meters",
    "Partition",
    "PartitionStats",
    "RetentionReport",
    "Settings",
    "Store",
    "Topic",
    "TopicReader",
    "TopicRecord",
    "WalCheckpoint",
]
