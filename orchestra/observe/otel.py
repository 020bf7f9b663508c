"""Spans and metrics through OpenTelemetry: needs the extra ``otel``.

::

    from orchestra.observe.otel import instrument

    stop = instrument(orc)

They go where the program's own go: to the providers that were set for the process, by code, or by
``opentelemetry-instrument`` from ``OTEL_EXPORTER_OTLP_ENDPOINT`` and the like. Where none was set they go nowhere.
A call's span is a child of the span that is current where the call is made.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from opentelemetry import context as otel_context
from opentelemetry import metrics, trace

from orchestra.observe.call_log import WholeCall
from orchestra.observe.feed import Client, Feed
from orchestra.observe.instruments import BY_NAME, INSTRUMENTS, Instrument
from orchestra.observe.measuring import Measurement, seen_in
from orchestra.observe.spans import Span, span_of

__all__ = ["instrument"]

SCOPE = "orchestra"
_LOOK_SECONDS = 1.0
"""A collection asks for one gauge after the other: they are told of one look."""


def instrument(
    client: Client,
    *,
    tracer_provider: trace.TracerProvider | None = None,
    meter_provider: metrics.MeterProvider | None = None,
) -> Callable[[], None]:
    """Tell OpenTelemetry of every call of ``client`` (an `Orchestra`) and of its engines, from now on.

    The providers are those of the process where none are given. Returns the function that ends it.
    """
    exporter = _Exporter(
        client,
        trace.get_tracer(SCOPE, tracer_provider=tracer_provider),
        metrics.get_meter(SCOPE, meter_provider=meter_provider),
    )
    return exporter.close


class _Exporter:
    def __init__(self, client: Client, tracer: trace.Tracer, meter: metrics.Meter) -> None:
        # OpenTelemetry keeps its gauges for ever: a client that is closed or forgotten has nothing more to show
        self._client: Callable[[], Client | None] = weakref.ref(client)
        self._tracer = tracer
        self._kinds = {name: one.kind for name, one in client.config.providers.items()}
        self._put = {one.name: _made(meter, one) for one in INSTRUMENTS if one.kind in ("counter", "histogram")}
        self._look: tuple[float, dict[str, list[metrics.Observation]]] = (0.0, {})
        for one in INSTRUMENTS:
            if one.kind in ("gauge", "total"):
                make = meter.create_observable_gauge
                if one.kind == "total":
                    make = cast("Any", meter.create_observable_counter)
                make(one.name, [self._observer(one.name)], one.unit, one.description)
        self._feed = Feed(client, self._record, ended=self._ended, origin=otel_context.get_current)

    def close(self) -> None:
        self._feed.close()
        self._client = lambda: None

    def _record(self, measured: Measurement) -> None:
        self._put[measured.name](measured.value, _attributes(measured))

    def _observer(self, name: str) -> Callable[[metrics.CallbackOptions], Iterable[metrics.Observation]]:
        return lambda options: self._seen().get(name, ())

    def _seen(self) -> dict[str, list[metrics.Observation]]:
        client = self._client()
        if client is None:
            return {}
        at, seen = self._look
        now = time.monotonic()
        if not seen or now - at > _LOOK_SECONDS:
            seen = {}
            for one in seen_in(client.snapshot()):
                seen.setdefault(one.name, []).append(metrics.Observation(one.value, _attributes(one)))
            self._look = (now, seen)
        return seen

    def _ended(self, call: WholeCall) -> None:
        # the two clocks may drift apart, so they are compared anew for each call
        offset = time.time_ns() - time.monotonic_ns()
        self._export(span_of(call.events, self._kinds), cast("otel_context.Context", call.origin), offset)

    def _export(self, span: Span, parent: otel_context.Context | None, offset: int) -> None:
        def instant(at: float) -> int:
            return offset + round(at * 1e9)

        ours = self._tracer.start_span(
            span.name,
            context=parent,
            kind=trace.SpanKind.CLIENT if span.kind == "client" else trace.SpanKind.INTERNAL,
            attributes=span.attributes,
            start_time=instant(span.start),
        )
        if ours.is_recording():
            for event in span.events:
                ours.add_event(event.name, event.attributes, instant(event.at))
            if span.error:
                ours.set_attribute("error.type", span.error)
                ours.set_status(trace.StatusCode.ERROR, span.error)
            within = trace.set_span_in_context(ours, parent)
            for child in span.children:
                self._export(child, within, offset)
        ours.end(instant(span.end))


def _made(meter: metrics.Meter, one: Instrument) -> Callable[[float, Mapping[str, str]], None]:
    if one.kind == "counter":
        return meter.create_counter(one.name, one.unit, one.description).add
    return meter.create_histogram(
        one.name, one.unit, one.description, explicit_bucket_boundaries_advisory=one.buckets
    ).record


def _attributes(measured: Measurement) -> dict[str, str]:
    """Return the labels that say something: in OpenTelemetry what does not apply is left out."""
    labels = BY_NAME[measured.name].labels
    return {name: value for name, value in zip(labels, measured.labels, strict=True) if value}
