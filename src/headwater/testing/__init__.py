"""Tools to test with: a file system in memory that crashes, fails and forgets on purpose."""

from headwater.testing._faultfs import FaultFS
from headwater.testing._faults import Crash, Fault, Operation
from headwater.testing._journal import Journal

__all__ = ["Crash", "Fault", "FaultFS", "Journal", "Operation"]
