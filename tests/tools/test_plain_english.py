"""The word list: what it finds, what it leaves alone, and that our own text passes."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "plain_english.py"


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("plain_english", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("The choice is made anew at each step.", ["anew"]),
        ("Gain | asked | missed", ["asked", "missed"]),
        ("The tensor is made when it is asked for.", ["made when it is asked"]),
        ("Whoever reads it looks after the rest.", ["Whoever", "looks after"]),
        ("They run in turns, and stay as they are.", ["in turns", "stay as they are"]),
        ("Gradients are turned off.", []),
        ("Columns are told by their distance; they lie in a list.", ["told by", "lie in"]),
        ("Files are kept whole.", ["whole"]),
        ("The model as a whole, or the whole of it.", []),
        ("`anew` is code, [anew.md](anew.md) is not", ["anew"]),
        ("```python\nanew = 1\n```\nanew", ["anew"]),
        ("a renewed floored", []),
    ],
)
def test_words_of_a_page(tool, tmp_path, text, found):
    page = tmp_path / "page.md"
    page.write_text(text)
    lines = tool.findings(page)
    assert [line.split("“")[1].split("”")[0] for line in lines] == found


def test_strings_and_comments_of_python_are_read_and_code_is_not(tool, tmp_path):
    file = tmp_path / "module.py"
    file.write_text(
        '"""A module made anew.\n\n>>> anew = 1\n"""\n\nanew = 2  # not anew, but `anew`\n'
        'raise ValueError(f"{anew} is built anew")\n'
    )
    assert [line.split(":")[1] for line in tool.findings(file)] == ["1", "6", "7"]


def test_targets_are_for_pages_only(tool, tmp_path):
    file = tmp_path / "module.py"
    file.write_text('"""The floor of this kernel is one cycle."""\n')
    assert tool.findings(file) == []


def test_our_own_text_passes():
    answer = subprocess.run([sys.executable, str(TOOL)], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout


def test_a_finding_fails_and_says_what_to_write(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("one\nthen anew\n")
    answer = subprocess.run([sys.executable, str(TOOL), str(page)], capture_output=True, text=True, check=False)
    assert answer.returncode == 1
    assert answer.stdout == f"{page}:2: “anew”: again\n"
