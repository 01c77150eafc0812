"""Views over logs: a state folded from the records of a log, kept in a snapshot beside it.

    from headwater import views

    total = views.over(log, views.View("total", lambda total, record: total + 1, 0))
    total.refresh()

Event logs have the same views: `EventLog.view`. Needs nothing but the standard library.
"""

from headwater._fold import OpenView, View
from headwater._snapshot import Codec
from headwater._source import Place, Source
from headwater.views._records import LogSource, over

__all__ = ["Codec", "LogSource", "OpenView", "Place", "Source", "View", "over"]
