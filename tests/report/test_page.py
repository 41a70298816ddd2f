"""One HTML page that needs nothing else."""

import os
import stat

import pytest
from torch import nn

import gossamer as gs
from gossamer.report.page import Column, Html, Page, Section, figure, group, table, tiles, write_whole


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def test_cells_by_hand():
    assert Column("sparsity", "{:.1%}".format).cell(0.875) == '<td class="n" data-v="0.875">87.5%</td>'
    assert Column("layer", kind="code").cell("a<b") == '<td class="code" data-v="a&lt;b">a&lt;b</td>'
    assert Column("x").cell(None) == '<td class="n" data-v="">–</td>' and Column("x").cell(0).endswith(">0</td>")
    gain = Column("gain", "{:.2f}x".format, tone=lambda v: "good" if v > 1 else "")
    assert 'class="n good"' in gain.cell(2.0) and 'class="n"' in gain.cell(1.0)


def test_tables_have_a_row_for_each_and_no_other_number_of_cells():
    out = table([Column("layer", kind=""), Column("n")], [["fc", 1], ["out", 2]])
    assert out.count("<tr>") == 3 and out.count("<button") == 2 and '<th class="n" scope="col">' in out
    with pytest.raises(ValueError):
        table([Column("a")], [[1, 2]])


def test_text_is_escaped_and_html_is_not():
    assert "<b>&lt;1</b><span>a &amp; b</span>" in tiles([("<1", "a & b")])
    out = figure("a < b", Html("<svg/>"), "c > d", ["one", "two & three"])
    assert "<h3>a &lt; b</h3><svg/>" in out and "<figcaption>c &gt; d</figcaption>" in out
    assert out.count("<li>") == 2 and 'class="k1"' in out and "two &amp; three" in out
    assert "legend" not in figure("t", Html("")) and "figcaption" not in figure("t", Html(""))
    assert group([Html("<p/>"), Html("<q/>")], "masks") == '<div class="masks"><p/><q/></div>'
    assert Section("a<b", "", Html("<i/>")).html() == "<section><h2>a&lt;b</h2><i/></section>"


def test_a_page_asks_nobody_for_anything():
    page = Page("<Title>", "text", (Section("One", "about", Html("<p>body</p>")),), "<i>lead</i>").html()
    assert page.startswith("<!DOCTYPE html>") and page.count("&lt;Title&gt;") == 2 and "<i>lead</i>" in page
    assert "default-src 'none'" in page and "http://" not in page and "https://" not in page and "<p>body</p>" in page


def test_a_file_is_replaced_in_one_go_with_the_rights_of_a_new_one(tmp_path):
    before = os.umask(0o027)
    try:
        path = write_whole(tmp_path / "a.html", "é")
    finally:
        os.umask(before)
    assert path.read_text(encoding="utf-8") == "é" and stat.S_IMODE(path.stat().st_mode) == 0o640
    write_whole(path, "new")
    assert path.read_text() == "new" and [p.name for p in tmp_path.iterdir()] == ["a.html"]
    with pytest.raises(FileNotFoundError, match=r"can't write .*: there is no folder .*no; make it first"):
        write_whole(tmp_path / "no" / "a.html", "x")


def test_an_error_names_the_page_and_not_its_temporary_file(tmp_path, monkeypatch):
    def full(**_):
        raise OSError(28, "No space left on device", str(tmp_path / ".a.html.x.part"))

    monkeypatch.setattr("tempfile.mkstemp", full)
    with pytest.raises(OSError, match="No space left") as found:
        write_whole(tmp_path / "a.html", "text")
    assert found.value.filename == str(tmp_path / "a.html")


def test_a_page_that_is_there_stays_whole_when_writing_fails(tmp_path, monkeypatch):
    page = tmp_path / "page.html"
    page.write_text("old")
    monkeypatch.setattr("os.replace", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        gs.report(network(), page, measure=False)
    assert page.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]
