"""The commands about topics, in this process; and `store run` as a process that gets SIGTERM."""

from __future__ import annotations

import json
import signal
import time
import urllib.request
from typing import TYPE_CHECKING

import pytest

from headwater.store import Store
from tests.store.shop import NAME
from tests.unit.commands import PATIENCE_S, run, started

if TYPE_CHECKING:
    from pathlib import Path

KIB = 1024


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a configuration: small segments, an archive, tight limits."""
    config = {
        "archive": "cold",
        "defaults": {
            "segment_bytes": "64KiB",
            "retention": {"time_minutes": None, "size_mb": 0.07, "check_interval_minutes": 0.01},
        },
        "topics": {NAME: {}},
    }
    (tmp_path / "store.json").write_text(json.dumps(config))
    return tmp_path


def arguments(place: Path, *more: object) -> tuple[object, ...]:
    """What every command about a topic takes."""
    return (place / "data", *more, "--config", place / "store.json")


def filled(place: Path, count: int) -> None:
    """A topic with so many segments."""
    with Store(place / "data", place / "store.json", background=False) as store:
        topic = store.topic(NAME)
        for n in range(count):
            topic.append(bytes([n]) * 40 * KIB)


def test_topic_is_made_listed_shown_and_deleted(tmp_path: Path) -> None:
    """The life of a topic, in words."""
    root = tmp_path / "data"
    assert run("topic", "list", root).text == "no topics\n"
    assert run("topic", "create", root, NAME, "--partitions", 4).text == (
        "made sales/orders, 4 partitions\n"
    )
    assert run("topic", "create", root, NAME).text == "is there: sales/orders, 4 partitions\n"
    other = run("topic", "create", root, NAME, "--partitions", 5)
    assert other.code == 3
    assert "has 4 partitions, not 5" in other.err
    listed = run("topic", "list", root, "--json").document
    assert listed == [{"topic": NAME, "partitions": 4, "records": 0, "disk_bytes": 0}]
    info = run("topic", "info", root, NAME).text
    assert "sales/orders, 4 partitions" in info
    assert "off: nothing is deleted by age or size" in info
    assert len(run("topic", "info", root, NAME, "--json").document["partitions"]) == 4
    assert run("topic", "delete", root, NAME).code == 2
    declined = run("topic", "delete", root, NAME, stdin=b"n\n", terminal=True)
    assert declined.code == 1
    assert "delete sales/orders?" in declined.err
    assert run("topic", "delete", root, NAME, stdin=b"y\n", terminal=True).text == (
        "deleted sales/orders, 0 records\n"
    )
    assert run("topic", "info", root, NAME).code == 3
    assert run("topic", "create", root, "orders").code == 3
    assert run("topic").code == 2


def test_topic_is_archived_retained_and_restored(place: Path) -> None:
    """Seal, archive, rehearse, delete, and make it again from the archive alone."""
    filled(place, 4)
    archived = run("archive", *arguments(place, NAME, "--seal"))
    assert archived.text == "archived 4 segments\n"
    assert run("archive", *arguments(place, NAME), "--json").document["segments"] == 0
    plan = run("retain", *arguments(place, NAME, "--dry-run"))
    assert plan.text.splitlines()[0] == "sales/orders partition 0"
    assert "deletes 0 to" in plan.text
    assert "over the limit of 0.07 MiB" in plan.text
    before = run("topic", "info", *arguments(place, NAME), "--json").document["partitions"][0]
    assert before["start_sequence"] == 0
    done = run("retain", *arguments(place, NAME), "--json").document
    assert done["deleted"]
    assert done["errors"] == []
    restored = run("restore", place / "cold", place / "fresh")
    assert restored.text == "restored sales/orders; it goes on at 4\n"
    with Store(place / "fresh", {"archive": str(place / "cold")}, background=False) as store:
        assert [r.value[0] for r in store.topic(NAME).history()] == [0, 1, 2, 3]
        assert store.topic(NAME).append(b"x") == 4
    assert run("restore", place / "nothing", place / "other").code == 2
    missing = run("restore", place / "cold", place / "other", "--topic", "sales/none")
    assert missing.code == 3
    assert "knows no topic sales/none" in missing.err


def test_configuration_is_checked(place: Path) -> None:
    """Right: what holds for each topic. Wrong: exit code 1, and what would be right."""
    good = run("config", "check", place / "store.json")
    assert good.code == 0
    assert "right, 1 topic named" in good.text
    assert "durability sync" in good.text
    shown = run("config", "check", place / "store.json", "--json").document
    assert shown[NAME]["retention"]["retention_size_mb"] == 0.07
    (place / "bad.yaml").write_text("defaults: {durability: mostly}\n")
    bad = run("config", "check", place / "bad.yaml")
    assert bad.code == 1
    assert f"{place}/bad.yaml: defaults.durability: 'mostly' is not accepted" in bad.err
    assert run("topic", "list", place / "data", "--config", place / "bad.yaml").code == 3


def test_store_run_works_beside_a_writer_until_sigterm(place: Path) -> None:
    """It archives what another process seals, deletes it, tells its numbers, ends in order."""
    with Store(place / "data", place / "store.json", background=False) as store:
        topic = store.topic(NAME)
        topic.append(bytes(40 * KIB))
        command = ("store", "run", *arguments(place), "--metrics-port", 0)
        with started(*command) as process:
            assert process.stderr is not None
            line = process.stderr.readline().decode()
            assert line.startswith("headwater: metrics at http://127.0.0.1:")
            url = line.split()[-1]
            assert "looking after 1 topic" in process.stderr.readline().decode()
            for n in range(1, 6):
                topic.append(bytes([n]) * 40 * KIB)
            text = ""
            deadline_s = time.monotonic() + PATIENCE_S
            while time.monotonic() < deadline_s:
                with urllib.request.urlopen(url) as answer:  # noqa: S310 - it is ours
                    text = answer.read().decode()
                if f'wal_retention_files_deleted_total{{topic="{NAME}"}} 5.0' in text:
                    break
            assert f'wal_retention_files_deleted_total{{topic="{NAME}"}} 5.0' in text
            assert f'headwater_archived_segments_total{{topic="{NAME}"}} 5.0' in text
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0
            assert process.stderr.read().decode().endswith("headwater: ending\n")
        assert topic.stats()[0].start_sequence == 5
        assert [record.value[0] for record in topic.history()] == list(range(6))
        assert topic.append(b"on") == 6
