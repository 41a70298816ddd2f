"""mkdocs hook: docstrings say :func:`gossamer.x` for tools that read them; on the page it becomes a link."""

import re
from typing import Any

ROLE = re.compile(r":(?:func|class|meth|mod|attr):<code>~?([\w.]+)</code>")
#: Functions that stand in a module of their own name: mkdocstrings takes the short name for the module.
HOMES = {
    "gossamer.sparsify": "gossamer.ops.sparsify.sparsify",
    "gossamer.explain": "gossamer.ops.explain.explain",
    "gossamer.fallback": "gossamer.core.fallback.fallback",
    "gossamer.linear": "gossamer.ops.linear.linear",
    "gossamer.summary": "gossamer.models.summary.summary",
    "gossamer.report": "gossamer.report.report",
}


def _link(match: re.Match[str]) -> str:
    name = match[1]
    short = name.removeprefix("gossamer.").rpartition("formats.levels.")[2]
    return f'<autoref identifier="{HOMES.get(name, name)}" optional><code>{short}</code></autoref>'


def on_page_content(html: str, **_: Any) -> str:
    """Turn roles into links, where there is something to link to."""
    return ROLE.sub(_link, html)
