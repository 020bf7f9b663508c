"""What exporters give out of real calls: OpenTelemetry's own SDK, and a page that Prometheus' own parser reads."""

from __future__ import annotations

import gc
import json
import re
import socket
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
from orchestra.config import Config
from orchestra.localengine.events import EventBus as EngineBus
from orchestra.localengine.events import FirstToken
from orchestra.observe import prometheus, windows
from orchestra.observe.events import EventBus
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
    (granted,) = metrics["orchestra.pool.granted"].data.data_points
    assert (granted.value, granted.attributes["orchestra.traffic"]) == (2, "interactive")
    told = repr([span.to_json() for span in ours]) + repr(data)
    assert not any(secret in told for secret in SECRETS)
    assert deltas.usage is not None


class Watched:
    """An `Orchestra` whose snapshot is given."""

    def __init__(self, **seen):
        self.config, self.events, self.seen = Config(), EventBus(), seen

    def snapshot(self):
        return self.seen

    def subscribe_engines(self, subscriber):
        return lambda: None


def engine(steps, *, occupancy=0.5, running=1):
    by_class = {"interactive": running, "bulk": 0}
    totals = dict.fromkeys(("prefill_tokens", "output_tokens", "displacements", "evictions"), 0)
    seen = dict.fromkeys(("running", "waiting", "prompt_tokens", "cached_tokens"), by_class)
    state = {"state": "running", "steps": steps, "slots": 4, "occupancy": occupancy}
    return {"own": {**seen, **totals, **state, "blocks": {"total": 8, "free": 4}}}


