"""What the plots are drawn from: runs of our own commands, as plain values."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mixed.peers import CLIENTS
from mixed.run import run
from mixed.scenario import VARIANTS

__all__ = ["SOURCES", "Source"]

_ROOT = Path(__file__).parents[2]
_COMPARED = ("orchestra", "openai")
_SECONDS = 45  # of each rate


@dataclass(frozen=True, slots=True)
class Source:
    """A measurement: the command that a reader would give, and what makes it.

    Both take a factor of all durations, 1 for figures to rely on.
    """

    command: Callable[[float], str]
    measure: Callable[[float], Mapping[str, Any]]

    def take(self, pace: float) -> dict[str, Any]:
        """Measure, and say on which machine. Raises CalledProcessError where a command fails."""
        found = dict(self.measure(pace))
        return {"command": self.command(pace), "machine": _machine(), **found}


_BENCH = (
    *("--model", "smollm2-135m", "--rates", "0.25,0.5,1,1.5,2,3", "--bulk-share", "0.33"),
    *("--prompt", "uniform:32:96", "--output", "uniform:8:24", "--slo", "ttft=1s,tpot=200ms"),
)
_PLAN = ("llama-3.1-8b", "--device", "h100", "--per-hour", "2.50", "--prompt", "200:p50,1500:p95")
_DAY = ("--config", "benchmarks/docs/day.toml", "--rate", "0.1", "--shape", "office", "--bulk-share", "0")
_JOB = "09:00:4000"
_DEADLINES = ("", ":6h", ":24h")


def _account(pace: float) -> Mapping[str, Any]:
    base = VARIANTS["base"]
    scenario = replace(base, seconds=max(8.0, base.seconds * pace))
    results = {name: run(CLIENTS[name], scenario) for name in _COMPARED}
    return {
        "about": scenario.about,
        "seconds": scenario.seconds,
        "service": scenario.service,
        "cut": scenario.seconds + scenario.grace,
        "clients": results,
    }


def _bench_arguments(pace: float) -> tuple[str, ...]:
    seconds = ("--seconds", f"{_SECONDS * pace:g}", "--warm-up", f"{5 * pace:g}", "--drain", "20")
    return ("bench", *_BENCH, *seconds)


def _bench(pace: float) -> Mapping[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "bench.json")
        # 1: no rate keeps the promise, which is a finding as well
        _orchestra(*_bench_arguments(pace), "--json", str(file), fine=(0, 1))
        return {"report": json.loads(file.read_text(encoding="utf-8"))}


def _plan(_pace: float) -> Mapping[str, Any]:
    return {"plan": json.loads(_orchestra("plan", *_PLAN, "--json"))}


def _day(_pace: float) -> Mapping[str, Any]:
    found = {}
    for deadline in _DEADLINES:
        # 1: a deadline was missed, which is a finding as well
        told = json.loads(_orchestra("simulate", *_DAY, "--job", _JOB + deadline, "--json", fine=(0, 1)))
        use = next(pool["hours"] for pool in told["pools"] if pool["limit"] == "requests_per_minute")
        found[deadline.lstrip(":") or "none"] = {"hours": use, "job": told["jobs"][0], "usd": told["usd"]}
    return {"days": found}


def _orchestra(*arguments: str, fine: Sequence[int] = (0,)) -> str:
    command = [sys.executable, "-m", "orchestra", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=_ROOT)
    if done.returncode not in fine:
        raise subprocess.CalledProcessError(done.returncode, command)
    return done.stdout


def _machine() -> dict[str, Any]:
    return {"cores": os.cpu_count(), "cpu": _cpu(), "python": platform.python_version()}


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())


SOURCES: Mapping[str, Source] = {
    "account": Source(lambda pace: "make bench-mixed ARGS='--only orchestra --only openai'", _account),
    "bench": Source(lambda pace: f"orchestra {' '.join(_bench_arguments(pace))}", _bench),
    "day": Source(lambda pace: f"orchestra simulate {' '.join(_DAY)} --job {_JOB}[:6h|:24h]", _day),
    "plan": Source(lambda pace: f"orchestra plan {' '.join(_PLAN)}", _plan),
}
"""By name, which is also that of the file with what was found."""
