"""Every SDK over our transport, each in an environment of its own, then servers and a collector that are others'.

``run.py [NAME ...]``, or all of them. Prints a table of SDKs and behaviours (`probe` says what each is), then what
the others did. Ends with 1 where anything went wrong. Environments are made below the user's cache, once.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from environments import ROOT, Environment, NotInstalled

sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

__all__ = ["ROWS", "Row"]

BEHAVIOURS = ("plain", "streamed", "error", "retried", "refused", "cancelled", "cut", "fallback", "bulk")
LONGEST = 240.0
"""Seconds that one SDK may take for all of them."""


@dataclass(frozen=True, slots=True)
class Row:
    """One SDK in one way of use: the distribution that it is, what it is tried by, and what is told beside it."""

    needs: str
    adapter: str
    way: str

    @property
    def name(self) -> str:
        distribution = re.sub(r"\[.*\]", "", self.needs).replace("==", " ")
        return f"{distribution} {self.way}"

    def beside(self) -> str:
        """Return the versions of what else its environment has that matters here."""
        own = self.name.partition(" ")[0]
        found = Environment((self.needs,)).versions("openai", "httpx", "httpx2", "aiohttp")
        return ", ".join(f"{name} {version}" for name, version in found.items() if name != own)

    def run(self, address: str) -> dict[str, dict[str, Any]]:
        """Return what each behaviour came to. Raises NotInstalled."""
        environment = Environment((self.needs,))
        python, said = environment.python(), ""
        with tempfile.TemporaryDirectory(prefix="orchestra-sdks-") as folder:
            results = Path(folder) / "results.json"
            probe = Path(__file__).parent / "probe.py"
            try:
                done = subprocess.run(
                    [str(python), str(probe), self.adapter, address, str(results)],
                    env=environment.variables(),
                    cwd=folder,
                    capture_output=True,
                    text=True,
                    timeout=LONGEST,
                    check=False,
                )
                said = done.stderr
            except subprocess.TimeoutExpired:
                said = f"it took longer than {LONGEST:.0f} seconds"
            found = json.loads(results.read_text(encoding="utf-8")) if results.exists() else {}
        for name in BEHAVIOURS:
            found.setdefault(name, {"ok": False, "note": "was not reached", "trace": said})
        return found


ROWS = (
    Row("openai==3.57.0", "AsyncOpenAI", "async"),
    Row("openai==3.57.0", "OpenAI", "sync"),
    Row("openai==2.54.0", "AsyncOpenAI", "async"),
    Row("openai==2.54.0", "OpenAI", "sync"),
    Row("anthropic==2.14.0", "AsyncAnthropic", "async"),
    Row("anthropic==2.14.0", "Anthropic", "sync"),
    Row("anthropic==2.14.0", "AsyncAnthropicMiddleware", "async, middleware"),
    Row("anthropic==2.14.0", "AnthropicMiddleware", "sync, middleware"),
    Row("google-genai==3.6.1", "AsyncGenai", "async"),
    Row("google-genai==3.6.1", "Genai", "sync"),
    Row("mistralai==3.7.0", "AsyncMistral", "async"),
    Row("mistralai==3.7.0", "Mistral", "sync"),
    Row("groq==1.7.0", "AsyncGroq", "async"),
    Row("groq==1.7.0", "Groq", "sync"),
    Row("together==3.1.1", "AsyncTogether", "async"),
    Row("together==3.1.1", "Together", "sync"),
    Row("langchain-openai==1.7.4", "AsyncLangChain", "async"),
    Row("langchain-openai==1.7.4", "LangChain", "sync"),
    Row("instructor==1.17.0", "AsyncInstructor", "async"),
    Row("instructor==1.17.0", "Instructor", "sync"),
    Row("pydantic-ai-slim[openai]==2.68.0", "PydanticAI", "async, http_client"),
    Row("pydantic-ai-slim[openai]==2.68.0", "PydanticAIClient", "async, openai_client"),
    Row("llama-index-llms-openai==0.8.3", "AsyncLlamaIndex", "async"),
    Row("llama-index-llms-openai==0.8.3", "LlamaIndex", "sync"),
    Row("llama-index-llms-openai==0.8.3", "AsyncLlamaIndexOnce", "async, max_retries=0"),
    Row("llama-index-llms-openai==0.8.3", "LlamaIndexOnce", "sync, max_retries=0"),
    Row("litellm==1.110.2", "AsyncLiteLLM", "async, aclient_session"),
    Row("litellm==1.110.2", "AsyncLiteLLMClient", "async, client"),
    Row("litellm==1.110.2", "LiteLLM", "sync, client_session"),
)
"""What is tried."""


def try_sdks(rows: Sequence[Row], *, trace: bool) -> list[str]:
    """Return what was wrong. The table is printed row by row."""
    from stand import Stand

    width = max(len(row.name) for row in rows)
    print(" " * width, *BEHAVIOURS)
    wrong: list[str] = []
    with Stand() as stand:
        for row in rows:
            try:
                found = row.run(stand.address)
            except NotInstalled as error:
                print(f"{row.name:<{width}} could not be tried", flush=True)
                wrong.append(f"{row.name}: {error}")
                continue
            marks = (f"{'ok' if found[name]['ok'] else 'FAILED':<{len(name)}}" for name in BEHAVIOURS)
            print(f"{row.name:<{width}}", *marks, f" {row.beside()}", flush=True)
            for name in BEHAVIOURS:
                if not found[name]["ok"]:
                    wrong.append(f"{row.name}, {name}: {found[name]['note']}")
                    wrong += [found[name].get("trace", "")] if trace else []
    return wrong


def main() -> int:
    from collector import NAME as COLLECTOR
    from collector import try_collector
    from real_server import SERVERS, try_server

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help="only what has one of these in its name")
    parser.add_argument("--trace", action="store_true", help="tell whence errors came")
    options = parser.parse_args()

    def chosen(name: str) -> bool:
        return not options.names or any(part in name for part in options.names)

    rows = [row for row in ROWS if chosen(row.name)]
    wrong = try_sdks(rows, trace=options.trace) if rows else []
    for server in SERVERS:
        if chosen(server.name):
            wrong += try_server(server)
    if chosen(COLLECTOR):
        wrong += try_collector()
    print("", *wrong or ["All was well."], sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
