"""How each SDK is put over an Orchestra, asked, and what it raises. Each imports its SDK when it is made.

All are pointed at a host that does not exist, with a key that nobody may see, and ask for a model of ours.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from importlib import import_module
from typing import Any

import orchestra

__all__ = ["ADAPTERS", "KEY", "NOBODY", "Adapter"]

NOBODY = "http://nobody.invalid"
KEY = "callers-own"
MESSAGES: Any = [{"role": "user", "content": "hi"}]


class Adapter:
    """One SDK in one way of use.

    ``kind`` is the provider's, ``wire`` what it speaks, ``model`` the name that the SDK is given. A ``blocking``
    one is asked in a thread without a loop: its `ask` and `stream` are plain functions then. ``as_json``: answers
    have to be JSON. ``bad`` and ``busy`` are what 400 and 429 raise; ``broken`` is what a cut stream raises.
    """

    kind = "openai-compatible"
    wire = "openai"
    model = "fast"
    blocking = False
    as_json = False
    bad: type[Exception]
    busy: type[Exception]
    broken: type[Exception]
    own_tries = 1
    """How often it asks for a whole answer in a loop of its own that heeds nothing of what a refusal says."""
    closes = True
    """Whether a stream of it that is left ends at once. Else the garbage collector ends it."""

    def __init__(self, orc: orchestra.Orchestra) -> None:
        raise NotImplementedError

    def ask(self) -> Any:
        """Return the text of a whole answer, or, where it does not block, what to await for it."""
        raise NotImplementedError

    def stream(self) -> Any:
        """Yield the pieces of a streamed answer."""
        raise NotImplementedError


class _Chats(Adapter):
    """An SDK of the shape that openai's has."""

    def _raises(self, module: Any) -> None:
        self.bad, self.busy = module.BadRequestError, module.RateLimitError
        self.broken = _broken(module)

    async def ask(self) -> str:
        answer = await self._client.chat.completions.create(model=self.model, messages=MESSAGES)
        return str(answer.choices[0].message.content)

    async def stream(self) -> AsyncIterator[str]:
        create = self._client.chat.completions.create
        async with await create(model=self.model, messages=MESSAGES, stream=True) as stream:
            async for chunk in stream:
                for choice in chunk.choices:
                    yield choice.delta.content or ""

    _client: Any


class _BlockingChats(_Chats):
    blocking = True

    def ask(self) -> str:  # type: ignore[override]
        answer = self._client.chat.completions.create(model=self.model, messages=MESSAGES)
        return str(answer.choices[0].message.content)

    def stream(self) -> Iterator[str]:  # type: ignore[override]
        with self._client.chat.completions.create(model=self.model, messages=MESSAGES, stream=True) as stream:
            for chunk in stream:
                for choice in chunk.choices:
                    yield choice.delta.content or ""


def _is_httpx2(openai: Any) -> bool:
    """Return whether that openai is built on httpx2, as version 3 is and those before it are not."""
    return int(openai.__version__.partition(".")[0]) >= 3


def _broken(sdk: Any) -> type[Exception]:
    """Return what that SDK raises when a stream breaks off: openai 3 its own error, the others httpx's."""
    if sdk.__name__ == "openai" and _is_httpx2(sdk):
        return sdk.APIConnectionError  # type: ignore[no-any-return]
    return import_module("httpx").RemoteProtocolError  # type: ignore[no-any-return]


def _openai(orc: orchestra.Orchestra, *, blocking: bool = False) -> Any:
    """Return a client of whichever openai there is."""
    openai = import_module("openai")
    family: Any = "httpx2" if _is_httpx2(openai) else "httpx"
    if blocking:
        return openai.OpenAI(base_url=f"{NOBODY}/v1", api_key=KEY, http_client=orc.sync_http_client(family))
    return openai.AsyncOpenAI(base_url=f"{NOBODY}/v1", api_key=KEY, http_client=orc.http_client(family))


class AsyncOpenAI(_Chats):
    def __init__(self, orc: orchestra.Orchestra) -> None:
        self._raises(import_module("openai"))
        self._client = _openai(orc)


class OpenAI(_BlockingChats):
    def __init__(self, orc: orchestra.Orchestra) -> None:
        self._raises(import_module("openai"))
        self._client = _openai(orc, blocking=True)


class AsyncGroq(_Chats):
    kind = "groq"

    def __init__(self, orc: orchestra.Orchestra) -> None:
        groq = import_module("groq")
        self._raises(groq)
        self._client = groq.AsyncGroq(base_url=NOBODY, api_key=KEY, http_client=orc.http_client("httpx"))


