"""A large file through ``orchestra run --deadline 24h``, over the batches of a scripted provider, measured whole.

    python benchmarks/million_lines.py                     # a million lines
    python benchmarks/million_lines.py --lines 100000

The command and the provider are processes of their own, as they are in use; the command shows its progress on a
terminal, which is read here. Prints one JSON line for each measurement, then the targets and whether each holds.
``check`` is from the first to the last of what is shown while the file is checked. ``run`` is from the start of
the command to its end, with the results written; its memory is what the command took at most over what it had when
the check began. Every line's answer is compared with what the line asked, and the provider tells what it was paid
for.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import pty
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent))

from intake import write

_COMMAND = [sys.executable, "-c", "from orchestra.cli.main import main; main()"]
_LOOK_EVERY = 0.1
_SETTINGS = """
[providers.cloud]
kind = "openai"
base_url = "{base_url}"
api_key = "none"
[[providers.cloud.prices]]
input = 0.25
output = 2.0
[models.fast]
routes = ["cloud/fast"]
[observe]
status = false
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=1_000_000, help="of the file (default: 1,000,000)")
    parser.add_argument(
        "--batch-seconds", type=float, default=2.0, help="how long the provider takes for a batch (default: 2)"
    )
    parser.add_argument("--folder", type=Path, help="where to keep the files (default: a temporary one)")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        figures = measure(folder, options.lines, options.batch_seconds)
    for what, told in figures.items():
        _print(what, told)
    sys.exit(0 if _hold(figures) else 1)


def measure(folder: Path, lines: int, batch_seconds: float = 2.0) -> dict[str, dict[str, Any]]:
    """Answer a new file of so many lines in ``folder``. Returns figures by what they are of."""
    folder.mkdir(parents=True, exist_ok=True)
    source, out = folder / "in.jsonl", folder / "out.jsonl"
    write(source, lines)
    with provider(batch_seconds) as (origin, base_url):
        (folder / "orchestra.toml").write_text(_SETTINGS.format(base_url=base_url))
        bills = _first_upload(origin)
        seen = _run(folder, [str(source), "--out", str(out), "--deadline", "24h", "--job", "big"], bills)
        paid = _bills(origin)
    check = seen.check_seconds
    store = sum(file.stat().st_size for file in (folder / ".orchestra").iterdir())
    return {
        "check": {
            "lines": lines,
            "bytes": source.stat().st_size,
            "seconds": round(check, 2),
            "lines_a_second": round(lines / check) if check else None,
            "times_shown": len(seen.checks),
        },
        "first upload": {"seconds": round(seen.uploaded_at, 2) if seen.uploaded_at is not None else None},
        "run": {
            "seconds": round(seen.seconds, 2),
            "cpu_seconds": round(seen.cpu_seconds, 2),
            "lines_a_second": round(lines / seen.seconds),
            "answers_as_asked": answered(source, out),
            "times_progress_shown": seen.progress,
            "memory_mb": round(seen.peak / 1e6, 1),
            "memory_over_beginning_mb": round((seen.peak - seen.beginning) / 1e6, 1),
            "store_bytes_a_line": round(store / lines),
        },
        "provider": {
            "files": paid["files"],
            "batches": paid["batches"],
            "answers_paid": paid["total"],
            "answers_paid_in_batches": paid["batch"],
            "paid_twice": len(paid["ids_paid_twice"]),
        },
    }


