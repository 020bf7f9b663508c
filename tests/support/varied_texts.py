"""Texts of every kind that people send: 200 and more, always the same."""

from __future__ import annotations

import random

__all__ = ["VARIED"]

_PIECES = (
    ["Hello", " world", "The capital of France", " is", " Paris.", "don't", "I'll", "we've", "HTTP", "camelCase"],
    [
        "def f(x):",
        "\n    return x",
        "for (int i = 0; i < 10; ++i) {",
        "}\n",
        "SELECT * FROM t;",
        "// TODO",
        "a->b",
    ],
    ["12345", "3.14159", "1,000,000", "0xFF", "2026-11-29", "٣٤٥", "½", "²", "Ⅷ", "१२३"],
    ["שלום", " עולם", "مرحبا", " بالعالم", "\u200f", "\u202b", "فارسی", "ܫܠܡܐ"],
    ["😀", "👍🏽", "👩\u200d👩\u200d👧", "🇫🇷", "❤️", "🤷\u200d♂️", "\U0001f9d1\u200d🚀", "☃"],
    ["\x00", "\x01", "\x07", "\x0b", "\x1b[31m", "\x7f", "\x85", "\u2028", "\ufeff", "\u00ad"],
    [" ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", "\u00a0", "\u3000", "\u200b"],
    ["é", "e\u0301", "ﬁ", "Å", "ß", "İ", "naïve", "Straße", "Ω", "ﷺ"],
    ["中文", "字符", "日本語", "テスト", "한국어", "ไทย", "Ελλάδα", "привет", "नमस्ते", "ქართული"],
    ["<html>", "</p>", "{'k': [1]}", "https://x.y/z?a=b&c", "@user", "#tag", "$x^2$", "<|fake|>", "▁", "Ġ"],
    ["\U00010ffff", "\ud7ff", "\ue000", "\ufffd", "\U000f0000", "𝔘𝔫𝔦", "𓀀", "\U0003134a"],
)


def _make() -> tuple[str, ...]:
    chosen = random.Random(7)
    texts = ["", *(piece for group in _PIECES for piece in group)]
    everything = [piece for group in _PIECES for piece in group]
    for group in _PIECES:  # mixtures of one kind, then of all
        texts += ["".join(chosen.choices(group, k=chosen.randint(2, 12))) for _ in range(5)]
    while len(texts) < 220:
        texts.append("".join(chosen.choices(everything, k=chosen.randint(2, 30))))
    return tuple(texts)


VARIED = _make()
