"""What happens without being asked: the deleter, the archiver, backpressure, numbers."""

from __future__ import annotations

import logging
import threading
import urllib.request
from typing import TYPE_CHECKING

import pytest

from headwater.errors import (
    ArchiveError,
    ConflictError,
    InvalidInputError,
    OverloadedError,
    UnsupportedError,
)
from headwater.store import METRICS, Deleter, DeleterConfig, Meters, Store
from headwater.store._exporter import serve
from headwater.testing import Fault
from tests.store.shop import ARCHIVE, BIG, NAME, ROOT, Shop, fill, limits, shop, values

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["shop"]

REQUIRED = (
    "wal_retention_files_deleted_total",
    "wal_retention_bytes_reclaimed_total",
    "wal_retention_errors_total",
    "wal_retention_last_run_timestamp",
    "wal_total_disk_usage_bytes",
)


def meters(store: Store) -> Meters:
    """The store's own numbers."""
    found = store.metrics
    assert isinstance(found, Meters)
    return found


# --- the deleter ----------------------------------------------------------------------------------


def test_deleter_is_the_one_of_the_requirement(shop: Shop) -> None:
    """S1-10, S1-11: config and deleter have the names, fields and defaults that are required."""
    assert DeleterConfig._fields[:3] == (
        "check_interval_minutes",
        "retention_time_minutes",
        "retention_size_mb",
    )
    topic = shop.topic(limits(archive=True, time_minutes=1))
    fill(topic, 3)
    topic.archive()
    shop.wait_minutes(10)
    deleter = Deleter.new(topic)
    assert deleter.topic_path == NAME
    assert deleter.wal_dir == f"{ROOT}/{NAME}"
    assert deleter.config == DeleterConfig(5, 1, None)
    assert deleter.checkpoint_store.checkpoints()[0].start_offset == 0
    assert deleter.run_cycle(dry_run=True).deleted == ()
    assert deleter.run_cycle().deleted == ((0, 0), (0, 1))
    assert deleter.checkpoint_store.checkpoints()[0].start_offset == 2
    with pytest.raises(UnsupportedError, match="retention of topic sales/off is off"):
        Deleter.new(shop.store().topic("sales/off"))


def test_deleter_of_a_topic_runs_once(shop: Shop) -> None:
    """S1-19: however many look after the topic, one is its deleter, and another takes over."""
    topic = shop.topic(limits(archive=True, time_minutes=1))
    fill(topic, 3)
    topic.archive()
    shop.wait_minutes(10)
    first, second = Deleter(topic), Deleter(shop.topic(limits(archive=True, time_minutes=1)))
    assert first.claim()
    assert first.claim()
    assert not second.claim()
    second.step()
    assert shop.segments()[0] == 0
    first.stop()
    second.step()
    assert shop.segments()[0] == 2
    assert not first.claim()
    second.stop()


def test_deleter_started_works_in_the_background(tmp_path: Path) -> None:
    """S1-10: `start` returns the handle of a task; a second start is the same task."""
    config = {"defaults": {"segment_bytes": "64KiB", "allow_unarchived": True}}
    with Store(tmp_path, config, background=False) as store:
        topic = store.topic(NAME)
        for n in range(4):
            topic.append(bytes([n]) * 40_000)
        deleter = Deleter(topic, DeleterConfig(5, None, 0.07))
        ran = threading.Event()
        honest = topic.retain

        def retain(**options: object) -> object:
            try:
                return honest(**options)  # type: ignore[arg-type]
            finally:
                ran.set()

        topic.retain = retain  # type: ignore[method-assign, assignment]
        thread = deleter.start()
        assert deleter.start() is thread
        assert ran.wait(60)
        deleter.stop()
        assert not thread.is_alive()
        assert topic.stats()[0].start_sequence == 3


