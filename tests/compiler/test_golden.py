"""The loops that the compiler writes, next to those that it wrote before: a change of them must be meant.

A file of ``golden/`` names an expression and the formats of its operands and result, and holds the loop nests. To write
the files again, and look at the difference: ``python tests/compiler/test_golden.py``; a new case is a new file with the
first lines alone.
"""

from pathlib import Path

import pytest

import gossamer as gs
from gossamer.formats import as_format

FILES = sorted((Path(__file__).parent / "golden").glob("*.txt"))


def split(file: Path) -> tuple[dict[str, str], str]:
    """The first lines of a file as names and values, and the rest."""
    head, _, loops = file.read_text().partition("\n\n")
    return dict(line.split(": ", 1) for line in head.splitlines()), loops


def written(head: dict[str, str]) -> str:
    formats = [as_format(text) for text in head["formats"].split("; ")]
    out = as_format(head["out"]) if "out" in head else None
    return gs.compile(head["expression"], *formats, out=out).loops + "\n"


def test_there_are_golden_files():
    assert len(FILES) >= 20


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_loops(file):
    head, loops = split(file)
    assert written(head) == loops


if __name__ == "__main__":
    for file in FILES:
        head, _ = split(file)
        lines = [f"{name}: {value}" for name, value in head.items()]
        file.write_text("\n".join(lines) + "\n\n" + written(head))
