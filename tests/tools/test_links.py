"""The link checker: what it finds in a small site."""

import importlib.util
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "links.py"


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("links", TOOL)
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules["links"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("html", "problem"),
    [
        ('<a href="other.html">', None),
        ('<a href="other.html#here">', None),
        ('<a href="#top"><p id="top">', None),
        ('<a href="https://example.org/nothing">', None),
        ('<a href="mailto:a@example.org">', None),
        ('<a href="sub/">', None),
        ('<a href="gone.html">', "gone.html: no such file"),
        ('<a href="other.html#there">', "other.html#there: no such anchor"),
        ('<a href="#nowhere">', "#nowhere: no such anchor"),
        ('<img src="gone.svg">', "gone.svg: no such file"),
        ('<script src="https://example.org/x.js"></script>', "https://example.org/x.js: is loaded from another site"),
        ('<a href="/root.html">', "/root.html: starts at the root of a server, so it is broken in a folder"),
        ('<link rel="canonical" href="https://example.org/">', None),
    ],
)
def test_links(tool, tmp_path, html, problem):
    (tmp_path / "sub").mkdir()
    (tmp_path / "index.html").write_text(html)
    (tmp_path / "other.html").write_text('<h2 id="here">')
    (tmp_path / "sub" / "index.html").write_text('<a href="../index.html">')
    (tmp_path / "404.html").write_text('<a href="/x">')
    assert tool.check(tmp_path) == ([f"index.html: {problem}"] if problem else [])


def test_a_folder_without_a_site_is_an_error(tool, tmp_path, capsys):
    assert tool.main([str(tmp_path)]) == 1
    assert "make docs" in capsys.readouterr().out
