"""Find words that we don't use in text that people read: pages, docstrings, messages, help, comments.

``python tools/plain_english.py [FILE ...]`` prints ``file:line: word: what to write instead`` and exits with 1 if there
is something to change. Without files it reads README, docs, changelog and sources. The words are in words.toml. Code is
not read: blocks and `spans` of Markdown, and everything in Python except comments and strings of several words.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
WORDS: dict[str, dict[str, str]] = tomllib.loads((Path(__file__).parent / "words.toml").read_text(encoding="utf-8"))
RULES = {
    group: [(re.compile(rf"\b(?:{word})(?!\w)", re.IGNORECASE), advice) for word, advice in words.items()]
    for group, words in WORDS.items()
}
FENCE = re.compile(r"^ *(```|~~~)")
CODE = re.compile(r"``.+?``|`[^`]*`|\]\([^)]*\)|<!--.*?-->|https?://\S+")


def prose_of_markdown(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a page with their numbers, without code and the targets of links."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if FENCE.match(line):
            fenced = not fenced
        elif not fenced and not line.startswith("    "):
            yield number, CODE.sub("X", line)


def prose_of_python(text: str) -> Iterator[tuple[int, str]]:
    """Yield the comments and the lines of all strings of several words, without examples and code."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], CODE.sub("X", token.string)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.count(" ") > 1:
            for offset, line in enumerate(node.value.splitlines()):
                if not line.lstrip().startswith((">>>", "...")):
                    yield node.lineno + offset, CODE.sub("X", line)


def findings(path: Path) -> list[str]:
    """Return a line for each word of a file that should be another."""
    text = path.read_text(encoding="utf-8")
    code = path.suffix == ".py"
    prose = prose_of_python(text) if code else prose_of_markdown(text)
    rules = RULES["everywhere"] if code else RULES["everywhere"] + RULES["pages"]
    shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    return [
        f"{shown}:{number}: “{match[0].strip()}”: {advice}"
        for number, line in sorted(prose)
        for pattern, advice in rules
        for match in pattern.finditer(line)
    ]


def files() -> list[Path]:
    """Return what users read."""
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("docs/**/*.txt"), *ROOT.glob("examples/*.md")]
    return sorted([*pages, *ROOT.glob("src/gossamer/**/*.py")])


def main(arguments: list[str]) -> int:
    """Print the findings; return 1 if there are any."""
    found = [line for path in (map(Path, arguments) if arguments else files()) for line in findings(path.resolve())]
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