class Groq(_BlockingChats):
    kind = "groq"

    def __init__(self, orc: orchestra.Orchestra) -> None:
        groq = import_module("groq")
        self._raises(groq)
        self._client = groq.Groq(base_url=NOBODY, api_key=KEY, http_client=orc.sync_http_client("httpx"))


class AsyncTogether(_Chats):
    kind = "together"

    def __init__(self, orc: orchestra.Orchestra) -> None:
        together = import_module("together")
        self._raises(together)
        url = f"{NOBODY}/v1"
        self._client = together.AsyncTogether(base_url=url, api_key=KEY, http_client=orc.http_client("httpx"))


class Together(_BlockingChats):
    kind = "together"

    def __init__(self, orc: orchestra.Orchestra) -> None:
        together = import_module("together")
        self._raises(together)
        url = f"{NOBODY}/v1"
        self._client = together.Together(base_url=url, api_key=KEY, http_client=orc.sync_http_client("httpx"))


class _Mistrals(Adapter):
    kind = "mistral"

    def __init__(self, orc: orchestra.Orchestra) -> None:
        self.bad = self.busy = import_module("mistralai.client.errors").SDKError
        self.broken = import_module("httpx2").RemoteProtocolError
        self._chat = (
            import_module("mistralai.client")
            .Mistral(
                server_url=NOBODY,
                api_key=KEY,
                client=orc.sync_http_client(),
                async_client=orc.http_client(),
            )
            .chat
        )


class AsyncMistral(_Mistrals):
    async def ask(self) -> str:
        answer = await self._chat.complete_async(model=self.model, messages=MESSAGES)
        return str(answer.choices[0].message.content)

    async def stream(self) -> AsyncIterator[str]:
        async with await self._chat.stream_async(model=self.model, messages=MESSAGES) as events:
            async for event in events:
                yield event.data.choices[0].delta.content or ""


class Mistral(_Mistrals):
    blocking = True

    def ask(self) -> str:
        answer = self._chat.complete(model=self.model, messages=MESSAGES)
        return str(answer.choices[0].message.content)

    def stream(self) -> Iterator[str]:
        with self._chat.stream(model=self.model, messages=MESSAGES) as events:
            for event in events:
                yield event.data.choices[0].delta.content or ""


class _Anthropics(Adapter):
    kind = "anthropic"
    wire = "anthropic"
    asked: Any = {"model": "fast", "max_tokens": 64, "messages": MESSAGES}  # noqa: RUF012 - never written to
    _client: Any

    def __init__(self, orc: orchestra.Orchestra) -> None:
        self._sdk = import_module("anthropic")
        self.bad, self.busy = self._sdk.BadRequestError, self._sdk.RateLimitError
        self.broken = import_module("httpx2").RemoteProtocolError


class AsyncAnthropic(_Anthropics):
    def __init__(self, orc: orchestra.Orchestra) -> None:
        super().__init__(orc)
        self._client = self._sdk.AsyncAnthropic(base_url=NOBODY, api_key=KEY, **self._over(orc))

    def _over(self, orc: orchestra.Orchestra) -> dict[str, Any]:
        return {"http_client": orc.http_client()}

    async def ask(self) -> str:
        return str((await self._client.messages.create(**self.asked)).content[0].text)

    async def stream(self) -> AsyncIterator[str]:
        async with self._client.messages.stream(**self.asked) as stream:
            async for text in stream.text_stream:
                yield text


class AsyncAnthropicMiddleware(AsyncAnthropic):
    def _over(self, orc: orchestra.Orchestra) -> dict[str, Any]:
        return {"middleware": [orc.anthropic_middleware()]}


class Anthropic(_Anthropics):
    blocking = True

    def __init__(self, orc: orchestra.Orchestra) -> None:
        super().__init__(orc)
        self._client = self._sdk.Anthropic(base_url=NOBODY, api_key=KEY, **self._over(orc))

    def _over(self, orc: orchestra.Orchestra) -> dict[str, Any]:
        return {"http_client": orc.sync_http_client()}

    def ask(self) -> str:
        return str(self._client.messages.create(**self.asked).content[0].text)

    def stream(self) -> Iterator[str]:
        with self._client.messages.stream(**self.asked) as stream:
            yield from stream.text_stream


class AnthropicMiddleware(Anthropic):
    def _over(self, orc: orchestra.Orchestra) -> dict[str, Any]:
        return {"middleware": [orc.anthropic_middleware()]}


