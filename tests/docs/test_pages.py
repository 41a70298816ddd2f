"""Runs the code of README.md and docs/: a page shows nothing that does not work.

Every block that opens with ```python runs; the blocks of one page run in order, in one namespace and in a process of
their own, as a reader would type them. A block that should not run opens with ```py, which looks the same on the page.
A ```text block right after a block is what it prints; numbers may differ, since machines do.
"""

import contextlib
import io
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^(?P<indent> *)```python\b[^\n]*\n(?P<code>.*?)^(?P=indent)``` *$", re.MULTILINE | re.DOTALL)


def blocks(text: str) -> list[tuple[int, str]]:
    """The python blocks of a page, each with the number of lines above it."""
    return [(text.count("\n", 0, m.start("code")), textwrap.dedent(m["code"])) for m in BLOCK.finditer(text)]


def shown_after(text: str) -> dict[int, str]:
    """What a page says that its blocks print, by the number of lines above the block."""
    found = {}
    for m in BLOCK.finditer(text):
        if after := re.compile(r"\n+```text\n(.*?)^```", re.MULTILINE | re.DOTALL).match(text, m.end()):
            found[text.count("\n", 0, m.start("code"))] = after[1]
    return found


def agrees(shown: str, printed: str) -> bool:
    """Whether a text is what was printed: "..." is anything, numbers may differ, and lines may break elsewhere."""
    shown, printed = (re.sub(r"\d[\d.,]*", "#", " ".join(text.split())) for text in (shown, printed))
    return re.search(re.escape(shown).replace(r"\.\.\.", ".*"), printed) is not None


def run_page(page: Path) -> dict:
    namespace = {"__name__": "__main__"}
    text = page.read_text(encoding="utf-8")
    shown = shown_after(text)
    for above, code in blocks(text):
        # Blank lines stand for the page above the block, so that a traceback shows the page's own line.
        program = compile("\n" * above + code, str(page), "exec")
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(program, namespace)
        if above in shown and not agrees(shown[above], out.getvalue()):
            raise AssertionError(f'File "{page}", line {above + 1}: it prints\n{out.getvalue()}')
    return namespace


#: Run by test_newcomer.py, which also checks what came out.
NEWCOMER = {
    "index.md", "explanation/int8.md", "recipes/bert-cpu.md",
    *(f"how-to/{name}.md" for name in (
        "prune", "faster", "train", "train-from-scratch", "save", "compile", "deploy", "hugging-face", "llm", "report",
        "pattern", "format", "operator", "interop",
    )),
}  # fmt: skip
DOCS = [
    page for page in sorted(ROOT.glob("docs/**/*.md")) if page.relative_to(ROOT / "docs").as_posix() not in NEWCOMER
]
PAGES = [page for page in [ROOT / "README.md", *DOCS] if blocks(page.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page(page, tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, str(page)]
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    if result.returncode:
        line = (re.findall(re.escape(f'"{page}"') + r", line (\d+)", result.stderr) or ["?"])[-1]
        pytest.fail(f"{page.relative_to(ROOT)}:{line}\n{result.stdout}{result.stderr}", pytrace=False)


def test_text_is_compared_but_for_numbers():
    text = "```python\nprint('a 1 b')\n```\n\n```text\na 2\nb\n```\n```python\npass\n```\n"
    assert shown_after(text) == {1: "a 2\nb\n"}
    assert agrees("a 2\nb", "a 1 b\n") and agrees("a ... c", "a 1 b c") and not agrees("a b", "a c")


def test_blocks_are_found_where_they_stand():
    text = "# Page\n```python\na = 1\n```\n```py\nnever()\n```\n- item\n\n    ```python title='x'\n    b = a\n    ```\n"
    assert blocks(text) == [(2, "a = 1\n"), (10, "b = a\n")]


if __name__ == "__main__":
    run_page(Path(sys.argv[1]))
