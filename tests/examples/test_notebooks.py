"""The notebooks run from the first to the last cell; what they claim they assert themselves."""

from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="needs nbclient and ipykernel")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")
pytest.importorskip("sklearn")

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


def test_there_are_notebooks_and_the_folder_lists_them():
    page = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert len(NOTEBOOKS) >= 3
    assert all(f"]({path.name})" in page for path in [*NOTEBOOKS, *EXAMPLES.glob("*.py")] if path.name != "table.py")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert all(cell.outputs or cell.execution_count for cell in notebook.cells if cell.cell_type == "code")
    client = nbclient.NotebookClient(
        notebook, timeout=240, kernel_name="python3", resources={"metadata": {"path": EXAMPLES}}
    )
    client.execute()
