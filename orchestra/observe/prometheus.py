"""A page for Prometheus to scrape: needs the extra ``prometheus``.

::

    from orchestra.observe.prometheus import serve

    stop = serve(orc)  # http://127.0.0.1:9464/metrics

Names are those that OpenTelemetry's collector would give the same metrics, so one dashboard fits both:
`dashboard` is the path of ours.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from http.server import ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any

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
_SILENT_SECONDS = 10.0
_MOST_REQUESTS = 16
"""A scrape takes milliseconds. Who connects and says nothing, or reads nothing, holds a thread for so long."""

_log = logging.getLogger(__name__)


def serve(client: Client, host: str = HOST, port: int = PORT) -> Callable[[], None]:
    """Serve the page of ``client`` (an `Orchestra`) at ``http://HOST:PORT/metrics`` from a thread of its own.

    Port 0 is any that is free: which, a message at level INFO tells. Returns the function that ends it. Raises
    OSError where there can be no server, mostly since the port is taken.
    """
    with ExitStack() as opened:
        page = Page(client)
        opened.callback(page.close)
        server = _Server((host, port), page.registry)
        opened.callback(server.server_close)
        name = f"orchestra metrics {server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(_POLL_SECONDS,), name=name, daemon=True)
        thread.start()
        opened.pop_all()
    at = f"[{host}]" if ":" in host else host
    _log.info("the page for Prometheus is at http://%s:%d/metrics", at, server.server_port)
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


class _Handler(MetricsHandler):
    timeout = _SILENT_SECONDS


class _Server(ThreadingHTTPServer):
    """A thread for each request, and no more than some."""

    daemon_threads = True
    allow_reuse_port = False  # which some Pythons turn on: a port that is taken is to be told

    def __init__(self, address: tuple[str, int], registry: CollectorRegistry) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        self._free = threading.BoundedSemaphore(_MOST_REQUESTS)
        super().__init__(address, _Handler.factory(registry))

    def server_bind(self) -> None:
        """Bind, without asking the network for the machine's name, as HTTP servers do: nobody needs it."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread of its own, or not at all where too many are at it."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread can be started
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, and make room for the next."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing where whoever asked has gone; log all else."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            _log.error("no answer to who asked for the page for Prometheus", exc_info=error)


def metric_name(one: Instrument) -> str:
    """Return what Prometheus calls an instrument, without the ``_total`` that counters get."""
    return re.sub(r"\W", "_", one.name) + _UNITS.get(one.unit, "")


def _labels(one: Instrument) -> list[str]:
    return [re.sub(r"\W", "_", label) for label in one.labels]
