"""Texts to measure a model by. Written for this purpose: no model has learned them by heart."""

from __future__ import annotations

__all__ = ["BEGINNINGS", "PASSAGES"]

PASSAGES: tuple[str, ...] = (
    "The bakery at the corner opened before the first tram. Its owner, a broad woman with flour in her eyebrows, "
    "had counted the same seven steps from the oven to the window for twenty years, and she still counted them. "
    "That morning the window stayed dark. A boy who always came for two rolls and never had enough money for both "
    "waited on the kerb with his coins in his fist. When the door opened at last it was not the woman but her "
    "brother, who lived by the sea and had never baked anything. He gave the boy four rolls, hard as stones, and "
    "refused the coins. The boy ate one of them on the way to school, out of politeness.",
    "A river does not erode its bed evenly. Where the current is quick it carries gravel, and the gravel does the "
    "cutting; where it slows, the gravel is dropped and protects what lies below. So a bend, once begun, grows: "
    "the outer bank is undercut while the inner one silts up. After some centuries two bends may come so close "
    "that a flood breaks through the neck of land between them. The river takes the short way, and the old loop "
    "is left behind as a lake in the shape of a horseshoe, which fills slowly with reeds.",
    "Before you change the setting, write down its present value. Stop the service, wait until the log says that "
    "the last job has ended, and only then edit the file. If the service does not start again, put the old value "
    "back and look at the first error in the log, not at the last: what follows is usually a consequence. Most "
    "failures of this kind come from a missing quotation mark or from a tab where spaces were expected.",
)
"""Short passages of three kinds (a story, an explanation, instructions), some hundred tokens together."""

BEGINNINGS: tuple[str, ...] = (
    "The days of the week are Monday, Tuesday,",
    "Once upon a time there was a",
    "Water boils when",
    "def add(a, b):\n    return",
    "The capital of Italy is",
    "Dear neighbours,\n\nI am writing because",
    "To make a good soup, first",
    "The difference between a lake and a sea is",
)
"""Beginnings that a model is made to continue."""
