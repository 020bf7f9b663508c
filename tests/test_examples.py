"""Each example does what its text says, as a program of its own, with no key."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
PARIS = "The capital of France is Paris."

pytestmark = [pytest.mark.model, pytest.mark.timeout(900)]


def run(name: str, *arguments: str, cwd: Path) -> str:
    env = {key: value for key, value in os.environ.items() if not key.endswith("_API_KEY")}
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / name, *arguments],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=850,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout


def test_every_example_is_run_here() -> None:
    source = Path(__file__).read_text(encoding="utf-8")
    assert all(f'run("{example.name}"' in source for example in EXAMPLES.glob("*.py"))


def test_official_sdk(tmp_path: Path) -> None:
    out = run("official_sdk.py", cwd=tmp_path)
    assert re.search(rf"^plain: +{PARIS}\n +answered by local/smollm2$", out, re.M)
    assert re.search(r"^streamed: \S.*\n(?:.*\n)* +24 tokens$", out, re.M)
    assert "messages must hold at least one message" in out
    assert len(re.findall(r"^bulk: +\S", out, re.M)) == 3


def test_bulk_file_and_that_it_goes_on(tmp_path: Path) -> None:
    out = run("bulk_file.py", cwd=tmp_path)
    answers = re.findall(r"^ *(review-\d): (\S.*)$", out, re.M)
    assert [number for number, _ in answers] == [f"review-{number}" for number in range(1, 7)]
    assert "(6 of 6 lines" in out
    again = run("bulk_file.py", cwd=tmp_path)
    assert again.startswith("sum-up-reviews: 6 of 6 lines\n"), "a second run asks nothing again"
    assert re.findall(r"^ *(review-\d): (\S.*)$", again, re.M) == answers


def test_chat_and_nightly_job(tmp_path: Path) -> None:
    out = run("chat_and_nightly_job.py", "--self-test", cwd=tmp_path)
    assert f"chat: {PARIS}\n" in out
    assert "job:  4 of 4 lines" in out
    assert re.search(r"^note: \S", out, re.M)


def test_half_price(tmp_path: Path) -> None:
    out = run("half_price.py", cwd=tmp_path)
    assert "It broke in a week. Hello, world." in out
    assert out.count("paid: Bill(sync=0, batch=3, background=0)") == 2, "the second time costs nothing"
