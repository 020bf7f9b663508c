"""The command line: what it is called, what it teaches, and how it ends.

Exit codes: 0 all went well; 1 it ran and something failed; 2 bad usage, settings or input, and nothing was sent;
130 interrupted. ``ORCHESTRA_DEBUG=1`` shows a traceback where a single line is shown otherwise.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import Annotated, NoReturn

import typer

import orchestra
from orchestra.cli.bench import bench
from orchestra.cli.command_help import Command, Group
from orchestra.cli.demo.command import demo
from orchestra.cli.doctor import doctor
from orchestra.cli.init import init
from orchestra.cli.jobs import app as jobs_app
from orchestra.cli.limits import limits
from orchestra.cli.model import app as model_app
from orchestra.cli.plan import plan
from orchestra.cli.run import run
from orchestra.cli.simulate import simulate
from orchestra.cli.status import status
from orchestra.cli.top import top
from orchestra.errors import ConfigError, InputError, OrchestraError

__all__ = ["app", "main"]

STORY = """\
One LLM account or GPU, shared by people who wait and jobs that do not.
Interactive calls go first; bulk takes all that they leave. Start here:

- `orchestra demo`:
  chat beside a bulk job on one engine in this process, measured; needs no key
- `orchestra init`:
  writes orchestra.toml, with every setting explained; it works as it is
- `orchestra doctor`:
  says whether everything is in place, and what to do where it is not
- `orchestra run requests.jsonl --out answers.jsonl --model fast`:
  answers a file of requests; stopped or killed, the same command goes on; with `--deadline 24h` what has time
  rides in the provider's batches, mostly at half the price; `--dry-run` tells beforehand what goes where
- `orchestra bench --url http://localhost:8000/v1 --model llama --sweep`:
  loads a server, a model of the settings or an engine, and says at which rate to run it
- `orchestra plan llama-3.1-8b --device h100 --per-hour 2.50`:
  says what fits on a GPU or on this machine, how fast it is there and what tokens cost; needs no GPU
- `orchestra simulate --rate 1 --shape office --job 02:00:5000:6h`:
  lets a day of traffic meet your settings, in seconds: waits, refusals, cost, missed deadlines; sends nothing
- `orchestra jobs list`:
  jobs of this and earlier days; also show, cancel, resume, results, delete
- `orchestra status`:
  says what running programs do: limits, how much is used, who waits, for what and how long
- `orchestra top`:
  shows the same live, with how it went in the last minutes, and what engines compute
- `orchestra limits openai`:
  says what the account may use, as settings to paste; needs an administrator's key

Each command explains itself: `orchestra COMMAND --help`
"""

app = typer.Typer(
    name="orchestra",
    cls=Group,
    help=STORY,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (demo, init, doctor, run, bench, plan, simulate, status, top, limits):
    app.command(cls=Command)(command)
app.add_typer(jobs_app, name="jobs")
app.add_typer(model_app, name="model")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"orchestra {orchestra.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Say the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    pass


def main() -> NoReturn:
    """Run the command line and exit the process."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        app(prog_name="orchestra")
    except Exception as error:
        code = _exit_code(error)
        if code is None or os.environ.get("ORCHESTRA_DEBUG", "") not in {"", "0"}:
            raise
        sys.stderr.write(f"orchestra: {error}\n")
        sys.exit(code)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)
    sys.exit(0)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Let a request to terminate end the command as Ctrl-C does: jobs are left in order, and their end is told."""
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler):  # ignored, as of a command that a script put into the background
        raise KeyboardInterrupt
    handler(number, frame)


def _exit_code(error: Exception) -> int | None:
    """Return the exit code that a known error stands for, or None where it is a fault of ours."""
    if isinstance(error, ConfigError | InputError):
        return 2
    if isinstance(error, OrchestraError):
        return 1
    # the engine's own errors, where a command used it directly; none can have come from an engine never loaded
    engine = sys.modules.get("orchestra.localengine.errors")
    if engine is None:
        return None
    if isinstance(error, engine.ModelFileError | engine.PromptError):
        return 2
    return 1 if isinstance(error, engine.EngineError) else None
