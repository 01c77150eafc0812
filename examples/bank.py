"""Four threads take money from one account, and none of them takes what is not there.

Every withdrawal is decided on a balance and appended only if the log still ends where that balance
was seen. The log is rotated all the while.

python examples/bank.py bank.events
"""

from __future__ import annotations

import sys
import threading

from headwater.errors import ConflictError
from headwater.events import Event, EventLog, EventReader, OpenView, View

OPENING = 1000


def balance(total: int, event: Event) -> int:
    """Add what an event moves."""
    return total + int(event.data["amount"])


ACCOUNT: View[int, Event] = View("balance", balance, 0)


def withdraw(log: EventLog, account: OpenView[int, Event], amount: int) -> bool:
    """Take an amount if it is there; False when it is not."""
    while account.refresh() >= amount:
        end = log.end
        if account.sequence != end.sequence:
            continue  # somebody appended since: look again
        event = Event.new("withdrawn", {"amount": -amount}, actor=threading.current_thread().name)
        try:
            log.append_if(event, end.offset, end.hash, expected_sequence=end.sequence)
        except ConflictError:
            continue  # somebody was quicker
        return True
    return False


def work(log: EventLog, amount: int, taken: list[int]) -> None:
    """Withdraw until there is too little left, with a view of one's own."""
    account = OpenView(ACCOUNT, log.reader(), keep=False)
    while withdraw(log, account, amount):
        taken.append(amount)


def main(folder: str) -> int:
    """Open an account, empty it from four sides, and count."""
    with EventLog(folder, max_log_bytes=2000, durability="os") as log:
        account = log.view(ACCOUNT)
        log.append(Event.new("opened", {"amount": OPENING}))
        start = account.refresh()
        taken: list[int] = []
        threads = [
            threading.Thread(target=work, args=(log, amount, taken), name=f"teller {amount}")
            for amount in (7, 11, 13, 17)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        left = account.refresh()
    events = sum(1 for _ in EventReader(folder).read_full())
    print(f"{start} in, {sum(taken)} out, {left} left after {events} events")
    return 0 if start - sum(taken) == left and 0 <= left < min(7, start) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]) if len(sys.argv) > 1 else print(__doc__))
