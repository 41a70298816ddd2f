"""Tasks of a newcomer, each done by following one page only, as typed; then the outcome is checked.

A task runs the Python of its page in a process and a folder of its own, and then what is written here, in the same
names. The tasks on the command line run the commands of the page, on a small model with the names that the page uses.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from gossamer.app import cli
from gossamer.patterns import as_pattern
from tests.app.conftest import bert, texts  # noqa: F401 - a small model on disk
from tests.docs.test_pages import NEWCOMER, ROOT, blocks, run_page

TASKS = {
    "see it work in five lines": (
        "index.md",
        "assert abs(model[0].weight.sparsity - 0.9) < 1e-3 and y.shape == (64, 1024)",
    ),
    "prune a trained model with data": (
        "how-to/prune.md",
        "assert Path('pruning.json').stat().st_size > 100 and report.layers",
    ),
    "make a pruned model faster, and keep it": (
        "how-to/faster.md",
        "assert {row.name for row in report.layers} == {'0.weight', '2.weight'}\n"
        "assert any(row.format != 'Dense()' for row in gs.io.inspect('packed.safetensors'))",
    ),
    "train a model that stays sparse": (
        "how-to/train.md",
        "assert model[0].weight.sparsity > 0.5",
    ),
    "train sparse from scratch, and resume": (
        "how-to/train-from-scratch.md",
        "assert Path('checkpoint.pt').exists() and method.log()['density'] < 0.2",
    ),
    "save a model, and load it elsewhere without gossamer": (
        "how-to/save.md",
        "code = '''import sys, torch; sys.modules['gossamer'] = None\n"
        "from safetensors.torch import load_file\n"
        "assert float((load_file('dense.safetensors')['0.weight'] == 0).float().mean()) > 0.8'''\n"
        "import subprocess, sys; subprocess.run([sys.executable, '-c', code], check=True)",
    ),
    "run it in eight bits": (
        "explanation/int8.md",
        "assert all('Int8' in type(model[i]).__name__ for i in (0, 2))",
    ),
    "compile and export a model": (
        "how-to/compile.md",
        "assert torch.export.load('model.pt2').module()(x).shape == (5, 8)",
    ),
    "serve a model without Python between the layers": (
        "how-to/deploy.md",
        "torch.save((example, out), 'case.pt')\n"
        "code = '''import torch, gossamer as gs\n"
        'x, y = torch.load("case.pt")\n'
        "assert torch.equal(gs.serve.load(\"model.pt2\")(x), y)'''\n"
        "import subprocess, sys; subprocess.run([sys.executable, '-c', code], check=True)",
    ),
    "use a model of Hugging Face": (
        "how-to/hugging-face.md",
        "assert Path('pruned/config.json').exists() and Path('packed/model.safetensors').exists()",
    ),
    "prune a language model to 2:4": (
        "how-to/llm.md",
        "weight = model.model.layers[1].mlp.down_proj.weight\n"
        "assert float((weight.detach().float() == 0).float().mean()) >= 0.5  # the page ends in eight bits",
    ),
    "read a report": (
        "how-to/report.md",
        "text = Path('both.html').read_text()\nassert '<html' in text and 'src=\"http' not in text",
    ),
    "add a pattern": (
        "how-to/pattern.md",
        "assert gs.sparsify(torch.randn(6, 4), Rows(2)).nnz == 8",
    ),
    "add a format": (
        "how-to/format.md",
        "assert gs.from_dense(torch.eye(3), DIA()).nnz == 3",
    ),
    "add an operator": (
        "how-to/operator.md",
        "assert gs.explain(torch.block_diag, gs.from_dense(torch.eye(2), gs.COO()),"
        " gs.from_dense(torch.eye(2), gs.COO())).function.endswith('block_diag_coo')",
    ),
    "exchange tensors with torch.sparse and scipy": (
        "how-to/interop.md",
        "assert torch.equal(gs.from_scipy(gs.from_dense(x, gs.CSR()).to_scipy()).to_dense(), x)",
    ),
    "prune and quantize an encoder for a CPU": (
        "recipes/bert-cpu.md",
        "assert Path('encoder/config.json').exists() and report.sparsity > 0.3",
    ),
}


def test_the_pages_are_left_to_this_file_and_are_on_the_site():
    assert {page for page, _ in TASKS.values()} == NEWCOMER
    navigation = (ROOT / "mkdocs.yml").read_text()
    assert all(f" {page}\n" in navigation for page in NEWCOMER) and len(TASKS) >= 15


#: It runs a C++ compiler.
SLOW = "serve a model without Python between the layers"


@pytest.mark.parametrize("task", [pytest.param(t, marks=pytest.mark.slow) if t == SLOW else t for t in TASKS])
def test_task(task, tmp_path):
    page, outcome = TASKS[task]
    command = [sys.executable, __file__, str(ROOT / "docs" / page), outcome]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"{page}\n{result.stdout[-1500:]}{result.stderr[-3000:]}"


def commands(page: str, heading: str) -> list[list[str]]:
    """The gossamer commands of the first shell block below a heading, without comments."""
    text = (ROOT / "docs" / page).read_text().partition(heading)[2]
    block = re.search(r"```sh\n(.*?)```", text, re.DOTALL)
    lines = [shlex.split(line, comments=True) for line in block[1].splitlines()]
    return [line[1:] for line in lines if line]


@pytest.mark.parametrize(
    ("page", "heading"),
    [
        ("reference/command-line.md", "## Example"),
        ("recipes/bert-cpu.md", "The same on the command line:"),
        ("how-to/install.md", "Then check what the machine offers:"),
    ],
)
def test_commands_as_typed(page, heading, bert, texts, tmp_path, monkeypatch):  # noqa: F811
    (tmp_path / "bert").symlink_to(bert)
    (tmp_path / "texts.txt").symlink_to(texts)
    monkeypatch.chdir(tmp_path)
    found = commands(page, heading)
    assert found
    for line in found:
        result = CliRunner().invoke(cli.main, line)
        assert result.exit_code in ((0, 1) if line == ["doctor"] else (0,)), f"{line}\n{result.output}"


def test_patterns_of_the_cheat_sheet():
    import gossamer as gs

    text = (ROOT / "docs" / "cheat-sheet.md").read_text().replace(r"\|", "!")
    rows = re.findall(r'^\| `"([^"`]+)"`[^|]*\| `(gs\.[^`]+)` \|', text, re.MULTILINE)
    assert len(rows) == 7
    for string, code in rows:
        assert as_pattern(string.replace("!", "|")) == eval(code, {"gs": gs}), string


def test_python_of_the_cheat_sheet_is_all_public():
    import gossamer as gs

    text = (ROOT / "docs" / "cheat-sheet.md").read_text()
    for name in set(re.findall(r"\bgs((?:\.[A-Za-z_]+)+)", text)):
        value = gs
        for part in name[1:].split("."):
            value = getattr(value, part)
    assert blocks(text)


if __name__ == "__main__":
    names = run_page(Path(sys.argv[1]))
    exec(sys.argv[2], {**names, "Path": Path})
