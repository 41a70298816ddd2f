"""Tables of figures in the docs are those of the committed results."""

import json
from pathlib import Path

from benchmarks import gpu_plot

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def test_gpu_table_is_of_the_results():
    found = json.loads((RESULTS / "gpu-h200.json").read_text())
    assert (gpu_plot.DOCS / "gpu-table.md").read_text() == gpu_plot.table(found) + "\n"


def test_a_floor_that_is_missed_is_said():
    row = {"shape": [4096, 4096, 4096], "v": 512, "m": 8, "gain": 2.1}
    found = {"products": [row], "few": [], "overhead": {"few": 20.0, "few dense": 30.0}}
    assert gpu_plot.floors_missed(found) == [
        "4096 x 4096 x 4096 at 2:8 2.10x of 2.2x",
        "few call 20.0 us of CPU time, not 15",
    ]
    row["gain"] = 2.3
    assert len(gpu_plot.floors_missed(found)) == 1