@contextmanager
def provider(batch_seconds: float) -> Iterator[tuple[str, str]]:
    """Run a scripted provider whose answers say what was asked. Yields its origin and its base URL."""
    command = [sys.executable, "-m", "orchestra.testing", "--echo", "--batch-seconds", str(batch_seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            told = json.loads(server.stdout.readline())
            yield told["origin"], told["base_url"]
        finally:
            server.terminate()


@dataclass(slots=True)
class _Seen:
    """What was seen of a run. Instants are seconds after its start; memory is in bytes."""

    checks: list[float] = field(default_factory=list)
    progress: int = 0
    uploaded_at: float | None = None
    beginning: int = 0
    peak: int = 0
    cpu_seconds: float = 0.0
    seconds: float = 0.0

    @property
    def check_seconds(self) -> float:
        return self.checks[-1] - self.checks[0] if self.checks else 0.0


def _run(folder: Path, arguments: list[str], has_uploaded: Callable[[], bool]) -> _Seen:
    """Run ``orchestra run`` with its progress on a terminal, and look at it meanwhile."""
    seen = _Seen()
    shown, terminal = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "200", "LINES": "40"}
    started = time.monotonic()
    process = subprocess.Popen(
        [*_COMMAND, "run", *arguments], cwd=folder, env=environment, stdout=sys.stderr, stderr=terminal
    )
    os.close(terminal)
    reader = threading.Thread(target=_read, args=(shown, seen, process.pid, started))
    reader.start()
    try:
        while (ended := os.wait4(process.pid, os.WNOHANG))[0] == 0:
            seen.peak = max(seen.peak, _memory(process.pid, "VmHWM"))
            if seen.uploaded_at is None and has_uploaded():
                seen.uploaded_at = time.monotonic() - started
            time.sleep(_LOOK_EVERY)
    finally:
        process.returncode = 0  # it was waited for
    reader.join()
    _, status, used = ended
    if status:
        raise SystemExit(f"orchestra run ended with {os.waitstatus_to_exitcode(status)}")
    seen.seconds = time.monotonic() - started
    seen.cpu_seconds = used.ru_utime + used.ru_stime
    return seen


def _read(shown: int, seen: _Seen, pid: int, started: float) -> None:
    """Read what is shown until the end, and note when what was."""
    rest = b""
    with contextlib.suppress(OSError), open(shown, "rb", buffering=0) as terminal:
        while piece := terminal.read(65536):
            *frames, rest = re.split(rb"[\r\n]", rest + piece)
            for frame in frames:
                if b"checking" in frame:
                    seen.checks.append(time.monotonic() - started)
                    seen.beginning = seen.beginning or _memory(pid, "VmRSS")
                elif b" lines" in frame and b" of " in frame:
                    seen.progress += 1


def _first_upload(origin: str) -> Callable[[], bool]:
    return lambda: bool(_bills(origin)["files"])


def _bills(origin: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{origin}/__orchestra/bills", timeout=300) as answer:
        told: dict[str, Any] = json.load(answer)
        return told


def answered(source: Path, out: Path) -> int:
    """Return how many lines have an answer that says what they ask, at the same place of the output."""
    count = 0
    with source.open() as asked, out.open() as told:
        for one, other in zip(asked, told, strict=True):
            line, answer = json.loads(one), json.loads(other)
            said = answer["response"]["body"]["choices"][0]["message"]["content"]
            content = line["body"]["messages"][-1]["content"]
            count += answer["custom_id"] == line["custom_id"] and said == content
    return count


def _memory(pid: int, which: str) -> int:
    """Return the memory of a process in bytes: ``VmRSS`` now, ``VmHWM`` at most; 0 where nobody says."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = re.search(rf"{which}:\s+(\d+) kB", status)
    return int(found[1]) * 1024 if found else 0


def _hold(figures: dict[str, dict[str, Any]]) -> bool:
    run, paid = figures["run"], figures["provider"]
    lines = figures["check"]["lines"]
    verdicts: list[tuple[str, float, float | None, bool]] = [
        ("lines checked a second", 80_000.0, figures["check"]["lines_a_second"], True),
        ("seconds to the first upload", 20.0, figures["first upload"]["seconds"], False),
        ("memory over the beginning, MB", 200.0, run["memory_over_beginning_mb"], False),
        ("answers as asked", lines, run["answers_as_asked"], True),
        ("answers paid", lines, paid["answers_paid"], False),
    ]
    table = Table(title="targets", title_justify="left")
    for column in ("what", "target", "measured", "holds"):
        table.add_column(column)
    all_hold = True
    for what, target, measured, least in verdicts:
        holds = measured is not None and (measured >= target if least else measured <= target)
        all_hold = all_hold and holds
        told = "not seen" if measured is None else f"{measured:,.0f}"
        table.add_row(what, f"{'>=' if least else '<='} {target:,.0f}", told, "yes" if holds else "NO")
    Console(stderr=True).print(table)
    return all_hold


def _print(name: str, figures: dict[str, Any]) -> None:
    load = round(os.getloadavg()[0], 2)
    machine = {"cpus": os.cpu_count(), "load": load, "python": platform.python_version()}
    print(json.dumps({"benchmark": "million_lines", "what": name, **figures, "machine": machine}), flush=True)


if __name__ == "__main__":
    main()
