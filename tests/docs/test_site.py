"""The site builds without a warning: no dead link or anchor, no page that no menu leads to, nothing foreign."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mkdocs", reason="the site is built where the extra `docs` is installed")

ROOT = Path(__file__).parent.parent.parent
FOREIGN = re.compile(r"""<(?:script|link rel="(?:stylesheet|preconnect)"|img)[^>]*(?:src|href)="(?:https?:)?//""")


def build(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(config), "-d", str(site)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )


@pytest.mark.timeout(300)
def test_the_site_is_whole_and_needs_nothing_from_elsewhere(tmp_path: Path) -> None:
    done = build(ROOT / "mkdocs.yml", tmp_path / "site")
    assert done.returncode == 0, done.stderr
    pages = {page.relative_to(ROOT / "docs").with_suffix(".html") for page in (ROOT / "docs").rglob("*.md")}
    for page in pages:
        text = (tmp_path / "site" / page).read_text(encoding="utf-8")
        assert not FOREIGN.search(text), f"{page} loads from another host"


def test_no_dead_link_gets_by(tmp_path: Path) -> None:
    """Each of these fails the build by our settings. With ``--quiet`` none would: it counts what it says."""
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    validation = re.search(r"^validation:\n(?: .*\n)+", settings, re.M)
    assert validation is not None
    config = tmp_path / "mkdocs.yml"
    config.write_text(f"site_name: A trial\n{validation[0]}\nnav: [index.md]", encoding="utf-8")
    links = ("nowhere.md", "#nowhere", "page.md#nowhere", "/nowhere/", "nowhere/")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("".join(f"[a]({link})\n" for link in links), encoding="utf-8")
    (tmp_path / "docs" / "page.md").write_text("# A page that no menu leads to", encoding="utf-8")
    done = build(config, tmp_path / "site")
    assert done.returncode == 1
    assert f"Aborted with {len(links) + 1} warnings in strict mode" in done.stderr + done.stdout
    assert all(f"'{link}'" in done.stderr for link in links)
