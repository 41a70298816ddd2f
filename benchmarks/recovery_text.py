"""Passages of English from dictionaries that Debian packages, as training text for benchmarks/recovery.py.

    apt-get download wordnet-base dict-gcide dict-foldoc dict-jargon fortunes
    for package in *.deb; do dpkg-deb -x $package texts; done
    python benchmarks/recovery_text.py texts passages.txt

One passage of 40 to 400 characters a line: definitions and their examples, quotations, entries about computing. None is
from a Bible, on whose verses the recovered model is judged.
"""

from __future__ import annotations

import gzip
import re
import sys
from collections.abc import Iterator
from pathlib import Path

SHORTEST, LONGEST = 40, 400
_TAG = re.compile(r"\[[^\]]*\]|[{}_]")
_BIBLE = re.compile(r"\b(Gen|Ex|Lev|Num|Deut|Josh|Judg|Sam|Kings|Chron|Job|Ps|Prov|Eccl|Isa|Jer|Ezek|Dan|Matt|Mark|Luke"
                    r"|John|Acts|Rom|Cor|Gal|Eph|Thess|Tim|Heb|James|Pet|Rev)\. ?[ivxl]+\.", re.IGNORECASE)  # fmt: skip


def wordnet(root: Path) -> Iterator[str]:
    """Yield the words of each sense with its definition and examples."""
    for part in ("noun", "verb", "adj", "adv"):
        for line in (root / "usr/share/wordnet" / f"data.{part}").read_text(encoding="latin-1").splitlines():
            head, bar, gloss = line.partition(" | ")
            if bar and line[0] != " ":
                fields = head.split()
                words = [word.replace("_", " ") for word in fields[4 : 4 + 2 * int(fields[3], 16) : 2]]
                yield f"{', '.join(words)}: {gloss}"


def dictionaries(root: Path) -> Iterator[str]:
    """Yield the paragraphs of dictionaries in the format of dictd, without those that quote a Bible."""
    for file in sorted((root / "usr/share/dictd").glob("*.dict.dz")):
        for paragraph in re.split(r"\n\s*\n", gzip.decompress(file.read_bytes()).decode("utf-8", "replace")):
            if not _BIBLE.search(paragraph):
                yield paragraph


def fortunes(root: Path) -> Iterator[str]:
    """Yield the sayings of fortune, whose files separate them by a percent sign."""
    for file in sorted((root / "usr/share/games/fortunes").iterdir()):
        if not file.suffix and file.name != "ascii-art":
            yield from re.split(r"\n%+\n", file.read_text(encoding="utf-8", errors="replace"))


def passages(root: Path) -> list[str]:
    """Return all passages of a fit length, once each, in a fixed order."""
    found: dict[str, None] = {}
    for source in (wordnet, dictionaries, fortunes):
        for text in source(root):
            line = " ".join(_TAG.sub(" ", text).split())
            if SHORTEST <= len(line) <= LONGEST:
                found[line] = None
    return list(found)


if __name__ == "__main__":
    lines = passages(Path(sys.argv[1]))
    Path(sys.argv[2]).write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{len(lines):,} passages, {sum(map(len, lines)):,} characters")
