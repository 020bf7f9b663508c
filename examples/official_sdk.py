"""The unmodified `openai` client over orchestra, answered by the in-process engine.

One line differs from an ordinary program: the SDK gets its HTTP client from orchestra. The model's name then
decides who answers. Here `fast` has a single route, the local engine, so neither a key nor a network is needed;
put providers before it in `routes` and the engine becomes the fallback.

    pip install '.[local]' openai
    python examples/official_sdk.py
"""

import asyncio

import openai

import orchestra

CONFIG = {
    "models": {"fast": {"routes": ["local/smollm2"]}},
    "local": {"smollm2": {"weights": "smollm2-135m"}},
}


async def main() -> None:
    async with orchestra.Orchestra.from_config(CONFIG) as orc:
        client = openai.AsyncOpenAI(api_key="unused", http_client=orc.http_client())

        # plain
        reply = await client.chat.completions.create(
            model="fast",
            messages=[{"role": "user", "content": "What is the capital of France?"}],
            temperature=0,
        )
        print("plain:   ", reply.choices[0].message.content)
        print("          answered by", reply.model)

        # streamed
        stream = await client.chat.completions.create(
            model="fast",
            messages=[{"role": "user", "content": "Name three colours."}],
            temperature=0,
            max_tokens=24,
            stream=True,
            stream_options={"include_usage": True},
        )
        print("streamed: ", end="")
        async for chunk in stream:
            if chunk.choices:
                print(chunk.choices[0].delta.content or "", end="", flush=True)
            elif chunk.usage:
                print(f"\n          {chunk.usage.completion_tokens} tokens")

        # The SDK raises its own exceptions, whoever answered.
        try:
            await client.chat.completions.create(model="fast", messages=[])
        except openai.BadRequestError as error:
            print("refused: ", error.body["message"])

        # Work that nobody waits for: it takes what interactive calls leave.
        with orchestra.bulk():
            titles = await asyncio.gather(
                *(
                    client.chat.completions.create(
                        model="fast",
                        messages=[{"role": "user", "content": f"Write a title for a story about {subject}."}],
                        temperature=0,
                        max_tokens=12,
                    )
                    for subject in ("a lighthouse", "a lost key", "two rivers")
                )
            )
        for title in titles:
            print("bulk:    ", title.choices[0].message.content)


if __name__ == "__main__":
    asyncio.run(main())
