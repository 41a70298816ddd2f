import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from gossamer import cli


@pytest.fixture
def run():
    return lambda *args: CliRunner().invoke(cli.main, args)


def test_doctor_json_is_plain_and_true(run):
    result = run("doctor", "--json")
    assert result.exit_code == 0
    facts = json.loads(result.output)
    assert facts["python"] == platform.python_version()
    assert facts["torch"]["version"] == torch.__version__
    assert facts["torch"]["threads"] == torch.get_num_threads()
    assert set(facts["cpu"]["isa"]) == set(cli.ISA)
    assert facts["cpu"]["cores"] >= 1
    assert len(facts["gpus"]) == torch.cuda.device_count()


def test_doctor_table_shows_every_row(run):
    result = run("doctor")
    assert result.exit_code == 0
    names = ("gossamer", "Python", "torch", "CPU", "ISA", "torch uses", "C compiler", "GPU", "cache")
    lines = result.output.splitlines()
    for name in names:
        assert any(line.startswith(name) for line in lines), name
    assert platform.python_version() in result.output


def test_doctor_without_a_compiler(run, monkeypatch):
    monkeypatch.setattr(cli.shutil, "which", lambda name: None)
    assert json.loads(run("doctor", "--json").output)["compiler"] is None
    assert "none found" in run("doctor").output


def test_cache_dir_obeys_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("GOSSAMER_CACHE", raising=False)
    assert cli.cache_dir() == tmp_path / "gossamer"
    monkeypatch.setenv("GOSSAMER_CACHE", str(tmp_path / "own"))
    assert cli.cache_dir() == tmp_path / "own"


@pytest.mark.parametrize("command", [(), ("doctor",), ("demo",)])
def test_help_has_an_example(run, command):
    result = run(*command, "--help")
    assert result.exit_code == 0
    assert "Example" in result.output


def test_version(run):
    assert run("--version").output.startswith("gossamer, version 0.")


def test_wrong_usage_exits_2(run):
    assert run("doctro").exit_code == 2


def test_the_command_itself_does_not_import_torch():
    code = f"import runpy, sys; runpy.run_path({cli.__file__!r}); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(cli.__file__).parent)
