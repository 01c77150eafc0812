"""A to-do list on the command line, kept as events.

python examples/todo.py todo.events add "buy milk"
python examples/todo.py todo.events done 0
python examples/todo.py todo.events
"""

from __future__ import annotations

import sys
from typing import TypedDict

from headwater.events import Event, EventLog


class Task(TypedDict):
    """One task."""

    text: str
    done: bool


def todos(tasks: dict[str, Task], event: Event) -> dict[str, Task]:
    """Fold an event into the list; unknown ones change nothing."""
    if event.type == "added":
        tasks[event.data["id"]] = {"text": event.data["text"], "done": False}
    elif event.type == "done" and event.data["id"] in tasks:
        tasks[event.data["id"]]["done"] = True
    return tasks


def main(words: list[str]) -> int:
    """Add a task, mark one as done, or print them all."""
    folder, *command = words
    with EventLog(folder, max_log_bytes=1024 * 1024) as log:
        tasks = log.view("tasks", todos, dict[str, Task])
        match command:
            case ["add", text]:
                log.append(Event.new("added", {"id": str(len(tasks.refresh())), "text": text}))
            case ["done", task]:
                log.append(Event.new("done", {"id": task}))
            case []:
                pass
            case _:
                print(__doc__)
                return 2
        for name, task in tasks.refresh().items():
            print(f"{'x' if task['done'] else ' '} {name} {task['text']}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) if len(sys.argv) > 1 else print(__doc__))
