"""A program that is watched through OpenTelemetry: ``collected.py ADDRESS``, of a collector's OTLP over HTTP.

It sets up OpenTelemetry as applications do, and makes a streamed call that is refused at first, and a bulk one.
"""

from __future__ import annotations

import asyncio
import sys

from opentelemetry import metrics, trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from orchestra import Orchestra, bulk
from orchestra.testing import Reply, ScriptedProvider

MESSAGES = [{"role": "user", "content": "a secret prompt"}]
BUSY = Reply.error(429, "rate_limit_exceeded", headers={"retry-after": "0.01"})


async def call() -> None:
    async with ScriptedProvider([BUSY]) as provider:
        account = {"kind": "openai-compatible", "base_url": provider.base_url, "api_key": "a-secret-key"}
        config = {
            "providers": {"main": account},
            "models": {"fast": {"routes": ["main/m1"]}},
            "observe": {"status": False},
            "metrics": {"otel": True},
        }
        async with Orchestra.from_config(config) as orc:
            async with orc.stream("fast", MESSAGES) as deltas:
                async for _ in deltas:
                    pass
            with bulk():
                await orc.chat("fast", MESSAGES)


def main() -> None:
    address = sys.argv[1]
    spans, reader = TracerProvider(), PeriodicExportingMetricReader(OTLPMetricExporter(f"{address}/v1/metrics"))
    spans.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{address}/v1/traces")))
    measures = MeterProvider([reader])
    trace.set_tracer_provider(spans)
    metrics.set_meter_provider(measures)
    asyncio.run(call())
    measures.shutdown()  # which sends what there is
    spans.shutdown()


if __name__ == "__main__":
    main()
