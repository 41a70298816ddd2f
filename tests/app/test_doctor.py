"""What doctor says is true, and each thing that is missing comes with the command that puts it right."""

import json
import platform

import pytest
import torch
from click.testing import CliRunner

from gossamer.app import cli, doctor
from gossamer.models.pack import tune


@pytest.fixture
def run():
    return lambda *args: CliRunner().invoke(cli.main, ["doctor", *args])


@pytest.fixture(scope="module")
def facts():
    return doctor.examine()


def fixes(facts):
    return {finding.fix for finding in doctor.findings(facts)}


def test_json_is_plain_and_true(run):
    facts = json.loads(run("--json").output)
    assert facts["python"] == platform.python_version()
    assert facts["torch"]["version"] == torch.__version__
    assert facts["torch"]["threads"] == torch.get_num_threads()
    assert set(facts["cpu"]["isa"]) == set(doctor.ISA)
    assert facts["cpu"]["cores"] >= 1
    assert len(facts["gpus"]) == torch.cuda.device_count()
    assert set(facts["packages"]) == set(doctor.OPTIONAL)


def test_the_table_shows_every_row(run):
    lines = run().output.splitlines()
    names = ("gossamer", "Python", "torch", "CPU", "ISA", "torch uses", "C++ compiler", "kernels", "GPU", "NVRTC")
    for name in (*names, "cache", "packages"):
        assert any(line.startswith(name) for line in lines), name


def test_without_a_compiler(run, monkeypatch):
    monkeypatch.setattr("gossamer.native.compiler", lambda: None)
    result = run("--json")
    facts = json.loads(result.output)
    assert facts["compiler"] is None
    assert "apt-get install g++" in [f["fix"] for f in facts["findings"]]
    assert result.exit_code == 1
    assert "none found" in run().output


def test_what_is_missing_and_what_puts_it_right(facts, tmp_path):
    cores = facts["cpu"]["cores"]
    assert f"export OMP_NUM_THREADS={cores}" in fixes(facts | {"torch": facts["torch"] | {"threads": cores + 1}})
    assert "unset GOSSAMER_NATIVE" in fixes(
        facts | {"compiler": {"path": "c++"}, "kernels": {"loaded": False, "why_not": "GOSSAMER_NATIVE=0"}}
    )
    broken = facts | {"compiler": {"path": "c++"}, "kernels": {"loaded": False, "why_not": "undefined symbol"}}
    assert "gossamer doctor --clear" in fixes(broken)
    nvidia = {"driver": "550.1", "nvrtc": None}
    assert any("torch" in fix for fix in fixes(facts | {"nvidia": nvidia, "gpus": []}))
    assert "pip install nvidia-cuda-nvrtc-cu12" in fixes(facts | {"nvidia": nvidia, "gpus": [{"name": "H100"}]})
    assert "export GOSSAMER_CACHE=/tmp/gossamer" in fixes(facts | {"cache": facts["cache"] | {"writable": False}})
    assert "pip install scipy" in fixes(facts | {"packages": dict.fromkeys(doctor.OPTIONAL)})


def test_nothing_missing_is_said_too(facts):
    assert doctor.advice({"findings": []}) == "[green]Nothing is missing.[/]"


def test_the_cache_is_counted(monkeypatch, tmp_path):
    monkeypatch.setenv("GOSSAMER_CACHE", str(tmp_path / "own"))
    assert doctor.cache() == {"path": str(tmp_path / "own"), "files": 0, "bytes": 0, "writable": True}
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "a.so").write_bytes(b"abc")
    assert (doctor.cache()["files"], doctor.cache()["bytes"]) == (1, 3)


def test_clear_removes_what_gossamer_wrote_and_nothing_else(run, tmp_path, monkeypatch):
    monkeypatch.setenv("GOSSAMER_CACHE", str(tmp_path))
    written = ["native/a-1.so", "kernels/b-2.so", "cuda/c.cubin", "pack.json"]
    others = ["notes.txt", "native/README", "photos/d.so"]
    for name in (*written, *others, "kernels/.build-x/kernel.c"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"12345")
    assert "removed 4 files, 0.0 MB" in run("--clear").output
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()) == sorted(others)
    assert "removed 0 files" in run("--clear").output


def test_clear_makes_pack_measure_again(run, tmp_path, monkeypatch):
    monkeypatch.setenv("GOSSAMER_CACHE", str(tmp_path))
    tune.store_known("a layer", {"Dense()": (1.0,)})
    assert tune.known_times("a layer") == {"Dense()": [1.0]}
    run("--clear")
    assert tune.known_times("a layer") is None
