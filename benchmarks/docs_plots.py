"""The plots of the documentation and the README, with the words below them, from runs of our own commands.

    python benchmarks/docs_plots.py                 # measure all and draw: ten minutes, on a quiet machine
    python benchmarks/docs_plots.py --only bench    # one of the measurements
    python benchmarks/docs_plots.py --redraw        # draw again what was measured before

What was measured is kept as docs/assets/NAME.json; the plots stand beside it, and the pages that have a place for
one get its caption, figures and all. `--pace 0.2` takes a fifth of the time, to try it out, for figures that tell
little.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from docs.figures import FIGURES
from docs.pages import placed
from docs.sources import SOURCES

ROOT = Path(__file__).parent.parent


def main() -> None:
    options = _parser().parse_args()
    assets = options.root / "docs" / "assets"
    assets.mkdir(parents=True, exist_ok=True)
    for name in [] if options.redraw else options.only or SOURCES:
        print(f"measuring: {SOURCES[name].command(options.pace)}", file=sys.stderr, flush=True)
        found = SOURCES[name].take(options.pace)
        (assets / f"{name}.json").write_text(json.dumps(found, separators=(",", ":")) + "\n", encoding="utf-8")
    draw(options.root, assets)


def draw(root: Path, assets: Path) -> None:
    """Draw every figure whose measurement is there, and write its words where it stands."""
    found: dict[str, Any] = {}
    for name in SOURCES:
        file = assets / f"{name}.json"
        if file.exists():
            found[name] = json.loads(file.read_text(encoding="utf-8"))
    words = {}
    for name, figure in FIGURES.items():
        if figure.source in found:
            data = found[figure.source]
            (assets / f"{name}.svg").write_text(figure.picture(data), encoding="utf-8")
            words[name] = (figure.about(data), figure.caption(data))
    for page in pages(root):
        text = placed(page, words, assets)
        if text != page.read_text(encoding="utf-8"):
            page.write_text(text, encoding="utf-8")
            print(f"written: {page}")


def pages(root: Path) -> list[Path]:
    """Return every page that may show a figure."""
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=list(SOURCES), help="may be repeated")
    parser.add_argument("--redraw", action="store_true", help="measure nothing")
    parser.add_argument("--pace", type=float, default=1.0, help="factor of all durations")
    parser.add_argument("--root", type=Path, default=ROOT, help="folder of README.md and docs/")
    return parser


if __name__ == "__main__":
    main()
