"""What exporters give out of real calls: OpenTelemetry's own SDK, and a page that Prometheus' own parser reads."""

from __future__ import annotations

import gc
import json
import re
import subprocess
import sys
import threading
import urllib.request
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from prometheus_client.parser import text_string_to_metric_families

from orchestra import ConfigError, Orchestra, bulk
from orchestra.localengine.events import EventBus as EngineBus
from orchestra.localengine.events import FirstToken
from orchestra.observe import windows
from orchestra.observe.instruments import BY_NAME, INSTRUMENTS
from orchestra.observe.otel import instrument
from orchestra.observe.prometheus import Page, dashboard, metric_name, serve
from orchestra.policies.traffic import TrafficClass
from orchestra.testing import Reply, ScriptedProvider

SECRETS = ("a secret prompt", "key-of-main")
MESSAGES = [{"role": "user", "content": SECRETS[0]}]
BUSY = Reply.error(429, "rate_limit_exceeded", headers={"retry-after": "0.01"})


def config(url, **more):
    provider = {"kind": "openai-compatible", "base_url": url, "api_key": SECRETS[1]}
    price = {"models": ["*"], "input": 1.0, "output": 2.0}
    return {
        "providers": {"main": {**provider, "prices": [price], "limits": [{"requests_per_minute": 600}]}},
        "models": {"fast": {"routes": ["main/m1"]}},
        "observe": {"status": False},
        **more,
    }


@asynccontextmanager
async def running(*replies, **more):
    async with (
        ScriptedProvider(replies) as provider,
        Orchestra.from_config(config(provider.base_url, **more)) as orc,
    ):
        yield orc


def scraped(text):
    """Return the values of a page, by name and labels."""
    return {
        (sample.name, frozenset((name, value) for name, value in sample.labels.items() if value)): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def fetch(url):
    with urllib.request.urlopen(url, timeout=20) as answer:
        return answer.read().decode()


def free_address():
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def test_opentelemetry_gets_the_span_and_the_numbers_of_a_call():
    spans, reader = InMemorySpanExporter(), InMemoryMetricReader()
    tracing, metering = TracerProvider(), MeterProvider([reader])
    tracing.add_span_processor(SimpleSpanProcessor(spans))
    async with running(BUSY) as orc:
        stop = instrument(orc, tracer_provider=tracing, meter_provider=metering)
        with tracing.get_tracer("app").start_as_current_span("web request") as request:
            async with orc.stream("fast", MESSAGES) as deltas:
                assert [text async for text in deltas]
        data = reader.get_metrics_data()
        stop()
        await orc.chat("fast", MESSAGES)  # nobody hears of it any more
    ours = [span for span in spans.get_finished_spans() if span.name != "web request"]
    call = ours[-1]
    assert (call.name, call.kind, call.status.status_code) == ("chat m1", SpanKind.CLIENT, StatusCode.UNSET)
    assert call.parent is not None
    assert call.parent.span_id == request.get_span_context().span_id
    assert [span.name for span in ours[:-1]] == ["queue", "request main/m1"] * 2
    assert ours[1].status.status_code is StatusCode.ERROR
    assert ours[1].attributes["error.type"] == "429"
    for child in ours[:-1]:
        assert child.parent.span_id == call.context.span_id
        assert call.start_time <= child.start_time <= child.end_time <= call.end_time
    assert request.start_time <= call.start_time <= call.end_time <= request.end_time, "the clocks are compared"
    assert ours[1].end_time < ours[2].start_time, "the wait before the retry is in neither attempt"
    assert [event.name for event in call.events] == ["orchestra.retried", "orchestra.first_token"]
    assert call.attributes["gen_ai.usage.input_tokens"] > 0
    metrics = {metric.name: metric for scope in data.resource_metrics[0].scope_metrics for metric in scope.metrics}
    assert metrics.keys() <= BY_NAME.keys()
    (duration,) = metrics["gen_ai.client.operation.duration"].data.data_points
    assert duration.count == 1
    assert tuple(duration.explicit_bounds) == BY_NAME["gen_ai.client.operation.duration"].buckets
    assert "error.type" not in duration.attributes
    granted = {
        point.attributes["orchestra.traffic"]: point.value
        for point in metrics["orchestra.pool.granted"].data.data_points
    }
    assert granted == {"interactive": 2, "bulk": 0}
    told = repr([span.to_json() for span in ours]) + repr(data)
    assert not any(secret in told for secret in SECRETS)
    assert deltas.usage is not None


async def test_a_page_is_what_prometheus_reads():
    async with running(BUSY) as orc:
        port = free_address()
        stop = serve(orc, port=port)
        await orc.chat("fast", MESSAGES)
        with bulk(job="nightly-of-customer-7"):
            await orc.chat("fast", MESSAGES)
        text = await _in_thread(fetch, f"http://127.0.0.1:{port}/metrics")
        stop()
        stop()
        with pytest.raises(OSError, match=r"refused"):
            await _in_thread(fetch, f"http://127.0.0.1:{port}/metrics")
    assert not any(secret in text for secret in (*SECRETS, "nightly"))
    values = scraped(text)
    call = {
        ("gen_ai_operation_name", "chat"),
        ("gen_ai_provider_name", "openai-compatible"),
        ("gen_ai_request_model", "m1"),
        ("orchestra_account", "main"),
        ("orchestra_outlet", "online"),
    }
    duration = "gen_ai_client_operation_duration_seconds"
    for traffic in ("interactive", "bulk"):
        assert values[f"{duration}_count", frozenset({*call, ("orchestra_traffic", traffic)})] == 1
    retried = {("orchestra_traffic", "interactive"), ("orchestra_state", "retried"), ("error_type", "429")}
    assert values["orchestra_retries_total", frozenset(call | retried)] == 1
    assert values["orchestra_cost_usd_total", frozenset({*call, ("orchestra_traffic", "bulk")})] > 0
    limit = {("orchestra_account", "main"), ("orchestra_models", "*"), ("orchestra_outlet", "online")}
    assert values["orchestra_limit_size", frozenset({*limit, ("orchestra_limit", "requests")})] == 600
    assert (
        values["orchestra_route_state", frozenset({("orchestra_route", "main/m1"), ("orchestra_state", "closed")})]
        == 1
    )


async def test_the_settings_alone_serve_a_page_and_its_end_ends_it(caplog):
    port = free_address()
    async with running(metrics={"prometheus": port}) as orc:
        url = f"http://127.0.0.1:{port}/metrics"
        assert "orchestra_pool_waiting" in await _in_thread(fetch, url)
        # another one, as in a second worker process, finds the port taken and goes on without
        async with running(metrics={"prometheus": f"127.0.0.1:{port}"}) as other:
            await other.chat("fast", MESSAGES)
        assert f"no page for Prometheus at 127.0.0.1:{port}" in caplog.text
        await orc.chat("fast", MESSAGES)
        assert "gen_ai_client_operation_duration_seconds_count" in await _in_thread(fetch, url)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("orchestra metrics")]


