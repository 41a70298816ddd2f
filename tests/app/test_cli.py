import importlib.metadata
import json

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import save_file

import gossamer as gs
from gossamer.app import bench, cli

COMMANDS = [
    "demo", "prune", "pack", "quantize", "export", "bench", "inspect", "report", "doctor", "completion",
]  # fmt: skip


@pytest.fixture
def run():
    return lambda *args: CliRunner().invoke(cli.main, [str(arg) for arg in args])


@pytest.fixture
def file(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    gs.save(gs.sparsify_(model, {"0": "2:4", "2": None}, format=gs.CSR()), tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


@pytest.mark.parametrize("command", [(), *((c,) for c in COMMANDS)], ids=str)
def test_help_has_an_example(run, command):
    result = run(*command, "--help")
    assert result.exit_code == 0
    assert "Examples:\n" in result.output
    assert "gossamer " + " ".join(command) in result.output


def test_every_command_is_known_and_takes_json():
    assert sorted(cli.main.commands) == sorted(COMMANDS)
    for name in set(COMMANDS) - {"completion"}:
        assert any("--json" in p.opts for p in cli.main.commands[name].params), name


def test_the_names_of_suites_are_those_of_the_room():
    assert list(bench.SUITES) == cli.SUITES


def test_version(run):
    assert run("--version").output == f"gossamer, version {importlib.metadata.version('gossamer')}\n"


@pytest.mark.parametrize("args", [("doctro",), ("bench", "cpus"), ("inspect",), ("inspect", "no.safetensors")], ids=str)
def test_wrong_usage_exits_2(run, args):
    assert run(*args).exit_code == 2


def test_inspect_shows_the_file_and_its_sum(run, file):
    result = run("inspect", file)
    assert result.exit_code == 0
    for text in ("0.weight", "128 x 64", "CSR", "2:4", "50.0%", "all"):
        assert text in result.output
    found = json.loads(run("inspect", file, "--json").output)
    assert found["total"]["values"] == 64 * 128 + 128 + 128 * 10 + 10
    kept = 64 * 128 // 2
    assert found["total"]["sparsity"] == pytest.approx(kept / found["total"]["values"], abs=1e-3)


@pytest.mark.parametrize("command", [("demo", "--report"), ("bench", "cpu", "--out"), ("report", "model", "--out")])
def test_a_page_that_can_not_be_written_is_refused_before_any_work(run, file, tmp_path, monkeypatch, command):
    monkeypatch.setattr("gossamer.app.bench.run", lambda *_, **__: pytest.fail("it has started"))
    result = run(*(file if word == "model" else word for word in command), tmp_path / "no" / "page")
    assert result.exit_code == 2 and "can't be written: " in result.output


def test_a_broken_file_is_one_line_and_exit_2(run, file):
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(data)
    for command in ("inspect", "report"):
        result = run(command, file)
        assert result.exit_code == 2
        assert result.output.startswith("Error: ") and "SHA-256" in result.output


def test_report_of_a_folder_measures_the_model_as_a_whole(run, bert, tmp_path):
    result = run("report", bert, "--out", tmp_path / "page.html", "--tokens", 4, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [whole["case"] for whole in found["whole"]] == ["1 x 4"]
    assert "whole model" in (tmp_path / "page.html").read_text()
    (tmp_path / "empty").mkdir()
    assert run("report", tmp_path / "empty", "--out", tmp_path / "no.html").exit_code == 2
    assert not (tmp_path / "no.html").exists()


def test_report_writes_a_page_of_any_safetensors_file(run, file, tmp_path):
    result = run("report", file, "--out", tmp_path / "page.html", "--tokens", 2, "--json")
    assert result.exit_code == 0
    layer = json.loads(result.output)["layers"][0]
    assert (layer["name"], layer["pattern"], layer["times"][0]["tokens"]) == ("0.weight", "2:4", 2)
    assert "0.weight" in (tmp_path / "page.html").read_text()
    save_file({"w": torch.eye(8)}, tmp_path / "other.safetensors")
    result = run("report", tmp_path / "other.safetensors", "--out", tmp_path / "other.html", "--no-times")
    assert result.exit_code == 0
    assert (tmp_path / "other.html").exists()


def test_bench_runs_a_suite_quickly_and_keeps_its_json(run, monkeypatch, tmp_path):
    asked = []

    class Suite:
        @staticmethod
        def run(quick):
            asked.append(quick)
            return {"rows": [{"name": "dense", "us": 2.0}, {"name": "sparse", "us": 1.0}]}

    monkeypatch.setattr(bench, "suite", lambda name: Suite)
    assert "sparse" in run("bench", "cpu").output
    result = run("bench", "cpu", "--full", "--json", "--out", tmp_path / "cpu.json")
    assert json.loads(result.output) == json.loads((tmp_path / "cpu.json").read_text())
    assert asked == [True, False]


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_bench_gpu_without_a_gpu_is_one_line(run):
    result = run("bench", "gpu")
    assert result.exit_code == 1
    assert result.output.startswith("Error: ") and "doctor" in result.output


def test_a_missing_package_is_named_with_the_command_that_installs_it(run, monkeypatch):
    def missing(name):
        raise ModuleNotFoundError("No module named 'transformers'", name="transformers")

    monkeypatch.setattr(cli.importlib, "import_module", missing)
    result = run("demo")
    assert result.exit_code == 1
    assert "pip install 'gossamer[demo]'" in result.output


def test_ctrl_c_is_exit_130_without_a_traceback(run, monkeypatch):
    def stopped(name):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli.importlib, "import_module", stopped)
    result = run("bench", "cpu")
    assert result.exit_code == 130
    assert "stopped" in result.output and "Traceback" not in result.output


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_a_script_of_that_shell(run, shell):
    result = run("completion", shell)
    assert result.exit_code == 0
    assert "_GOSSAMER_COMPLETE" in result.output
