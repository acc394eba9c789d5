"""What the documents tell people to do can be done: see `pages` for what becomes of which block."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ops.pages import ROOT, Session, blocks, needs_running

DOCS = ROOT / "docs"
DONE_ELSEWHERE = {
    "security.md",  # tests/security/test_security_page.py
    # They need other languages' programs: tests/languages/test_language_pages.py
    *(f"how-to/workers-in-{each}.md" for each in ("javascript", "go", "shell")),
}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT if path.parent == ROOT else DOCS).as_posix()


PAGES = [
    path
    for path in [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
    if needs_running(path.read_text("utf-8")) and name_of(path) not in DONE_ELSEWHERE
]


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_what_a_page_says_can_be_done(path: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)  # an embedded server keeps nothing where others may write
    with Session(tmp_path) as session:
        for block in blocks(path.read_text("utf-8")):
            try:
                session.do(block)
            except AssertionError as error:
                raise AssertionError(f"{name_of(path)}:{block.line}: {error}") from error


def test_the_site_is_built_without_a_warning_and_asks_nobody_else_for_anything(
    tmp_path: Path,
) -> None:
    """Links lead somewhere, docstrings can be read, and fonts and scripts are its own."""
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    pages = sorted(tmp_path.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        text = page.read_text("utf-8")
        asked = re.findall(r"<(?:script|img|iframe|source)[^>]+src=\"?(?:https?:)?//", text)
        asked += re.findall(r"<link[^>]+href=\"?(?:https?:)?//", text)
        assert not asked, page
        assert 'class="mermaid"' not in text, "its script would come from elsewhere"
    for style in tmp_path.rglob("*.css"):
        assert not re.search(r"url\([\"']?(?:https?:)?//", style.read_text("utf-8")), style
