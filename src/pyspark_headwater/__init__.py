"""What makes Spark find `format("headwater")` by itself: it imports modules that are named so.

A module that cannot be imported would take every other Python source with it, so nothing is raised
here: without its libraries the source is simply not there.
"""

from contextlib import suppress

with suppress(ImportError):
    from headwater.spark._source import HeadwaterSource as DefaultSource

    __all__ = ["DefaultSource"]
