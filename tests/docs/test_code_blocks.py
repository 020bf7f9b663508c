"""Every fenced block of the documentation and the README does what its page says, in the order of the page."""

from __future__ import annotations

import shlex
from pathlib import Path

import doc_pages
import pytest
from doc_commands import check_command
from doc_output import shows
from doc_pages import ROOT, SHOWN, pages, read_blocks
from doc_stage import Stage

from orchestra.testing import ScriptedProvider

pytestmark = [pytest.mark.model, pytest.mark.timeout(600), pytest.mark.usefixtures("model_read_once")]

MOST_NOT_RUN = 5
"""How many blocks may be checked by their form alone, over all pages."""


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_page(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    with ScriptedProvider() as provider:
        stage = Stage(folder, provider, monkeypatch)
        try:
            for block in read_blocks(page):
                stage.play(block)
        finally:
            stage.close()
    assert stage.unused_programs() == set(), "programs that the page shows and runs nowhere"


def test_few_blocks_are_not_run() -> None:
    left_out = [block for page in pages() for block in read_blocks(page) if block.why_not_run not in {"", SHOWN}]
    assert len(left_out) <= MOST_NOT_RUN, [block.place for block in left_out]


# that these tests can fail


@pytest.mark.parametrize(
    ("page", "written", "same"),
    [
        ("Hello\n", "Hello  \n", True),
        ("Hello 2\n", "Hello 3\n", False),
        ("a\n...\nb\n", "a\n1\n2\nb\n", True),
        ("a\n...\nb\n", "a\n1\n2\nc\n", False),
        ("a\n", "a\nb\n", False),
    ],
)
def test_an_output_that_is_compared(page: str, written: str, same: bool) -> None:
    assert shows(page, written) is same


@pytest.mark.parametrize(
    ("page", "written", "same"),
    [
        ("3 lines, $0.5, after 834ms, 1d0h left", "12k lines, $0.000061, after 1.2s, 12h left", True),
        ("begun 2026-11-30 11:17 key d6a7cd2a7371", "begun  2027-01-02 09:00   key 07c2cd2a73ff", True),
        ("3 lines answered", "3 lines failed", False),
        ("by gpt-5-mini", "by gpt-4-mini", False),
        ("3 lines", "no lines", False),
    ],
)
def test_an_output_whose_numbers_vary(page: str, written: str, same: bool) -> None:
    assert shows(page, written, numbers_vary=True) is same


@pytest.mark.parametrize(
    "source",
    [
        "<!-- not run: no time -->\n\nText between.\n\n```sh\nmake all\n```\n",
        "!!! note\n\n    ```python\n    1 / 0\n    ```\n",
        "<!-- numbers vary -->\n",
    ],
)
def test_a_page_whose_blocks_would_escape(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doc_pages, "ROOT", tmp_path)
    (tmp_path / "page.md").write_text(source, encoding="utf-8")
    with pytest.raises(ValueError, match="page"):
        read_blocks(tmp_path / "page.md")


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("orchestra run", "Missing parameter"),
        ("orchestra jobs show --no-such-option", "No such option"),
        ("pip install '.[no-such-extra]'", "no extra"),
        ("make nothing", "no target"),
        ("rm answers.jsonl", "no test knows"),
    ],
)
def test_a_command_that_is_wrong(command: str, why: str) -> None:
    with pytest.raises(Exception, match=why):
        check_command(shlex.split(command), "page")
