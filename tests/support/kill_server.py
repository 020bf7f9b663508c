"""Runs ``orchestra`` again and again in fresh processes that can be killed, without loading it each time.

    python kill_server.py [--hurry]

For each line of standard input, a JSON object, it does one thing and answers with a line of JSON: ``{"run":
[arguments], "folder": ..., "out": ..., "err": ..., "environment": {...}}`` forks a process that runs the command
there, its output in those files, and tells its ``pid``; ``{"wait": pid, "seconds": 10}`` waits for the end of one,
so long, and tells its ``code``, which is below 0 for a signal, and null where it has not ended. With ``--hurry``
it waits for no batch as patiently as real providers need it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
import traceback

# all that a run needs, loaded once
import orchestra.batches.desk
import orchestra.cli.following
import orchestra.cli.run
import orchestra.cli.run_display
import orchestra.cli.settings
import orchestra.client
import orchestra.jobs.diversion.hand_in
import orchestra.providers.anthropic
import orchestra.providers.batches.anthropic
import orchestra.providers.batches.openai
import orchestra.wire.aiohttp_
from orchestra.cli.main import main

LONGEST_NAP = 0.2
"""Seconds. A batch that may have been created is looked for patiently, and what failed is tried again later, since
real providers lag. The scripted one does not."""


async def nap(seconds: float) -> None:
    await asyncio.sleep(min(seconds, LONGEST_NAP))


def run(arguments: list[str], folder: str, out: str, err: str, environment: dict[str, str]) -> None:
    """Be the command, and end with its exit code."""
    code = 70
    try:
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for descriptor, path in ((1, out), (2, err)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
        sys.argv = ["orchestra", *arguments]
        main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def wait(pid: int, seconds: float) -> int | None:
    until = time.monotonic() + seconds
    while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
        if time.monotonic() > until:
            return None
        time.sleep(0.002)
    return os.waitstatus_to_exitcode(ended[1])


def serve() -> None:
    if "--hurry" in sys.argv:
        defaults = orchestra.batches.desk.BatchDesk.__init__.__kwdefaults__
        defaults["sleep"] = nap
    running: set[int] = set()
    for line in sys.stdin:
        told = json.loads(line)
        if "run" in told:
            if not (pid := os.fork()):
                run(told["run"], told["folder"], told["out"], told["err"], told["environment"])
            running.add(pid)
            answer = {"pid": pid}
        else:
            answer = {"code": wait(told["wait"], told["seconds"])}
            if answer["code"] is not None:
                running.discard(told["wait"])
        print(json.dumps(answer), flush=True)
    for pid in running:  # whoever asked is gone
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    serve()
