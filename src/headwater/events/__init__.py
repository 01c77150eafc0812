"""Event logs: a folder of JSON lines with a compressed archive, exact rotation, and views.

    from headwater.events import Event, EventLog

    with EventLog("data/orders") as log:
        log.append(Event.new("paid", {"order": 7}))
        paid = log.view("paid", lambda count, event: count + (event.type == "paid"), 0)
        paid.refresh()

The files are those that other implementations of the same design write and read. Needs the extra
`events`.
"""

from headwater._fold import OpenView, View
from headwater._source import Place
from headwater.events._event import MAX_LINE_BYTES, Event, line_hash
from headwater.events._log import EventLog
from headwater.events._reader import Entry, EventReader
from headwater.events._verify import EventsReport, verify
from headwater.events._writer import Appended

__all__ = [
    "MAX_LINE_BYTES",
    "Appended",
    "Entry",
    "Event",
    "EventLog",
    "EventReader",
    "EventsReport",
    "OpenView",
    "Place",
    "View",
    "line_hash",
    "verify",
]
