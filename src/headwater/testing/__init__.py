"""Tools to test with: a file system in memory that crashes, fails and forgets on purpose.

`explore` stops a workload of yours after every file operation and checks what is left.
"""

from headwater.testing._explorer import Explored, explore
from headwater.testing._faultfs import FaultFS
from headwater.testing._faults import Crash, Fault, Operation
from headwater.testing._journal import Journal
from headwater.testing._ledger import Violation
from headwater.testing._world import World

__all__ = [
    "Crash",
    "Explored",
    "Fault",
    "FaultFS",
    "Journal",
    "Operation",
    "Violation",
    "World",
    "explore",
]
