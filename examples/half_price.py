"""Calls of the unmodified `openai` client that have time ride in a batch, at half the price.

The provider here is `orchestra.testing`'s, so that this needs no key and costs nothing: its batches take a second
instead of hours. With a real one, leave out `base_url` and give it your key; the rest stays as it is.

A program that is killed while it waits, and is run again, finds its batch, and pays nothing twice.

    pip install . openai
    python examples/half_price.py
"""

import asyncio
import tempfile
from pathlib import Path

import openai

import orchestra
from orchestra.testing import BatchScript, ScriptedProvider

REVIEWS = ("It broke in a week.", "My best buy this year!", "It does what it says.")


def settings(base_url: str, folder: Path) -> dict[str, object]:
    return {
        "providers": {
            "openai": {
                "kind": "openai",
                "base_url": base_url,
                "api_key": "none-is-needed-here",
                # USD per million tokens. The price of a batch is half of that, unless `tiers` says otherwise.
                "prices": [{"input": 0.25, "output": 2.0}],
            }
        },
        "models": {"fast": {"routes": ["openai/gpt-5-mini"]}},
        "bulk": {"store": str(folder / "jobs.db")},
    }


async def praise_or_complain(config: dict[str, object]) -> None:
    async with orchestra.Orchestra.from_config(config) as orc:
        client = openai.AsyncOpenAI(api_key="unused", http_client=orc.http_client())

        async def ask(review: str) -> str:
            reply = await client.chat.completions.create(
                model="fast",
                messages=[{"role": "user", "content": f"Praise or complaint? {review}"}],
                max_tokens=8,
            )
            return reply.choices[0].message.content

        # It has until tomorrow: the calls are gathered, and answered when their batch is back.
        with orchestra.bulk(deadline="24h", job="reviews"):
            answers = await asyncio.gather(*(ask(review) for review in REVIEWS))
        for review, answer in zip(REVIEWS, answers, strict=True):
            print(f"{review} {answer}")


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with ScriptedProvider(batch_script=[BatchScript(running=1.0)]) as provider:
            config = settings(provider.base_url, Path(folder))
            await praise_or_complain(config)
            print("paid:", provider.billed.all)

            # Run again, the same work under the same name is answered from the ledger.
            await praise_or_complain(config)
            print("paid:", provider.billed.all)


if __name__ == "__main__":
    asyncio.run(main())
