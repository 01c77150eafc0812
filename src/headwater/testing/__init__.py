"""Tools to test with: a file system in memory that crashes, fails and forgets on purpose.

`explore` stops a workload of yours after every file operation and checks what is left;
`explore_faults`, `explore_exhaustion` and `explore_full_disk` let it fail instead.
"""

from headwater.testing._explorer import Explored, explore
from headwater.testing._faultfs import FaultFS
from headwater.testing._faulting import explore_exhaustion, explore_faults, explore_full_disk
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
    "explore_exhaustion",
    "explore_faults",
    "explore_full_disk",
]
