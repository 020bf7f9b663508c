"""What load generators say is read and compared right."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from agreement import judge
from generators.contestants import GENERATORS, _run
from generators.figures import Figures, Unreadable, median_of, of_aiperf, of_orchestra, of_vllm
from generators.servers import Server
from generators.workload import Workload

from orchestra.bench.load.arrivals import Arrivals

FIGURES = Figures(tokens_per_s=80.0, ttft_p50_ms=100.0, ttft_p95_ms=150.0, tpot_p50_ms=10.0, tpot_p95_ms=20.0)
WORKLOAD = Workload(rate=4.0, calls=24, prompt_tokens=100, output_tokens=40, warm_up=3)
"""Of each file below: the figures are `FIGURES`, of 24 calls."""
ORCHESTRA = {
    "points": [
        {
            "output_tokens_per_s": 80.0,
            "classes": {
                "interactive": {
                    "answered": 24,
                    "ttft": {"p50": 0.1, "p95": 0.15},
                    "tpot": {"p50": 0.01, "p95": 0.02},
                }
            },
        }
    ]
}
VLLM = {
    "completed": 24,
    "output_throughput": 80.0,
    "p50_ttft_ms": 100.0,
    "p95_ttft_ms": 150.0,
    "p50_tpot_ms": 10.0,
    "p95_tpot_ms": 20.0,
}
AIPERF = {
    "request_count": {"unit": "requests", "avg": 24.0},
    "output_token_throughput": {"unit": "tokens/sec", "avg": 80.0},
    "time_to_first_token": {"unit": "ms", "avg": 111.0, "p50": 100.0, "p95": 150.0},
    "inter_token_latency": {"unit": "ms", "avg": 11.0, "p50": 10.0, "p95": 20.0},
}
"""Without what is not read, as versions 0.32.0 of vLLM and 0.13.0 of AIPerf write them."""


@pytest.mark.parametrize(("read", "told"), [(of_orchestra, ORCHESTRA), (of_vllm, VLLM), (of_aiperf, AIPERF)])
def test_each_generators_file_is_read_into_the_same_figures(read, told):
    assert asdict(read(told, 24)) == pytest.approx(asdict(FIGURES))
    with pytest.raises(Unreadable, match="24 of 30 calls were answered"):
        read(told, 30)


def test_medians_are_compared_with_their_own_bounds():
    slower = replace(FIGURES, ttft_p50_ms=106.0, ttft_p95_ms=160.0)
    assert median_of([FIGURES, slower, slower]) == slower
    verdicts = judge({"orchestra bench": slower, "aiperf": FIGURES})
    assert {what: holds for what, _, _, holds in verdicts} == {
        "tokens_per_s, aiperf": True,
        "ttft_p50_ms, aiperf": False,  # 6 % are too much of a median
        "tpot_p50_ms, aiperf": True,
        "ttft_p95_ms, aiperf": True,
        "tpot_p95_ms, aiperf": True,
    }
    assert judge({"aiperf": FIGURES}) == []  # there is nothing to hold it against


def test_ours_counts_as_many_calls_as_the_others_send():
    server = Server("http://127.0.0.1:1", "m", Path("nowhere"))
    command = GENERATORS["orchestra bench"].command(WORKLOAD, server, Path("nowhere"))
    start, seconds = (float(command[command.index(name) + 1]) for name in ("--warm-up", "--seconds"))
    instants = Arrivals("constant").instants(WORKLOAD.rate, None)
    came = [at for at, _ in zip(instants, range(100), strict=False)]
    assert sum(start <= at < start + seconds for at in came) == WORKLOAD.calls
    assert sum(at < start for at in came) == WORKLOAD.warm_up
    assert json.loads(command[command.index("--body") + 1])["ignore_eos"] is True


def test_a_generator_that_does_not_end_takes_the_processes_it_started_with_it(tmp_path):
    """A pipe has an end when nobody is left who could write to it."""
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            _run(["sh", "-c", "(echo began; exec sleep 1000) > pipe & wait"], tmp_path, {**os.environ}, 0.3)
        os.set_blocking(reader, True)
        said = b""
        while select.select([reader], [], [], 60.0)[0] and (more := os.read(reader, 100)):
            said += more
        assert select.select([reader], [], [], 0)[0], "it goes on"
        assert said in (b"", b"began\n")
    finally:
        os.close(reader)
