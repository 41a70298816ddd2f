"""Check a built site: every link, picture, script and anchor inside it exists, and nothing is loaded from elsewhere.

``python tools/links.py site`` prints what is broken and exits with 1 if there is something. mkdocs' own ``--strict``
looks at Markdown; this looks at what a reader's browser gets. Links to other sites are not followed.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

#: The error page of a server: its links start at the root of the server, and it isn't part of a folder of pages.
LEFT_OUT = {"404.html"}
#: What a page loads by itself, and where the address is.
LOADED = {"img": "src", "script": "src", "iframe": "src", "source": "src", "link": "href"}


@dataclass
class Page(HTMLParser):
    """The anchors and links of a page."""

    anchors: set[str] = field(default_factory=set)
    links: list[tuple[str, str]] = field(default_factory=list)  # (tag, address)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what a tag defines and points at."""
        found = dict(attrs)
        self.anchors |= {value for name in ("id", "name") if (value := found.get(name))}
        address = found.get("href" if tag == "a" else LOADED.get(tag, ""))
        if address and found.get("rel") not in ("canonical", "next", "prev"):
            self.links.append((tag, address))


def check(site: Path) -> list[str]:
    """Return a line for each broken link of a site."""
    pages = {}
    for file in sorted(site.rglob("*.html")):
        if file.relative_to(site).as_posix() not in LEFT_OUT:
            pages[file.resolve()] = page = Page()
            page.feed(file.read_text(encoding="utf-8"))
    return [
        f"{file.relative_to(site.resolve())}: {address}: {problem}"
        for file, page in pages.items()
        for tag, address in page.links
        if (problem := _problem(file, tag, address, pages))
    ]


def _problem(file: Path, tag: str, address: str, pages: dict[Path, Page]) -> str | None:
    parts = urlsplit(address)
    if parts.scheme or parts.netloc:
        loaded = tag in LOADED and parts.scheme in ("http", "https", "")
        return "is loaded from another site" if loaded else None
    target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
    if parts.path.startswith("/"):
        return "starts at the root of a server, so it is broken in a folder"
    if target.is_dir():
        target /= "index.html"
    if not target.exists():
        return "no such file"
    if parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
        return "no such anchor"
    return None


def main(arguments: list[str]) -> int:
    """Print what is broken; return 1 if something is."""
    site = Path(arguments[0] if arguments else "site")
    if not (site / "index.html").exists():
        print(f"{site} has no index.html: make docs builds the site")
        return 1
    found = check(site)
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
