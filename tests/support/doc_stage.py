"""Where the blocks of a page are run: a folder, a stand-in for every provider, further terminals.

Blocks of a page run in order, in one namespace and one folder. Programs and ``orchestra`` run in this process,
which saves their imports; what a page starts in a second or third terminal runs in a process of its own.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import io
import json
import logging
import os
import runpy
import shlex
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
from doc_commands import check_command
from doc_output import shows
from doc_pages import Block

from orchestra import kinds
from orchestra.cli.main import main as orchestra_main
from orchestra.config import parse_config
from orchestra.testing import ScriptedProvider

FOLDER = "/home/you/project"
"""What pages call the folder that they work in."""
PORT = "8001"
"""The port that pages give to a provider of their own."""
PATIENCE = 60.0
"""Seconds after which another terminal has failed to show what the page says."""


class Stage:
    """One page's place. ``close`` ends what runs in its terminals."""

    def __init__(self, folder: Path, provider: ScriptedProvider, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.output = ""
        self._namespace: dict[str, Any] = {"__name__": "page", "provider": provider}
        self._patch = patch
        self._runner = asyncio.Runner()
        self._port = str(_free_port())
        self._terminals: dict[str, _Terminal] = {}
        self._again: list[str] | None = None
        self._wrong_end: str | None = None
        self._programs: set[str] = set()
        self._prepare(provider)

    def _prepare(self, provider: ScriptedProvider) -> None:
        for name, kind in kinds.KINDS.items():
            own = provider.base_url if (kind.base_url or "").endswith("/v1") else provider.origin
            self._patch.setitem(kinds.KINDS, name, replace(kind, base_url=kind.base_url and own))  # type: ignore[arg-type]
        for variable in [name for name in os.environ if name.endswith("_API_KEY")]:
            self._patch.delenv(variable)
        for name in ("OPENAI", "ANTHROPIC", "GEMINI"):
            self._patch.setenv(f"{name}_API_KEY", "a-key-of-a-test")
        for variable in ("HTTPS_PROXY", "HTTP_PROXY"):
            self._patch.setenv(variable, "http://127.0.0.1:9")  # whoever goes out is refused
        self._patch.setenv("NO_PROXY", "127.0.0.1,localhost")
        self._patch.setenv("ORCHESTRA_RUNTIME_DIR", str(self.folder.parent / "runtime"))
        self._patch.setenv("COLUMNS", "90")
        self._patch.chdir(self.folder)

    def close(self) -> None:
        try:
            for terminal in self._terminals.values():
                terminal.stop()
        finally:
            self._runner.close()

    def unused_programs(self) -> set[str]:
        """Return the programs that the page shows and runs nowhere."""
        return self._programs

    def play(self, block: Block) -> None:
        """Run a block, or check its form where the page says why it is not run. Raises AssertionError."""
        block = replace(block, text=block.text.replace(PORT, self._port))
        if block.language != "text":
            self._check_end()
        act = getattr(self, f"_play_{block.language}", None)
        assert act is not None, f"{block.place}: no test knows a block of the language {block.language!r}"
        act(block)

    # Python

    def _play_setup(self, block: Block) -> None:
        self._execute(block)

    def _play_python(self, block: Block) -> None:
        if block.title:
            compile(block.text, block.place, "exec")
            self._write(block)
            self._programs.add(block.title)
        elif block.why_not_run:
            compile(block.text, block.place, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        else:
            self._execute(block)

    def _execute(self, block: Block) -> None:
        source = "\n" * (block.line if block.language == "python" else block.line - 1) + block.text
        code = compile(source, block.page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        with _heard() as heard:
            result = FunctionType(code, self._namespace)()
            if inspect.iscoroutine(result):  # it awaits outside of any function
                self._runner.run(result)
        self.output = heard.getvalue()

    # settings and data

    def _play_toml(self, block: Block) -> None:
        parse_config(tomllib.loads(block.text), source=block.place)
        self._write(block)

    def _play_jsonl(self, block: Block) -> None:
        for line in block.text.splitlines():
            json.loads(line)
        self._write(block)

    def _write(self, block: Block) -> None:
        """Keep a block that has the name of a file."""
        if block.title:
            (self.folder / block.title).write_text(block.text, encoding="utf-8")

    def _play_json(self, block: Block) -> None:
        json.loads(block.text)

    # commands

    def _play_sh(self, block: Block) -> None:
        said = []
        for line in block.text.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if not words:
                continue
            if block.why_not_run:
                check_command(words, block.place)
                continue
            self._check_end()
            self._again = None
            self.output = ""
            if "terminal" in block.title:
                self._start(block, words)
            else:
                self._command(words, block)
            said.append(self.output)
        self.output = "".join(said)

    def _command(self, words: list[str], block: Block) -> None:
        match words:
            case ["orchestra", *_]:
                self._run(orchestra_main, words, block)
            case ["python", program, *_] if program.endswith(".py"):
                self._programs.discard(program)
                self._run(lambda: runpy.run_path(program, run_name="__main__"), words[1:], block)
            case _:
                check_command(words, block.place)

    def _run(self, program: Callable[[], object], argv: list[str], block: Block) -> None:
        code = 0
        with _heard() as heard, pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", argv)
            try:
                program()
            except SystemExit as ended:
                code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        self.output = heard.getvalue()
        told = f"{block.place}: {shlex.join(argv)} ends with {code}: {self.output}"
        self._wrong_end = None if code == block.ends_with else told
        if argv[:2] == ["orchestra", "status"]:
            self._again = argv  # what is seen of another program comes in its time: a text after it waits for that
        else:
            self._check_end()

    def _check_end(self) -> None:
        """Check how the last command ended."""
        wrong, self._wrong_end = self._wrong_end, None
        assert wrong is None, wrong

    # further terminals

    def _start(self, block: Block, words: list[str]) -> None:
        assert words[0] == "python", f"{block.place}: only programs run in another terminal"
        self._programs.discard(words[1])
        output = self.folder.parent / f"{block.title}.txt"
        terminal = self._terminals[block.title] = _Terminal([sys.executable, *words[1:]], self.folder, output)
        if words[1:3] == ["-m", "orchestra.testing"]:
            _until(lambda: "base_url" in terminal.shown(), lambda: f"{block.place}: it does not start")
        self.output = terminal.shown()

    def _play_stop(self, block: Block) -> None:
        self._terminals.pop(f"in {block.text.strip()}").stop()

    # outputs

    def _play_text(self, block: Block) -> None:
        again, self._again = self._again, None
        if again:
            _until(lambda: self._shows(block) or self._command(again, block), lambda: self._wrong(block))
        assert self._shows(block), self._wrong(block)

    def _shows(self, block: Block) -> bool:
        return shows(block.text, self.output.replace(str(self.folder), FOLDER), numbers_vary=block.numbers_vary)

    def _wrong(self, block: Block) -> str:
        shown = "".join(f"{title}: {terminal.shown()}" for title, terminal in self._terminals.items())
        return f"{block.place}: the page shows\n{block.text}\nand what came is\n{self.output}\n{shown}"


class _Terminal:
    """A program that runs beside the page's others."""

    def __init__(self, command: list[str], folder: Path, output: Path) -> None:
        self._output = output
        with output.open("w", encoding="utf-8") as out:
            self._process = subprocess.Popen(command, cwd=folder, stdout=out, stderr=out)

    def shown(self) -> str:
        return self._output.read_text(encoding="utf-8")

    def stop(self) -> None:
        """End it, and wait. SIGINT, as Ctrl-C sends it, is ignored by whatever was started in the background."""
        self._process.terminate()
        try:
            self._process.wait(PATIENCE)
        finally:
            self._process.kill()
            self._process.wait()


def _until(seen: Callable[[], object], wrong: Callable[[], str]) -> None:
    """Wait for another process to show something."""
    give_up = time.monotonic() + PATIENCE
    while not seen():
        assert time.monotonic() < give_up, wrong()
        time.sleep(0.3)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


@contextmanager
def _heard() -> Iterator[io.StringIO]:
    """Catch what a terminal would show: both outputs, and the warnings of a log that nobody has set up."""
    both = io.StringIO()
    log = logging.StreamHandler(both)
    log.setLevel(logging.WARNING)
    logging.getLogger().addHandler(log)
    try:
        with redirect_stdout(both), redirect_stderr(both):
            yield both
    finally:
        logging.getLogger().removeHandler(log)
