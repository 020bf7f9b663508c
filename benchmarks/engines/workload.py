"""The requests that every engine serves: prompts of very different lengths, outputs of a few tokens and of many.

Lengths are drawn as real traffic has them (log-normal prompts, heavy-tailed outputs), so that a batch which waits
for its longest member wastes most of its slots. The seed is fixed: every run has the same requests.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = ["Request", "make_workload"]

_SEED = 907
_PROMPT = (16, 93, 600, 0.85)  # tokens: least, median, most, and how far the logarithm spreads
_OUTPUT = (4, 18, 200, 1.3)

_SENTENCES = (
    "The ferry leaves the northern pier at seven, and on Sundays an hour later.",
    "Explain in simple words why the sky is blue during the day and red in the evening.",
    "My printer does not print although it is switched on and has paper.",
    "The council voted to plant two hundred lime trees along the canal before the spring.",
    "Please summarise the following message for a colleague who has only one minute.",
    "A train of eleven carriages crosses the bridge at a speed of ninety kilometres an hour.",
    "Which of these three offers is the cheapest if we need forty chairs by the end of May?",
    "She kept the letters in a tin box under the stairs and never spoke of them again.",
    "The recipe asks for two onions, a spoon of butter, salt, and a little patience.",
    "Translate the last paragraph into French and keep the names as they are.",
    "In the year of the great flood the mill stood still for nine weeks.",
    "The test fails on the second run because the temporary folder is still there.",
    "Write a short story about a lighthouse keeper who collects lost umbrellas.",
    "Copper conducts heat better than iron, and silver better than both.",
    "The customer says that the parcel arrived on Tuesday with a broken corner.",
    "List five questions that a careful reader would ask about this report.",
    "Nobody had told the orchestra that the hall would be cold, so they played in coats.",
    "To reset the clock, hold the left button until the display begins to blink.",
    "The company sells bicycles, tents and stoves to people who would rather be outside.",
    "What are the main differences between a violin and a viola, apart from their size?",
    "It rained for so long that the goats moved into the chapel.",
    "The second column holds the price, the third the number of pieces in stock.",
    "Suggest a polite answer that declines the invitation and proposes another date.",
    "A good map leaves out almost everything, and that is what makes it useful.",
)


@dataclass(frozen=True, slots=True)
class Request:
    """Compute ``max_tokens`` tokens, exactly, after ``prompt``."""

    prompt: tuple[int, ...]
    max_tokens: int


def make_workload(encode: Callable[[str], Sequence[int]], count: int) -> list[Request]:
    """Return the first ``count`` requests; ``encode`` turns text into the model's token ids."""
    lengths, words = random.Random(_SEED), random.Random(_SEED)  # lengths are the same for every tokenizer
    requests = []
    for number in range(count):
        prompt, output = _length(lengths, *_PROMPT), _length(lengths, *_OUTPUT)
        text = f"Letter {number + 1}."  # prompts differ from the start: none can borrow from another's cache
        while len(ids := encode(text)) < prompt:
            text += " " + " ".join(words.sample(_SENTENCES, 4))
        requests.append(Request(tuple(ids[:prompt]), output))
    return requests


def _length(rng: random.Random, least: int, median: int, most: int, spread: float) -> int:
    return min(max(round(rng.lognormvariate(math.log(median), spread)), least), most)
