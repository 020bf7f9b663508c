"""What is asked: words at random, so that no two prompts begin alike and no cache of prefixes helps."""

from __future__ import annotations

import random

from orchestra.bench.load.workload import Request

__all__ = ["messages_of"]

# common and short: most tokenizers know each of them, with the space before it, as one token
_COMMON = """
time year people way day man thing woman life child world school state family student group country problem
hand part place case week company system program question work government number night point home water room
mother area money story fact month lot right study book eye job word business issue side kind head house
service friend father power hour game line end member law car city name team minute idea body back parent
face level office door health person art war history party result change morning reason research girl guy
moment air teacher force education
"""
_WORDS = _COMMON.split()


def messages_of(request: Request) -> list[dict[str, str]]:
    """Return the chat of a call: about as many tokens as it has to be, beside the chat template's own."""
    draw = random.Random(f"{request.seed} {request.salt} prompt {request.number}")
    return [{"role": "user", "content": " ".join(draw.choices(_WORDS, k=request.prompt_tokens))}]
