"""What mkdocs is told beside mkdocs.yml: links that lead out of docs/.

They work where the repository is browsed.  On the site there is nothing to lead to while the
project has no public address: there a pipeline becomes the name of the file.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Return a page whose links outside of docs/ are names."""
    here = (DOCS / page.file.src_uri).parent

    def local(found: re.Match[str]) -> str:
        target = (here / found[2]).resolve()
        if target.is_relative_to(DOCS):
            return found[0]
        name = target.relative_to(DOCS.parent).as_posix()
        return found[1] if found[1].strip("`") == name else f"{found[1]} (`{name}`)"

    return _LINK.sub(local, markdown)
