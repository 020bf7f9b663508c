"""A page for Prometheus to scrape: needs the extra ``prometheus``.

::

    from orchestra.observe.prometheus import serve

    stop = serve(orc)  # http://127.0.0.1:9464/metrics

Names are those that OpenTelemetry's collector would give the same metrics, so one dashboard fits both:
`dashboard` is the path of ours.
"""

from __future__ import annotations

import os
import re
import socket
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from http.server import ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer

from prometheus_client import CollectorRegistry, Counter, Histogram, MetricsHandler
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from orchestra.observe.feed import Client, Feed
from orchestra.observe.instruments import INSTRUMENTS, Instrument
from orchestra.observe.measuring import Measurement, seen_in

__all__ = ["Page", "dashboard", "metric_name", "serve"]

HOST, PORT = "127.0.0.1", 9464
"""By default nobody but this machine can look. The port is that of OpenTelemetry's own Prometheus exporters."""

_UNITS = {"s": "_seconds", "1": "_ratio"}
_POLL_SECONDS = 0.05  # how soon the server's thread sees that it is to end


def serve(client: Client, host: str = HOST, port: int = PORT) -> Callable[[], None]:
    """Serve the page of ``client`` (an `Orchestra`) at ``http://HOST:PORT/metrics`` from a thread of its own.

    Returns the function that ends it. Raises OSError where there can be no server, mostly since the port is taken.
    """
    page = Page(client)
    try:
        server = _Server((host, port), MetricsHandler.factory(page.registry))
    except BaseException:
        page.close()
        raise
    name = f"orchestra metrics {port}"
    thread = threading.Thread(target=server.serve_forever, args=(_POLL_SECONDS,), name=name, daemon=True)
    thread.start()

    pid = os.getpid()

    def stop() -> None:
        forgotten.detach()
        page.close()
        if os.getpid() == pid:  # a forked child has the socket, but no thread that serves it
            server.shutdown()
        server.server_close()

    # A client that nobody closes ends its page, too: not in the thread that collects it, which may be the page's.
    forgotten = weakref.finalize(client, lambda: threading.Thread(target=stop, daemon=True).start())
    forgotten.atexit = False
    return stop


def dashboard() -> Path:
    """Return where the Grafana dashboard is: import it, and choose the Prometheus that scrapes the page."""
    return Path(__file__).with_name("dashboard.json")


class Page(Collector):
    """What a scrape of ``client`` finds in ``registry``, until `close`."""

    def __init__(self, client: Client) -> None:
        self.registry = CollectorRegistry()
        self._client = weakref.ref(client)
        self._put: dict[str, Callable[[float, Sequence[str]], None]] = {}
        for one in INSTRUMENTS:
            if one.kind == "histogram":
                self._put[one.name] = self._histogram(one)
            elif one.kind == "counter":
                self._put[one.name] = self._counter(one)
        self.registry.register(self)
        self._feed = Feed(client, self._record)

    def close(self) -> None:
        """Count no more. May be called again."""
        self._feed.close()

    def collect(self) -> Iterable[Metric]:
        """Return what there is to see now; prometheus_client asks for it, with each scrape."""
        families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
        for one in INSTRUMENTS:
            if one.kind in ("gauge", "total"):
                made = GaugeMetricFamily if one.kind == "gauge" else CounterMetricFamily
                families[one.name] = made(metric_name(one), one.description, labels=_labels(one))
        client = self._client()
        for seen in seen_in(client.snapshot() if client is not None else {}):
            families[seen.name].add_metric(seen.labels, seen.value)
        return families.values()

    def describe(self) -> Iterable[Metric]:
        """Return nothing: what is registered needs no look at the client."""
        return ()

    def _record(self, measured: Measurement) -> None:
        self._put[measured.name](measured.value, measured.labels)

    def _histogram(self, one: Instrument) -> Callable[[float, Sequence[str]], None]:
        made = Histogram(
            metric_name(one), one.description, _labels(one), buckets=one.buckets, registry=self.registry
        )
        return lambda value, labels: made.labels(*labels).observe(value)

    def _counter(self, one: Instrument) -> Callable[[float, Sequence[str]], None]:
        made = Counter(metric_name(one), one.description, _labels(one), registry=self.registry)
        return lambda value, labels: made.labels(*labels).inc(value)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, handler)

    def server_bind(self) -> None:
        """Bind, without asking the network for the machine's name, as HTTP servers do: nobody needs it."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: whoever asked has gone."""


def metric_name(one: Instrument) -> str:
    """Return what Prometheus calls an instrument, without the ``_total`` that counters get."""
    return re.sub(r"\W", "_", one.name) + _UNITS.get(one.unit, "")


def _labels(one: Instrument) -> list[str]:
    return [re.sub(r"\W", "_", label) for label in one.labels]