class _Genais(Adapter):
    kind = "gemini"
    wire = "gemini"

    def __init__(self, orc: orchestra.Orchestra) -> None:
        genai = import_module("google.genai")
        self.bad = self.busy = genai.errors.ClientError
        self.broken = import_module("httpx2").RemoteProtocolError
        options = genai.types.HttpOptions(
            base_url=NOBODY,
            api_version="v1beta",
            httpx_client=orc.sync_http_client(),
            httpx_async_client=orc.http_client(),
        )
        self._client = genai.Client(api_key=KEY, http_options=options)


class AsyncGenai(_Genais):
    closes = False

    async def ask(self) -> str:
        return str((await self._client.aio.models.generate_content(model=self.model, contents="hi")).text)

    async def stream(self) -> AsyncIterator[str]:
        async for part in await self._client.aio.models.generate_content_stream(model=self.model, contents="hi"):
            yield part.text or ""


class Genai(_Genais):
    blocking = True

    def ask(self) -> str:
        return str(self._client.models.generate_content(model=self.model, contents="hi").text)

    def stream(self) -> Iterator[str]:
        for part in self._client.models.generate_content_stream(model=self.model, contents="hi"):
            yield part.text or ""


class _LangChains(Adapter):
    def __init__(self, orc: orchestra.Orchestra) -> None:
        openai = import_module("openai")
        self.bad, self.busy = openai.BadRequestError, openai.RateLimitError
        self.broken = _broken(openai)
        self._chat = import_module("langchain_openai").ChatOpenAI(
            model=self.model,
            api_key=KEY,
            base_url=f"{NOBODY}/v1",
            http_client=orc.sync_http_client(),
            http_async_client=orc.http_client(),
        )


class AsyncLangChain(_LangChains):
    async def ask(self) -> str:
        return str((await self._chat.ainvoke("hi")).content)

    async def stream(self) -> AsyncIterator[str]:
        async for part in self._chat.astream("hi"):
            yield str(part.content)


class LangChain(_LangChains):
    blocking = True

    def ask(self) -> str:
        return str(self._chat.invoke("hi").content)

    def stream(self) -> Iterator[str]:
        for part in self._chat.stream("hi"):
            yield str(part.content)


class _Instructors(Adapter):
    as_json = True

    def __init__(self, orc: orchestra.Orchestra) -> None:
        instructor = import_module("instructor")
        self.bad = self.busy = import_module("instructor.core").InstructorRetryException
        # what is read while it parses, it wraps when it blocks
        self.broken = self.bad if self.blocking else import_module("httpx2").RemoteProtocolError
        client = _openai(orc, blocking=self.blocking)
        self._completions = instructor.from_openai(client, mode=instructor.Mode.JSON).chat.completions
        pydantic = import_module("pydantic")
        self._asked = {
            "model": self.model,
            "messages": MESSAGES,
            "response_model": pydantic.create_model("Answer", text=(str, ...)),
        }


class AsyncInstructor(_Instructors):
    closes = False

    async def ask(self) -> str:
        return str((await self._completions.create(**self._asked)).text)

    async def stream(self) -> AsyncIterator[str]:
        shown = ""
        async for answer in self._completions.create_partial(**self._asked):
            yield (answer.text or "")[len(shown) :]
            shown = answer.text or ""


class Instructor(_Instructors):
    blocking = True

    def ask(self) -> str:
        return str(self._completions.create(**self._asked).text)

    def stream(self) -> Iterator[str]:
        shown = ""
        for answer in self._completions.create_partial(**self._asked):
            yield (answer.text or "")[len(shown) :]
            shown = answer.text or ""


class PydanticAI(Adapter):
    """By ``http_client=``."""

    def __init__(self, orc: orchestra.Orchestra) -> None:
        pydantic_ai = import_module("pydantic_ai")
        self.bad = self.busy = pydantic_ai.exceptions.ModelHTTPError
        self.broken = pydantic_ai.exceptions.ModelAPIError
        provider = import_module("pydantic_ai.providers.openai").OpenAIProvider(**self._over(orc))
        chat = import_module("pydantic_ai.models.openai").OpenAIChatModel(self.model, provider=provider)
        self._agent = pydantic_ai.Agent(chat)

    def _over(self, orc: orchestra.Orchestra) -> dict[str, Any]:
        return {"base_url": f"{NOBODY}/v1", "api_key": KEY, "http_client": orc.http_client()}

    async def ask(self) -> str:
        return str((await self._agent.run("hi")).output)

    async def stream(self) -> AsyncIterator[str]:
        async with self._agent.run_stream("hi") as answer:
            async for text in answer.stream_text(delta=True, debounce_by=None):
                yield text


