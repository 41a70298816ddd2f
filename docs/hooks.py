"""mkdocs hook: docstrings say :func:`gossamer.x` for tools that read them; on the page it becomes a link."""

import re
from typing import Any

ROLE = re.compile(r":(?:func|class|meth|mod|attr):<code>~?([\w.]+)</code>")


def _link(match: re.Match[str]) -> str:
    name = match[1]
    short = name.removeprefix("gossamer.").rpartition("formats.levels.")[2]
    return f'<autoref identifier="{name}" optional><code>{short}</code></autoref>'


def on_page_content(html: str, **_: Any) -> str:
    """Turn roles into links, where there is something to link to."""
    return ROLE.sub(_link, html)
