"""What the pages on workers in other languages say can be done, their programs included."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.languages.fleet import LANGUAGES, Language
from tests.languages.toolchain import EXAMPLES, ROOT, Toolchain
from tests.ops.pages import Session, blocks

LINES_MAX = 150


@pytest.mark.parametrize("name", LANGUAGES)
def test_a_page_can_be_done(
    name: Language, tmp_path: Path, toolchain: Toolchain, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o700)  # an embedded server keeps nothing where others may write
    for variable, value in toolchain.env().items():
        monkeypatch.setenv(variable, value)
    page = ROOT / f"docs/how-to/workers-in-{name}.md"
    found = list(blocks(page.read_text("utf-8")))
    files = [block for block in found if block.title and not block.is_terminal]
    with Session(tmp_path) as session:
        for block in [*files, *(block for block in found if block not in files)]:
            try:
                session.do(block)
            except AssertionError as error:
                raise AssertionError(f"{page.name}:{block.line}: {error}") from error


def test_an_example_is_short() -> None:
    paths = [path for path in EXAMPLES.rglob("*") if path.is_file() and os.access(path, os.R_OK)]
    long = [path.name for path in paths if len(path.read_text("utf-8").splitlines()) >= LINES_MAX]
    assert not long