class PydanticAIClient(PydanticAI):
    """By ``openai_client=``."""

    def _over(self, orc: orchestra.Orchestra) -> dict[str, Any]:
        return {"openai_client": _openai(orc)}


class _LlamaIndexes(Adapter):
    model = "gpt-4o-mini"  # it knows OpenAI's models, and takes no other
    own_tries = 3
    closes = False
    options: dict[str, Any] = {}  # noqa: RUF012 - never written to

    def __init__(self, orc: orchestra.Orchestra) -> None:
        openai = import_module("openai")
        self.bad, self.busy = openai.BadRequestError, openai.RateLimitError
        self.broken = _broken(openai)
        self._llm = import_module("llama_index.llms.openai").OpenAI(
            model=self.model,
            api_key=KEY,
            api_base=f"{NOBODY}/v1",
            http_client=orc.sync_http_client("httpx"),
            async_http_client=orc.http_client("httpx"),
            **self.options,
        )
        message = import_module("llama_index.core.llms").ChatMessage
        self._asked = [message(role="user", content="hi")]


class AsyncLlamaIndex(_LlamaIndexes):
    async def ask(self) -> str:
        return str((await self._llm.achat(self._asked)).message.content)

    async def stream(self) -> AsyncIterator[str]:
        async for part in await self._llm.astream_chat(self._asked):
            yield part.delta or ""


class LlamaIndex(_LlamaIndexes):
    blocking = True

    def ask(self) -> str:
        return str(self._llm.chat(self._asked).message.content)

    def stream(self) -> Iterator[str]:
        for part in self._llm.stream_chat(self._asked):
            yield part.delta or ""


class AsyncLlamaIndexOnce(AsyncLlamaIndex):
    own_tries = 1
    options: dict[str, Any] = {"max_retries": 0}  # noqa: RUF012


class LlamaIndexOnce(LlamaIndex):
    own_tries = 1
    options: dict[str, Any] = {"max_retries": 0}  # noqa: RUF012


class _LiteLLMs(Adapter):
    """By ``litellm.aclient_session`` and ``client_session``."""

    closes = False

    def __init__(self, orc: orchestra.Orchestra) -> None:
        self._litellm = litellm = import_module("litellm")
        self.bad, self.busy = litellm.BadRequestError, litellm.RateLimitError
        self.broken = litellm.exceptions.MidStreamFallbackError
        litellm.in_memory_llm_clients_cache.flush_cache()  # it keeps what it made over an earlier session
        self._asked: dict[str, Any] = {"model": f"openai/{self.model}", "messages": MESSAGES}
        self._asked |= {"api_base": f"{NOBODY}/v1", "api_key": KEY}
        self._give(orc)

    def _give(self, orc: orchestra.Orchestra) -> None:
        self._litellm.aclient_session = orc.http_client("httpx")
        self._litellm.client_session = orc.sync_http_client("httpx")


class AsyncLiteLLM(_LiteLLMs):
    async def ask(self) -> str:
        return str((await self._litellm.acompletion(**self._asked)).choices[0].message.content)

    async def stream(self) -> AsyncIterator[str]:
        async for chunk in await self._litellm.acompletion(**self._asked, stream=True):
            yield chunk.choices[0].delta.content or ""


class AsyncLiteLLMClient(AsyncLiteLLM):
    """By ``client=``, an SDK's."""

    def _give(self, orc: orchestra.Orchestra) -> None:
        self._asked["client"] = _openai(orc)


class LiteLLM(_LiteLLMs):
    blocking = True

    def ask(self) -> str:
        return str(self._litellm.completion(**self._asked).choices[0].message.content)

    def stream(self) -> Iterator[str]:
        for chunk in self._litellm.completion(**self._asked, stream=True):
            yield chunk.choices[0].delta.content or ""


ADAPTERS = {
    adapter.__name__: adapter
    for adapter in (
        AsyncOpenAI,
        OpenAI,
        AsyncAnthropic,
        Anthropic,
        AsyncAnthropicMiddleware,
        AnthropicMiddleware,
        AsyncGenai,
        Genai,
        AsyncMistral,
        Mistral,
        AsyncGroq,
        Groq,
        AsyncTogether,
        Together,
        AsyncLangChain,
        LangChain,
        AsyncInstructor,
        Instructor,
        PydanticAI,
        PydanticAIClient,
        AsyncLlamaIndex,
        LlamaIndex,
        AsyncLlamaIndexOnce,
        LlamaIndexOnce,
        AsyncLiteLLM,
        AsyncLiteLLMClient,
        LiteLLM,
    )
}
"""All of them, by name."""