def looked_at(reader, *names):
    """Return the values of gauges and totals without the label of the class, or with ``interactive``."""
    data = reader.get_metrics_data()
    found = {
        metric.name: [
            point.value
            for point in metric.data.data_points
            if point.attributes.get("orchestra.traffic", "interactive") == "interactive"
        ]
        for resource in (data.resource_metrics if data else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    return [sum(found.get(f"orchestra.engine.{name}", ())) for name in names]


def test_all_that_tell_one_provider_are_seen_and_what_they_counted_stays():
    """OpenTelemetry drops the callbacks of a gauge that it has already."""
    readers = InMemoryMetricReader(), InMemoryMetricReader()
    ours, others = (MeterProvider([reader]) for reader in readers)
    first, second = Watched(local=engine(100)), Watched(local=engine(10, occupancy=1.0, running=2))
    stop = instrument(first, meter_provider=ours)
    elsewhere = Watched(local=engine(7))
    stop_elsewhere = instrument(elsewhere, meter_provider=others)
    what = ("running", "slots", "occupancy", "steps")
    assert looked_at(readers[0], *what) == [1, 4, 0.5, 100]
    stop_second = instrument(second, meter_provider=ours)
    instrument(second, meter_provider=ours)()
    assert looked_at(readers[0], *what) == [3, 8, 0.75, 110]
    stop()
    assert looked_at(readers[0], *what) == [2, 4, 1.0, 110], "a total does not fall"
    # the first again, after its end, with an engine that began anew
    first.seen = {"local": engine(5)}
    stop = instrument(first, meter_provider=ours)
    assert looked_at(readers[0], *what) == [3, 8, 0.75, 115]
    stop()
    stop_second()
    assert looked_at(readers[0], *what[:3]) == [0, 0, 0]
    assert looked_at(readers[1], *what) == [1, 4, 0.5, 7]
    stop_elsewhere()


def test_what_is_told_before_the_program_has_set_its_provider_is_seen_by_all_that_tell_it():
    code = """
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from orchestra.config import Config
from orchestra.observe.events import EventBus
from orchestra.observe.otel import instrument
class Watched:
    config, events = Config(), EventBus()
    def snapshot(self):
        return {"batches": [{"provider": "main", "state": "open", "riding": 5}]}
    def subscribe_engines(self, subscriber):
        return lambda: None
clients = [Watched(), Watched(), Watched()]
for client in clients[:2]:
    instrument(client)
reader = InMemoryMetricReader()
metrics.set_meter_provider(MeterProvider([reader]))
instrument(clients[2])
(scope,) = reader.get_metrics_data().resource_metrics[0].scope_metrics
print({metric.name: [point.value for point in metric.data.data_points] for metric in scope.metrics})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "{'orchestra.batch.open': [3.0], 'orchestra.batch.riding': [15.0]}"


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


async def test_a_window_that_cannot_be_opened_is_told_once_and_leaves_the_others(monkeypatch, caplog):
    def refuse(client):
        raise TypeError("an argument that an old library does not know")

    monkeypatch.setattr("orchestra.observe.otel.instrument", refuse)
    port = free_address()
    async with running(metrics={"otel": True, "prometheus": port}) as orc:
        for _ in range(2):
            await orc.chat("fast", MESSAGES)
        assert "orchestra_pool_waiting" in await _in_thread(fetch, f"http://127.0.0.1:{port}/metrics")
    told = [record for record in caplog.records if record.name == windows.__name__]
    assert [record.getMessage().partition(":")[0] for record in told] == ["OpenTelemetry is told nothing"]


def test_a_page_that_no_thread_can_serve_leaves_nothing(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    client, port = Watched(), free_address()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            serve(client, port=port)
    assert not client.events._subscribers
    serve(client, port=port)()


def test_who_says_nothing_holds_few_threads_and_not_for_long(monkeypatch):
    monkeypatch.setattr(prometheus, "_MOST_REQUESTS", 2)
    monkeypatch.setattr(prometheus._Handler, "timeout", 20.0)
    client, port = Watched(), free_address()
    stop = serve(client, port=port)
    silent = [socket.create_connection(("127.0.0.1", port), timeout=20) for _ in range(2)]
    with socket.create_connection(("127.0.0.1", port), timeout=20) as third:
        assert third.recv(1) == b"", "it is not kept waiting"
    for one in silent:
        one.close()
    while True:
        try:
            assert "orchestra_pool_waiting" in fetch(f"http://127.0.0.1:{port}/metrics")
            break
        except OSError:  # no thread has seen yet that they have gone
            continue
    monkeypatch.setattr(prometheus._Handler, "timeout", 0.01)
    with socket.create_connection(("127.0.0.1", port), timeout=20) as mute:
        assert mute.recv(1) == b""
    stop()


def test_a_page_at_any_port_tells_which_and_logs_what_fails_in_it(caplog):
    client = Watched(pools=["what is no pool"])
    with caplog.at_level("INFO", logger=prometheus.__name__):
        stop = serve(client, port=0)
    url = re.search(r"http://\S+", caplog.text)[0]
    with pytest.raises(OSError, match=r"closed"):
        fetch(url)
    stop()
    (told,) = [record for record in caplog.records if record.exc_info]
    assert told.exc_info[0] is TypeError


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
    for setting, library in (({"prometheus": 9464}, "prometheus-client"), ({"otel": True}, "opentelemetry-api")):
        with pytest.raises(ConfigError, match=rf"pip install '{library}>="):
            Orchestra.from_config({"metrics": setting})
    Orchestra.from_config({"metrics": {"otel": False}})


@pytest.mark.parametrize(
    ("given", "address"),
    [(9464, ("127.0.0.1", 9464)), ("0.0.0.0:80", ("0.0.0.0", 80)), ("[::1]:0", ("::1", 0)), (None, None)],
)
def test_where_the_page_is_served(given, address):
    assert Orchestra.from_config({"metrics": {"prometheus": given}}).config.metrics.address == address


@pytest.mark.parametrize(
    "given",
    [
        *(True, "9464x", ":9464", "host", "host:70000", -1, 1.5),
        *("a..b:1", "[]:1", "a b:1", "a\0b:1", "[::g]:1", "x" * 64 + ":1"),
    ],
)
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