def test_worker_archives_and_deletes_when_it_is_due(shop: Shop) -> None:
    """S1-14, S1-19: started with the topic; cycles come in their interval, not before."""
    config = limits(archive=True, time_minutes=1, check_interval_minutes=5)
    store = shop.store(config)
    topic = store.topic(NAME)
    store.step()
    fill(topic, 3)
    store.step()
    assert topic.waiting_bytes() == 0
    assert shop.segments()[0] == 0
    shop.wait_minutes(4)
    store.step()
    assert shop.segments()[0] == 0
    shop.wait_minutes(1.1)
    store.step()
    assert shop.segments()[0] == 2
    assert values(topic) == [0, 1, 2]


def test_topics_take_turns_at_the_archive(shop: Shop) -> None:
    """One with much to archive does not keep another waiting until it is done."""
    store = shop.store(limits(archive=True))
    busy, brief = store.topic(NAME), store.topic("sales/brief")
    fill(busy, 21)
    fill(brief, 2)
    order: list[str] = []
    for topic in (busy, brief):
        archive = topic.archive_of(0)
        assert archive is not None
        honest = archive.archiver.step

        def step(honest: Callable[[], object] = honest, name: str = topic.name) -> object:
            order.append(name)
            return honest()

        archive.archiver.step = step  # type: ignore[method-assign, assignment]
    store.step()
    assert (busy.waiting_bytes(), brief.waiting_bytes()) == (0, 0)
    assert order.index("sales/brief") <= 4
    assert order.count(NAME) >= 20