async def test_a_page_whose_client_was_forgotten_ends_by_itself():
    orc = Orchestra.from_config(config("http://127.0.0.1:9/v1"))
    port = free_address()
    serve(orc, port=port)
    (server,) = [thread for thread in threading.enumerate() if thread.name == f"orchestra metrics {port}"]
    del orc
    gc.collect()
    await _in_thread(server.join, 20)
    assert not server.is_alive()


async def test_engines_are_heard_whenever_they_are_opened():
    class Engine:
        def __init__(self):
            self.events = EngineBus()

        def stats(self):
            return {"state": "stopped"}

    orc = Orchestra.from_config({"local": {"own": {"weights": "smollm2-135m"}}, "observe": {"status": False}})
    page = Page(orc)
    route = orc._local["own"]
    route._open_engine = lambda settings: Engine()
    event = FirstToken(at=1.0, request_id=1, traffic=TrafficClass.BULK, completion=0, ttft=0.2)
    engine = route._opened()
    engine.events.emit(event)
    page.close()
    engine.events.emit(event)
    assert not engine.events.listening
    counts = [
        sample.value
        for family in page.registry.collect()
        for sample in family.samples
        if sample.name == "gen_ai_server_time_to_first_token_seconds_count"
    ]
    assert counts == [1]


def test_a_library_that_is_missing_is_named_at_once(monkeypatch):
    monkeypatch.setattr(windows.importlib.util, "find_spec", lambda name: None)
    for setting, extra in (({"prometheus": 9464}, "prometheus"), ({"otel": True}, "otel")):
        with pytest.raises(ConfigError, match=rf"pip install 'orchestra-llm\[{extra}\]'"):
            Orchestra.from_config({"metrics": setting})
    Orchestra.from_config({"metrics": {"otel": False}})


@pytest.mark.parametrize(
    ("given", "address"),
    [(9464, ("127.0.0.1", 9464)), ("0.0.0.0:80", ("0.0.0.0", 80)), ("[::1]:0", ("::1", 0)), (None, None)],
)
def test_where_the_page_is_served(given, address):
    assert Orchestra.from_config({"metrics": {"prometheus": given}}).config.metrics.address == address


@pytest.mark.parametrize("given", [True, "9464x", ":9464", "host", "host:70000", -1, 1.5])
def test_an_address_that_is_none_is_told(given):
    with pytest.raises(ConfigError, match="must be a port, as 9464"):
        Orchestra.from_config({"metrics": {"prometheus": given}})


def test_nothing_is_loaded_unless_it_is_asked_for():
    code = (
        "import sys, orchestra\n"
        "with orchestra.Orchestra(): pass\n"
        "print(sorted({'opentelemetry', 'prometheus_client', 'orchestra.observe.feed'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_dashboard_asks_for_what_there_is():
    board = json.loads(dashboard().read_text(encoding="utf-8"))
    asked = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    assert len(asked) > 20
    there = {}
    for one in INSTRUMENTS:
        name, labels = metric_name(one), {re.sub(r"\W", "_", label) for label in one.labels}
        suffixes = {"histogram": ("_bucket", "_count", "_sum"), "gauge": ("",)}.get(one.kind, ("_total",))
        there.update({name + suffix: labels | {"le"} for suffix in suffixes})
    for expression in asked:
        names = {word for word in re.findall(r"\b(?:gen_ai|orchestra)_\w+", expression) if word in there}
        assert names, expression
        labels = set().union(*(there[name] for name in names))
        words = set(re.findall(r"\b(?:gen_ai_|orchestra_|error_type|le\b)\w*", expression))
        assert words - names <= labels, expression
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    assert Path(dashboard()).name in (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")


async def _in_thread(work, *arguments):
    import asyncio

    return await asyncio.to_thread(work, *arguments)
