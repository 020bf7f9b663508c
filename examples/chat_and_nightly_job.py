"""A web application with a chat, and a nightly job on the same model that never gets in the chat's way.

Both share one `Orchestra`. The chat's calls are interactive and go first; the job's are bulk and take what is
left. The job is durable: restart the server in the middle of it, post again, and it goes on.

    pip install '.[local]' fastapi uvicorn
    python examples/chat_and_nightly_job.py                  # serves on http://127.0.0.1:8000

    curl -N http://127.0.0.1:8000/chat --json '{"text": "What is the capital of France?"}'
    curl -X POST http://127.0.0.1:8000/nightly               # cron would do this at night
    curl http://127.0.0.1:8000/nightly
"""

import argparse
import asyncio
import datetime
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import uvicorn
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

import orchestra

orc = orchestra.Orchestra.from_config(
    {
        "models": {"fast": {"routes": ["local/smollm2"]}},
        "local": {"smollm2": {"weights": "smollm2-135m"}},
    }
)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with orc:
        yield


app = FastAPI(lifespan=lifespan)


class Question(BaseModel):
    text: str


@app.post("/chat")
async def chat(question: Question) -> StreamingResponse:
    async def answer() -> AsyncIterator[str]:
        messages = [{"role": "user", "content": question.text}]
        async with orc.stream("fast", messages, temperature=0, max_tokens=200) as deltas:
            async for text in deltas:
                yield text

    return StreamingResponse(answer(), media_type="text/plain")


def tonight() -> str:
    return f"nightly-{datetime.date.today()}"


def tickets() -> list[dict[str, Any]]:
    """Stand in for a query of the day's tickets."""
    problems = ["cannot log in", "was charged twice", "wants a refund", "lost the invoice"]
    return [
        {
            "messages": [{"role": "user", "content": f"Write a one-line note: customer {number} {problem}."}],
            "max_tokens": 24,
            "temperature": 0,
        }
        for number, problem in enumerate(problems, 1)
    ]


@app.post("/nightly")
async def start_nightly() -> dict[str, str]:
    job = await orc.submit(tickets(), model="fast", job=tonight(), deadline="8h")
    return {"job": job.name, "progress": str(job.progress())}


@app.get("/nightly")
async def nightly() -> dict[str, Any]:
    job = orc.jobs.get(tonight())
    notes = [result.body["choices"][0]["message"]["content"] async for result in job.results() if result.ok]
    return {"job": job.name, "progress": str(job.progress()), "notes": notes}


async def self_test() -> None:
    """Serve on a free port, start the job, ask the chat while it runs, wait for the job."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    async with httpx2.AsyncClient(base_url=address, timeout=120) as browser:
        print("job: ", (await browser.post("/nightly")).json()["progress"])
        print("chat: ", end="")
        async with browser.stream("POST", "/chat", json={"text": "What is the capital of France?"}) as answer:
            async for text in answer.aiter_text():
                print(text, end="", flush=True)
        print("\njob: ", (await browser.get("/nightly")).json()["progress"])
        await orc.jobs.get(tonight()).wait()
        report = (await browser.get("/nightly")).json()
        print("job: ", report["progress"])
        print("note:", report["notes"][0])
    server.should_exit = True
    await serving


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A chat and a nightly job on one model.")
    parser.add_argument("--self-test", action="store_true", help="ask the chat once while the job runs, and end")
    if parser.parse_args().self_test:
        asyncio.run(self_test())
    else:
        uvicorn.run(app, host="127.0.0.1", port=8000)
