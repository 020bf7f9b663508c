"""What the demo asks: questions that somebody waits for, and support tickets that nobody waits for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

__all__ = ["MODEL", "QUESTIONS", "TASKS", "Ticket", "bulk_requests", "chat", "load_tickets"]

MODEL = "fast"

_QUESTION_TOKENS = 32

# Each is asked once in a run, so that none is answered from the prefix cache.
QUESTIONS = (
    "What is the capital of Norway?",
    "Name three fruits that are yellow.",
    "How many legs does a spider have?",
    "What does a barometer measure?",
    "Which planet is closest to the sun?",
    "Give me a synonym for 'quick'.",
    "Why is the sky blue, in one sentence?",
    "What is seven times eight?",
    "Who wrote 'Romeo and Juliet'?",
    "What do bees make?",
    "Which ocean lies between Europe and America?",
    "How do I boil an egg?",
    "What is the opposite of 'ancient'?",
    "Name a river in Egypt.",
    "What colour do blue and yellow make?",
    "How long is a football match?",
    "What is a good name for a black cat?",
    "Which month has the fewest days?",
    "What do you call a baby sheep?",
    "How many minutes are in two hours?",
    "What is the largest animal in the sea?",
    "Give me a one-line greeting for a postcard.",
    "Which metal is liquid at room temperature?",
    "What is bread made of?",
    "Name two countries in South America.",
    "Why do leaves turn red in autumn?",
    "What is the square root of 81?",
    "Who painted the Mona Lisa?",
    "How do you say 'thank you' in French?",
    "What does a carpenter do?",
    "Which gas do plants take in?",
    "What is the freezing point of water?",
    "Name an instrument with strings.",
    "How many days are in a leap year?",
    "What is the longest bone in the body?",
    "Suggest a title for a story about a lighthouse.",
    "What do pandas eat?",
    "Which country is shaped like a boot?",
    "What is a haiku?",
    "How do I remove a coffee stain?",
    "What is the plural of 'mouse'?",
    "Who was the first person on the moon?",
    "Give me a word that rhymes with 'light'.",
    "What is the currency of Japan?",
    "How many sides does a hexagon have?",
    "What is the tallest mountain on Earth?",
    "Name a tree that keeps its needles in winter.",
    "What does 'photosynthesis' mean?",
    "Which bird cannot fly?",
    "How much is a dozen?",
    "What is the main language of Brazil?",
    "Which organ pumps blood?",
    "Name three primary colours.",
    "What is a sonnet?",
    "How can I fall asleep faster?",
    "What is the first letter of the Greek alphabet?",
    "Which animal is known for its black and white stripes?",
    "What should I pack for a day at the beach?",
    "How many strings has a violin?",
    "What makes a rainbow?",
    "What is the boiling point of water in Fahrenheit?",
    "Name a famous bridge.",
    "Which season follows summer?",
    "What do you do with an umbrella?",
)


@dataclass(frozen=True, slots=True)
class Task:
    """Something to do with every ticket. ``max_tokens`` bounds each answer."""

    name: str
    instruction: str
    max_tokens: int


# The first is the job; the others keep the load full on a machine that is through with it before the measuring is.
TASKS = (
    Task(
        "summary", "Give the main point of the input text in one short sentence, with its essential details.", 56
    ),
    Task("digest", "Provide a short, objective summary of the input text in up to two sentences.", 64),
    Task("reply", "Write a short, friendly first reply to this customer.", 64),
    Task("questions", "Which two things should we ask this customer before we can help?", 64),
)


@dataclass(frozen=True, slots=True)
class Ticket:
    """One support ticket of a shop for outdoor gear, invented for this demo."""

    id: str
    subject: str
    text: str


def load_tickets() -> tuple[Ticket, ...]:
    """Return the tickets that ship with the package."""
    lines = (files(__package__) / "tickets.jsonl").read_text(encoding="utf-8").splitlines()
    return tuple(Ticket(**json.loads(line)) for line in lines)


def chat(question: str) -> dict[str, Any]:
    """Return the arguments of one interactive question."""
    return {
        "messages": [{"role": "user", "content": question}],
        "max_tokens": _QUESTION_TOKENS,
        "temperature": 0,
    }


def bulk_requests(tickets: tuple[Ticket, ...], task: Task) -> Iterator[dict[str, Any]]:
    """Yield ``task`` for each ticket as an OpenAI batch line; its custom_id is distinct among all tasks."""
    for ticket in tickets:
        yield {
            "custom_id": f"{ticket.id}-{task.name}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {
                "model": MODEL,
                "messages": [
                    {"role": "system", "content": task.instruction},
                    {"role": "user", "content": f"{ticket.subject}\n\n{ticket.text}"},
                ],
                "max_tokens": task.max_tokens,
                "temperature": 0,
            },
        }
