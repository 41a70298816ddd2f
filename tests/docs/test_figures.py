"""Tables of figures in the docs are those of the committed results."""

import json
from pathlib import Path

from benchmarks import gpu_plot

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def test_gpu_table_is_of_the_results():
    found = json.loads((RESULTS / "gpu-h200.json").read_text())
    assert (gpu_plot.DOCS / "gpu-table.md").read_text() == gpu_plot.table(found) + "\n"
