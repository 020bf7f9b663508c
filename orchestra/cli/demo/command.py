"""``orchestra demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestra.errors import InputError
from orchestra.extras import install

__all__ = ["demo"]


def demo(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the results go.")] = Path("demo-output"),
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Fewer tickets and questions: under a minute, and no figure to rely on."),
    ] = False,
) -> None:
    """Chat beside a bulk job on one engine in this process, measured. Needs no key and no server.

    It fetches a small model if that is not here yet, asks questions with the engine to themselves, then the same
    kind of questions beside a bulk job of support tickets, and compares. It leaves in DIR: demo.png (the plot),
    demo.json (every number), results.jsonl (the answers of the bulk job, as OpenAI batch output lines) and jobs.db
    (the job's ledger).
    """
    import asyncio
    from importlib.util import find_spec

    from rich.console import Console

    from orchestra.cli.demo.display import Display
    from orchestra.cli.demo.measure import LOCAL_MODEL, Plan, measure
    from orchestra.cli.demo.report import save_numbers, table
    from orchestra.cli.demo.workload import load_tickets
    from orchestra.localengine.weights import registry

    console = Console(highlight=False)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{out} cannot be made ({error.strerror}); name another folder with --out") from None
    if registry.cached(LOCAL_MODEL) is None:
        registry.pull(LOCAL_MODEL, progress=lambda sentence: console.print(f"[bold]==>[/] {sentence}"))

    tickets = load_tickets()
    plan = Plan(tickets[:6], alone=4, loaded=6, rate=2.0, backlog=6) if quick else Plan(tickets)
    results = out / "results.jsonl"
    with Display(console) as display:
        recording = asyncio.run(measure(plan, out / "jobs.db", results, display.watcher()))

    numbers, picture = out / "demo.json", out / "demo.png"
    save_numbers(recording, numbers)
    console.print()
    console.print(table(recording))
    console.print()
    if find_spec("matplotlib") is None:
        console.print(f"No plot: matplotlib is not installed ({install('plot')}).")
    else:
        from orchestra.cli.demo.plot import save_plot

        save_plot(recording, picture)
        console.print(f"plot     {picture}", soft_wrap=True)
    console.print(f"numbers  {numbers}", soft_wrap=True)
    console.print(f"answers  {results}: {recording.bulk.lines} lines", soft_wrap=True)
    console.print("[dim](The model is tiny: judge the waiting, not the wording.)[/]")
