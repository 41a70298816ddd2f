"""The report of a pruning run: printed, as JSON, as a page."""

import json

from gossamer.prune import LayerReport, Report

REPORT = Report(
    "sparsegpt",
    (
        LayerReport("fc.weight", (8, 16), "2:4", 0.5, 0.91, error=0.0213),
        LayerReport("out.weight", (2, 8), "75%", 0.75, 0.6),
    ),
    before=0.99,
    after=0.97,
    notes=("damping was raised",),
)


def test_json_there_and_back(tmp_path):
    REPORT.save(tmp_path / "report.json")
    assert Report.from_dict(json.loads((tmp_path / "report.json").read_text())) == REPORT


def test_what_is_printed_and_what_the_page_shows(tmp_path):
    REPORT.save(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    for text in ("fc.weight", "8 x 16", "2:4", "91.0%", "0.0213", "metric 0.99", "damping was raised"):
        assert text in str(REPORT)
        assert text in page
    assert page.startswith("<!DOCTYPE html>")
    assert "src=" not in page  # it needs nothing from elsewhere
    assert "://" not in page
