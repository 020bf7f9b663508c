"""A bulk job that survives its program: stop this at any moment, run it again, and it goes on where it was.

A job is known by its name. What it was asked, and every answer, is kept in an SQLite file (`.orchestra/jobs.db`),
so a line that has been answered is never asked, nor paid for, a second time. `submit` takes the path of a JSONL
file as well, and there is a command for it: `orchestra run requests.jsonl --out results.jsonl`.

    pip install '.[local]'
    python examples/bulk_file.py                # press Ctrl-C half-way, and start it again
"""

import asyncio

import orchestra

CONFIG = {
    "models": {"fast": {"routes": ["local/smollm2"]}},
    "local": {"smollm2": {"weights": "smollm2-135m"}},
    "bulk": {"store": ".orchestra/jobs.db"},
}

REVIEWS = [
    "The kettle arrived with a dent, but it boils faster than my old one and the shop refunded half.",
    "Battery lasts two days. The strap broke in the first week and nobody answers the phone.",
    "Exactly the blue I wanted. Washed it twice and it has kept its shape.",
    "Came a week late and in the wrong size. Returning it was easy, at least.",
    "My daughter has not put it down since her birthday. Worth every penny.",
    "The manual is a joke, the hinges are plastic, and the light flickers.",
]


def requests():
    """Yield one request a review. An iterable of any length will do: it is read as the job goes on."""
    for number, review in enumerate(REVIEWS, 1):
        yield {
            "custom_id": f"review-{number}",
            "messages": [{"role": "user", "content": f"Sum up this review in five words: {review}"}],
            "max_tokens": 16,
            "temperature": 0,
        }


async def main() -> None:
    async with orchestra.Orchestra.from_config(CONFIG) as orc:
        job = await orc.submit(requests(), model="fast", job="sum-up-reviews")
        print(f"{job.name}: {job.progress()}")

        # Results come as they end, in whatever order; those of an earlier run come first.
        async for result in job:
            print(f"  {result.custom_id} is in  ({job.progress()})")

        # And here they are in the order of the requests.
        async for result in job.results():
            if result.ok:
                answer = result.body["choices"][0]["message"]["content"]
            else:
                answer = f"failed: {result.error_message}"
            print(f"{result.custom_id:>10}: {answer.strip()}")


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        print("stopped; run me again to go on")
