"""What the documentation says of the code, and of what was measured, is what they say."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ASSETS = ROOT / "docs" / "assets"
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "benchmarks")]

from docs.figures import FIGURES  # noqa: E402 - they are no installed packages
from docs.pages import names_in, placed  # noqa: E402
from docs.sources import SOURCES  # noqa: E402
from docs_plots import draw, pages  # noqa: E402
from docs_reference import PAGES, made  # noqa: E402


@pytest.mark.parametrize("page", PAGES)
def test_the_reference_says_what_the_code_says(page: str) -> None:
    kept = (ROOT / "docs" / "reference" / page).read_text(encoding="utf-8")
    assert kept == made(page), "run `make docs-reference`"


def test_figures_stand_somewhere_and_say_what_was_measured() -> None:
    """A page cannot tell another number than the measurement that its plot shows."""
    shown = {name for page in pages(ROOT) for name in names_in(page.read_text(encoding="utf-8"))}
    assert shown == set(FIGURES)
    words = {}
    for name, figure in FIGURES.items():
        found = json.loads((ASSETS / f"{figure.source}.json").read_text(encoding="utf-8"))
        assert found["command"] == SOURCES[figure.source].command(1.0), "run `make docs-plots`"
        words[name] = (figure.about(found), figure.caption(found))
    for page in pages(ROOT):
        assert placed(page, words, ASSETS) == page.read_text(encoding="utf-8"), (
            "run `make docs-plots ARGS=--redraw`"
        )


def test_drawing_writes_each_picture_and_the_words_of_its_place(tmp_path: Path) -> None:
    assets = tmp_path / "docs" / "assets"
    assets.mkdir(parents=True)
    (assets / "plan.json").write_bytes((ASSETS / "plan.json").read_bytes())
    place = "<!-- FIGURE {}: made -->\n<!-- END FIGURE -->\n"
    (tmp_path / "README.md").write_text(place.format("step-time"), encoding="utf-8")
    (tmp_path / "docs" / "page.md").write_text("Before\n" + place.format("queue"), encoding="utf-8")
    draw(tmp_path, assets)
    assert (tmp_path / "README.md").read_text(encoding="utf-8").count("](docs/assets/step-time.svg)") == 1
    assert (tmp_path / "docs" / "page.md").read_text(encoding="utf-8") == "Before\n" + place.format("queue")
    assert [file.name for file in assets.glob("*.svg")] == ["step-time.svg"], "only what was measured is drawn"


@pytest.mark.parametrize("name", FIGURES)
def test_pictures_stand_by_themselves(name: str) -> None:
    """An ``img`` loads nothing and has no page's style: colours, patterns and the ground come along."""
    text = (ASSETS / f"{name}.svg").read_text(encoding="utf-8")
    assert text.startswith('<svg xmlns="http://www.w3.org/2000/svg"')
    assert "prefers-color-scheme: dark" in text
    assert set(re.findall(r"url\(#([\w-]+)\)", text)) <= set(re.findall(r'<pattern id="([\w-]+)"', text))
    assert not re.search(r"https?://(?!www\.w3\.org)|<script|\bnan\b", text)


def test_docstrings_become_markdown() -> None:
    from docs_docstrings import as_markdown

    assert as_markdown("Listen::\n\n    stop = listen()") == "Listen:\n\n    stop = listen()"
    assert as_markdown("First.\n\n::\n\n    code") == "First.\n\n    code"
    assert as_markdown("It has two.\n``a``: one thing,\nand more.\n``b``, on a CPU: another.") == (
        "It has two.\n\n- ``a``: one thing,\n    and more.\n- ``b``, on a CPU: another."
    )
    assert as_markdown("``weights`` is a name: it is.") == "``weights`` is a name: it is."
