"""The fenced blocks of a page of the documentation, with what its source says of how each is to be tested."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parent.parent.parent

SHOWN = "it is indented: shown to be read"
"""Why a command in an indented block is checked, and not run."""

_FENCE = re.compile(r"^\s*(?:```|~~~)", re.M)
_COMMENT = re.compile(r"<!--\s*(setup\b|not run:|numbers vary\b|ends with\b|stop\b)(.*?)-->", re.S)
_TITLE = re.compile(r'title="([^"]*)"')


@dataclass(frozen=True)
class Block:
    """A fenced block, or something that the page's source has the test do at that place.

    ``title`` is the name of a file, or says that a command runs in another terminal. ``why_not_run`` is the page's
    reason for only checking the block's form. ``numbers_vary``: of an output, only the words are compared.
    ``ends_with`` is the exit code of its commands.
    """

    page: str
    line: int
    language: str
    text: str
    title: str = ""
    why_not_run: str = ""
    numbers_vary: bool = False
    ends_with: int = 0

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """Return the pages that have blocks to be tested, the README among them."""
    return [path for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))) if read_blocks(path)]


@cache
def read_blocks(path: Path) -> list[Block]:
    """Return the blocks of a page in their order.

    A comment before a block says how it is tested: ``<!-- not run: REASON -->``, ``<!-- numbers vary -->``,
    ``<!-- ends with 2 -->``. One by itself does something unseen: ``<!-- setup`` and lines of Python, ``<!-- stop
    a second terminal -->``. Indented blocks are for what is only read; a command in one is checked all the same.
    Raises ValueError for a comment with nothing to belong to, and for a fence that would escape the tests.
    """
    name = path.relative_to(ROOT).as_posix()
    source = path.read_text(encoding="utf-8")
    blocks: list[Block] = []
    notes: dict[str, str] = {}
    fences = 0
    for token in MarkdownIt("commonmark").parse(source):
        line = (token.map or [0])[0] + 1
        if token.type == "html_block":
            for head, rest in _COMMENT.findall(token.content):
                if head in {"setup", "stop"}:
                    blocks.append(Block(name, line, head, rest.strip("\n")))
                else:
                    notes[head.rstrip(":")] = " ".join(rest.split())
            continue
        if token.type == "code_block" and _is_command(token.content):
            blocks.append(Block(name, line, "sh", " ".join(token.content.split()), why_not_run=SHOWN))
        if token.type == "fence":
            fences += 1
            language, _, options = token.info.strip().partition(" ")
            titled = _TITLE.search(options)
            blocks.append(
                Block(
                    name,
                    line,
                    language,
                    token.content,
                    title=titled[1] if titled else "",
                    why_not_run=notes.pop("not run", ""),
                    numbers_vary=notes.pop("numbers vary", None) is not None,
                    ends_with=int(notes.pop("ends with", 0)),
                )
            )
        if notes:
            raise ValueError(f"{name}:{line}: a comment for a block ({', '.join(notes)}) stands before none")
    hidden = sum(len(_FENCE.findall(block.text)) for block in blocks if block.language == "setup")
    if len(_FENCE.findall(source)) - hidden != 2 * fences:
        raise ValueError(f"{name}: a block is indented or left open, and would not be tested")
    if notes:
        raise ValueError(f"{name}: a comment for a block ({', '.join(notes)}) stands before none")
    return blocks


def _is_command(text: str) -> bool:
    return text.startswith("orchestra ") and "[OPTIONS]" not in text
