"""The numbers of a store for Prometheus. Needs the extra `metrics`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.errors import InvalidInputError, UnsupportedError
from headwater.store._metrics import BOUNDS_S, METRICS, Meters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client.core import Metric as Family

    from headwater.store._metrics import Sample
    from headwater.store._store import Store


class Exporter:
    """A collector as `prometheus_client` wants one."""

    def __init__(self, store: Store) -> None:
        meters = store.metrics
        if not isinstance(meters, Meters):
            raise InvalidInputError("the store's numbers go elsewhere: export them from there")
        self._store = store
        self._meters = meters

    def collect(self) -> Iterator[Family]:
        """Every number as it is now."""
        self._store.collect()
        families: dict[str, list[Sample]] = {}
        for sample in self._meters.samples():
            families.setdefault(sample.name, []).append(sample)
        for name, samples in families.items():
            yield _family(name, samples)


def _family(name: str, samples: list[Sample]) -> Family:
    from prometheus_client.core import (  # noqa: PLC0415 - optional
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )

    metric = METRICS[name]
    if metric.kind == "histogram":
        histogram = HistogramMetricFamily(name, metric.help, labels=metric.labels)
        for sample in samples:
            histogram.add_metric(
                list(sample.labels.values()), _buckets(sample.counts), sample.value
            )
        return histogram
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = kind(name, metric.help, labels=metric.labels)
    for sample in samples:
        family.add_metric(list(sample.labels.values()), sample.value)
    return family


def _buckets(counts: tuple[int, ...]) -> list[tuple[str, float]]:
    """Counts of all times up to each bound."""
    found: list[tuple[str, float]] = []
    total = 0
    for bound, count in zip([*map(str, BOUNDS_S), "+Inf"], counts, strict=True):
        total += count
        found.append((bound, total))
    return found


def serve(store: Store, port: int, address: str = "127.0.0.1") -> tuple[int, Callable[[], None]]:
    """Answer Prometheus on a port (0: any that is free); returns the port, and how to end it."""
    try:
        from prometheus_client import CollectorRegistry, start_http_server  # noqa: PLC0415
    except ImportError as error:
        raise UnsupportedError(
            "serving metrics needs the extra `metrics`: pip install 'headwater[metrics]'"
        ) from error
    registry = CollectorRegistry()
    registry.register(Exporter(store))
    server, thread = start_http_server(port, address, registry)

    def end() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return server.server_port, end