def test_cycle_that_fails_is_logged_and_the_next_one_comes(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    """S1-18: the service degrades, it does not end."""
    store = shop.store(limits(archive=True, time_minutes=1))
    topic = store.topic(NAME)
    fill(topic, 3)
    topic.archive()
    shop.wait_minutes(10)
    shop.fs.fail_when(lambda o: o.kind == "open" and o.path.endswith("manifest.2"), Fault.EIO)
    shop.fs.fail_when(lambda o: o.kind == "open" and o.path.endswith("manifest.1"), Fault.EIO)
    with caplog.at_level(logging.ERROR):
        store.step()
    assert "the next one comes" in caplog.text
    shop.fs.heal()
    shop.wait_minutes(10)
    store.step()
    assert shop.segments()[0] == 2


def test_threads_of_a_store_do_their_work_and_end_with_it(tmp_path: Path) -> None:
    """A store in the writer's process archives and deletes by itself."""
    config = {
        "archive": str(tmp_path / "cold"),
        "defaults": {"segment_bytes": "64KiB", "retention": {"size_mb": 0.07}},
    }
    before = set(threading.enumerate())
    with Store(tmp_path / "data", config) as store:
        topic = store.topic(NAME)
        for n in range(6):
            topic.append(bytes([n]) * 40_000)
        ended = threading.Event()
        for _ in range(600):
            if topic.waiting_bytes() == 0 and topic.stats()[0].archived_sequence == 5:
                break
            ended.wait(0.1)
        topic.retain()
        assert topic.stats()[0].start_sequence == 5
        assert [record.value[0] for record in topic.history()] == list(range(6))
    assert set(threading.enumerate()) <= before  # one of another test may end meanwhile


# --- the archive ----------------------------------------------------------------------------------


def test_outage_of_the_archive_is_survived_and_made_up_for(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    """Appends go on up to `max_unarchived_mb`; a warning at half; then an error to try again.

    When the archive is back everything that waits is archived, and appends go on.
    """
    config = limits(archive=True)
    config["defaults"] = {"max_unarchived_mb": 6 * 4096 / 2**20}
    store = shop.store(config)
    topic = store.topic(NAME)
    fill(topic, 1)
    shop.fs.fail_when(lambda o: o.path.startswith(ARCHIVE) and o.kind == "open", Fault.EIO)
    with caplog.at_level(logging.WARNING):
        with pytest.raises(OverloadedError, match="wait for the archive") as caught:
            fill(topic, 20)
        assert topic.partition(0).writer.next_sequence < 12
        store.step()
        store.step()
    assert caught.value.partition == f"{NAME}[0]"
    assert str(caught.value.limit).startswith("max_unarchived_mb=")
    assert caplog.text.count("more than half of max_unarchived_mb") == 1
    assert caplog.text.count("archiving failed; again in 30 s") == 1
    found = meters(store)
    assert found.value("headwater_overloaded_total", topic=NAME) == 1
    assert found.value("headwater_archive_pressure_ratio", topic=NAME) >= 1
    assert found.value("headwater_archive_errors_total", topic=NAME) == 1
    acked = topic.partition(0).writer.next_sequence
    shop.fs.heal()
    shop.wait_minutes(1)
    store.step()
    assert topic.waiting_bytes() == 0
    fill(topic, 3)
    assert values(topic) == list(range(acked + 3))


def test_host_that_lost_its_archive_stops_archiving_for_good(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    """The old host, coming back after a restore elsewhere, is refused; nothing is mixed."""
    old = shop.store(limits(archive=True))
    topic = old.topic(NAME)
    fill(topic, 4)
    topic.archive()
    fill(topic, 1)
    other = Store("/elsewhere", limits(archive=True), home=shop.home())
    shop.stores.append(other)
    restored = other.restore_topic(NAME)
    assert restored.append(b"\x63", key=b"new host") == 3
    with pytest.raises(ConflictError):
        topic.archive()
    with caplog.at_level(logging.ERROR):
        old.step()
        shop.wait_minutes(5)
        old.step()
    assert caplog.text.count("archiving stopped for good") == 1
    assert [record.value[0] for record in restored.history()] == [0, 1, 2, 0x63]


def test_restored_topic_has_every_field_and_goes_on(shop: Shop) -> None:
    """Keys None and empty, headers, nanoseconds, partitions, producers; then new sequences."""
    store = shop.store(limits(archive=True))
    topic = store.topic(NAME, partitions=3)
    for number in range(2):
        topic.append(b"", key=None, timestamp_ns=1, partition=number)
        topic.append(b"v", key=b"", headers=[("a", None), ("a", b"")], partition=number)
        topic.append_many([b"x", b"y"], partition=number, producer="etl", batch=7)
    topic.roll()
    topic.archive()
    expected = [list(topic.history(partition=number)) for number in range(3)]
    store.close()
    fresh = Store("/fresh", limits(archive=True), home=shop.home())
    shop.stores.append(fresh)
    assert fresh.archived_topics() == [NAME]
    with pytest.raises(ArchiveError, match="knows no topic"):
        fresh.restore_topic("sales/never")
    again = fresh.restore_topic(NAME)
    assert again.partitions == 3
    assert [list(again.history(partition=number)) for number in range(3)] == expected
    assert again.append_many([b"x", b"y"], partition=0, producer="etl", batch=7) == {0: range(2, 4)}
    assert again.append(b"next", partition=0) == 4
    assert again.append(b"first", partition=2) == 0
    with again.reader("r") as reader:
        assert len(list(reader)) == 10
    with pytest.raises(InvalidInputError, match="is open here"):
        fresh.restore_topic(NAME)
    with pytest.raises(InvalidInputError, match="no archive configured"):
        shop.store().restore_topic(NAME)


def test_archive_without_one_is_an_error(shop: Shop) -> None:
    """Asking for what is not configured says so."""
    with pytest.raises(InvalidInputError, match="has no archive"):
        shop.topic().archive()


# --- numbers --------------------------------------------------------------------------------------


def test_names_of_the_requirement_have_the_label_topic_alone(shop: Shop) -> None:
    """S1-21: exactly the five; everything else begins with headwater_."""
    for name in REQUIRED:
        assert METRICS[name].labels == ("topic",)
    assert [name for name in METRICS if not name.startswith("headwater_")] == list(REQUIRED)
    assert all(metric.labels[0] == "topic" for metric in METRICS.values())
    store = shop.store(limits(archive=True, time_minutes=1))
    topic = store.topic(NAME)
    fill(topic, 3)
    topic.archive()
    shop.wait_minutes(10)
    report = topic.retain()
    found = meters(store)
    assert found.value("wal_retention_files_deleted_total", topic=NAME) == 2
    assert (
        found.value("wal_retention_bytes_reclaimed_total", topic=NAME) == report.bytes_reclaimed > 0
    )
    assert found.value("wal_retention_errors_total", topic=NAME) == 0
    last_s = found.value("wal_retention_last_run_timestamp", topic=NAME)
    assert last_s == pytest.approx(shop.clock.now_ns / 1e9)
    assert found.value("wal_total_disk_usage_bytes", topic=NAME) == report.disk_bytes
    assert found.value("headwater_retention_segments_total", topic=NAME, rule="time") == 2


def test_errors_of_a_cycle_are_counted(shop: Shop) -> None:
    """S1-21, S1-31: one for each file that could not be removed."""
    store = shop.store(limits(archive=True, time_minutes=1))
    topic = store.topic(NAME)
    fill(topic, 3)
    topic.archive()
    shop.wait_minutes(10)
    shop.fs.fail_when(lambda o: o.kind == "unlink" and o.path.endswith("0.q"), Fault.EACCES)
    topic.retain()
    assert meters(store).value("wal_retention_errors_total", topic=NAME) == 1


def test_gauges_show_what_is_there_when_asked(shop: Shop) -> None:
    """Lag of readers in records and seconds, tiers, lag of the archive, poisoned writers."""
    store = shop.store(limits(archive=True))
    topic = store.topic(NAME)
    fill(topic, 4)
    with topic.reader("r") as reader:
        reader.commit(reader.read_batch(2)[-1])
        shop.wait_minutes(1)
        store.collect()
        found = meters(store)
        place = {"topic": NAME, "partition": "0"}
        assert found.value("headwater_reader_lag_records", reader="r", **place) == 2
        assert found.value("headwater_reader_lag_seconds", reader="r", **place) == pytest.approx(60)
        assert found.value("headwater_next_sequence", **place) == 4
        assert found.value("headwater_segments", topic=NAME, tier="local") == 4
        assert found.value("headwater_archive_lag_segments", topic=NAME) == 3
        assert found.value("headwater_archive_lag_seconds", topic=NAME) == pytest.approx(60)
        assert found.value("headwater_poisoned_writers", topic=NAME) == 0
        reader.close()
    shop.fs.fail_when(lambda o: o.kind == "datasync" and o.path.endswith(".q"), Fault.EIO)
    with pytest.raises(Exception, match="a sync failed"):
        topic.append(b"lost")
    store.collect()
    assert meters(store).value("headwater_poisoned_writers", topic=NAME) == 1
    shop.fs.heal()


def test_numbers_of_appends_and_syncs_are_counted(tmp_path: Path) -> None:
    """Rate and latency of appends, latency of syncs of segments."""
    with Store(tmp_path, {"defaults": {"segment_bytes": "64KiB"}}, background=False) as store:
        topic = store.topic(NAME, partitions=2)
        topic.append(b"abc", partition=1)
        topic.append_many([b"d", b"ef"], partition=1)
        found = meters(store)
        place = {"topic": NAME, "partition": "1"}
        assert found.value("headwater_appended_records_total", **place) == 3
        assert found.value("headwater_appended_bytes_total", **place) == 6
        counts = {s.name: sum(s.counts) for s in found.samples() if s.counts}
        assert counts["headwater_append_seconds"] == 2
        assert counts["headwater_sync_seconds"] >= 2
        with pytest.raises(KeyError):
            found.add("headwater_append_seconds", 1, tenant="x")


def test_prometheus_reads_the_numbers(tmp_path: Path) -> None:
    """Over HTTP, in its text format, with names and labels as they are in the table."""
    config = {"defaults": {"segment_bytes": "64KiB", "retention": {}}}
    with Store(tmp_path, config, background=False) as store:
        topic = store.topic(NAME)
        topic.append(b"a")
        topic.retain()
        port, end = serve(store, 0)
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                lines = answer.read().decode().splitlines()
        finally:
            end()
    for name in REQUIRED:
        (line,) = [line for line in lines if line.startswith(name + "{")]
        assert line.startswith(f'{name}{{topic="{NAME}"}} ')
    assert f'headwater_append_seconds_count{{topic="{NAME}"}} 1.0' in lines
    assert f'headwater_next_sequence{{partition="0",topic="{NAME}"}} 1.0' in lines


def test_every_name_of_the_table_is_told(shop: Shop) -> None:
    """No name without a number behind it: a life with archive, limits, faults and a recovery."""
    config = limits(archive=True, time_minutes=1)
    defaults = config["defaults"]
    assert isinstance(defaults, dict)
    defaults["max_unarchived_mb"] = 0.01
    store = shop.store(config)
    topic = store.topic(NAME)
    with pytest.raises(OverloadedError):
        fill(topic, 20)
    shop.fs.fail_when(lambda o: o.path.startswith(ARCHIVE) and o.kind == "open", Fault.EIO)
    store.step()
    shop.fs.heal()
    with topic.reader("r") as reader:
        reader.read_batch(1)
    shop.wait_minutes(10)
    store.step()
    store.collect()
    told = {sample.name for sample in meters(store).samples()}
    assert set(METRICS) - told == {"headwater_sync_seconds"}  # timed on a real disk only
    requests = meters(store)
    assert requests.value("headwater_remote_requests_total", topic=NAME, operation="put") > 3
    assert requests.value("headwater_remote_errors_total", topic=NAME, operation="put") > 0
    assert requests.value("headwater_segments", topic=NAME, tier="archive") > 2
    assert requests.value("headwater_bytes", topic=NAME, tier="archive") > 0


def test_torn_tail_that_was_cut_is_counted(shop: Shop) -> None:
    """Bytes and records that a recovery had to cut, by partition."""
    store = shop.store({"defaults": {"durability": "os"}})
    fill(store.topic(NAME), 1)
    store.topic(NAME).append(b"second" * 10)
    shop.fs = shop.fs.after_power_crash(3, "random")
    again = shop.store()
    topic = again.topic(NAME)
    topic.append(b"x")
    log = topic.partition(0).writer
    labels = {"topic": NAME, "partition": "0"}
    found = meters(again)
    assert found.value("headwater_torn_bytes_total", **labels) == log.recovery.torn_bytes
    assert found.value("headwater_cut_records_total", **labels) == log.recovery.cut_records
    assert log.recovery.torn_bytes + log.recovery.cut_records > 0


def test_numbers_may_go_elsewhere(shop: Shop) -> None:
    """Anything with the three methods of a hook is given every number."""
    told: list[str] = []

    class Elsewhere:
        def add(self, name: str, amount: float, **labels: str) -> None:
            told.append(f"{name} {amount} {sorted(labels)}")

        def set(self, name: str, value: float, **labels: str) -> None:
            told.append(f"{name} {value} {sorted(labels)}")

        def observe(self, name: str, seconds: float, **labels: str) -> None:
            told.append(f"{name} {sorted(labels)} {seconds >= 0}")

    store = Store(ROOT, {}, home=shop.home(), metrics=Elsewhere())
    store.config.defaults.values["segment_bytes"] = 4096
    shop.stores.append(store)
    store.topic(NAME).append(b"x" * BIG)
    assert "headwater_appended_records_total 1 ['partition', 'topic']" in told
    assert "headwater_append_seconds ['topic'] True" in told
    with pytest.raises(InvalidInputError, match="go elsewhere"):
        serve(store, 0)
