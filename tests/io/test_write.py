"""gs.save, all or nothing: who is killed while writing leaves the old file whole; and what is written."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer.io import write

OLD = {"w": gs.from_dense(torch.eye(64), gs.CSR()), "b": torch.ones(64)}


class Stops(Mapping[str, torch.Tensor]):
    """Tensors of a megabyte, and something happens when the nth is asked for."""

    def __init__(self, nth: int, happens: object) -> None:
        self.left, self.happens = nth, happens

    def __iter__(self) -> Iterator[str]:
        return iter(f"w{i}" for i in range(8))

    def __len__(self) -> int:
        return 8

    def __getitem__(self, name: str) -> torch.Tensor:
        self.left -= 1
        if self.left == 0:
            self.happens()  # type: ignore[operator]
        return torch.full((1 << 18,), float(name[1:]))


WORKER = """
import sys, time, gossamer as gs
from tests.io.test_write import Stops
def halfway():
    print("halfway", flush=True)
    time.sleep(60)
gs.save(Stops(int(sys.argv[2]), halfway), sys.argv[1])
"""


@pytest.mark.parametrize("nth", [9, 13, 16])  # each is asked twice: from the ninth on they are written
def test_killed_mid_write(nth: int, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    gs.save(OLD, path)
    before = path.read_bytes()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", WORKER, str(path), str(nth)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as worker:
        assert worker.stdout is not None and worker.stdout.readline() == "halfway\n"
        parts = [p for p in tmp_path.iterdir() if p != path]
        worker.send_signal(signal.SIGKILL)
    assert len(parts) == 1 and parts[0].name.endswith(".part")  # it was writing
    assert path.read_bytes() == before
    with gs.io.File(path) as file:
        assert torch.equal(file["w"].to_dense(), torch.eye(64))
    with pytest.raises(gs.io.BadFile):
        gs.io.inspect(parts[0])  # and nobody takes the half for a whole
    gs.save({"w": torch.zeros(2)}, path)  # the next one goes through
    assert gs.io.inspect(path)[0].shape == (2,)


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError, MemoryError])
def test_interrupted(error: type[BaseException], tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    gs.save(OLD, path)
    before = path.read_bytes()

    def happens() -> None:
        raise error

    with pytest.raises(error):
        gs.save(Stops(12, happens), path)
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == [path.name]


def test_link_and_rights(tmp_path: Path) -> None:
    path, link = tmp_path / "model.safetensors", tmp_path / "link.safetensors"
    gs.save(OLD, path)
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()
    link.symlink_to(path)
    gs.save({"w": torch.zeros(2)}, link)
    assert link.is_symlink() and gs.io.inspect(path)[0].shape == (2,)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_mapping_that_changes(tmp_path: Path) -> None:
    class Changing(dict):  # type: ignore[type-arg]
        asked = 0

        def __getitem__(self, name: str) -> torch.Tensor:
            self.asked += 1
            return torch.zeros(self.asked)

    with pytest.raises(ValueError, match="'a' changed while it was written"):
        gs.save(Changing(a=None), tmp_path / "model.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_shrinks_under_the_reader(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    gs.save({"a": torch.zeros(1000), "b": torch.zeros(1000)}, path)
    with gs.io.File(path) as file:
        os.truncate(path, path.stat().st_size - 2000)
        assert torch.equal(file["a"], torch.zeros(1000))
        with pytest.raises(gs.io.BadFile, match="the file became shorter"):
            file["b"]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664])
def test_a_file_keeps_the_mode_of_the_one_it_replaces(tmp_path, mode):
    path = tmp_path / "model.safetensors"
    gs.save({"w": torch.ones(3)}, path)
    path.chmod(mode)
    gs.save({"w": torch.zeros(3)}, path)
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_a_model_that_changes_while_it_is_saved_gives_a_file_that_loads(tmp_path, monkeypatch):
    weights = {f"w{i}": torch.zeros(1000) for i in range(4)}
    real = write.hashlib.sha256

    def meanwhile(data):
        for tensor in weights.values():
            tensor.add_(1)
        return real(data)

    monkeypatch.setattr(write.hashlib, "sha256", meanwhile)
    gs.save(weights, tmp_path / "model.safetensors")
    monkeypatch.undo()
    with gs.io.File(tmp_path / "model.safetensors") as file:
        for name in file:
            assert len(file[name].unique()) == 1  # one moment of each tensor


def test_leftovers_of_killed_saves_are_removed(tmp_path):
    path = tmp_path / "model.safetensors"
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    old, ours = (tmp_path / f".model.safetensors.{pid}.aa.part" for pid in (dead.pid, os.getpid()))
    other = tmp_path / f".other.safetensors.{dead.pid}.aa.part"
    for file in (old, ours, other):
        file.write_bytes(b"half")
    gs.save({"w": torch.ones(3)}, path)
    assert not old.exists() and ours.exists() and other.exists()


# -- what is written


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


def test_meta_model_is_not_saved(path: Path) -> None:
    with pytest.raises(TypeError, match=r"'0.weight' is a Parameter on meta; plain tensors with data"):
        gs.save(nn.Sequential(nn.Linear(4, 4, device="meta")), path)
    assert not path.exists()


@pytest.mark.parametrize(
    ("state", "error", "match"),
    [
        (3, TypeError, "takes a module or a mapping"),
        ({"a": 3}, TypeError, "'a' is a int"),
        ({"a": torch.eye(2).to_sparse()}, TypeError, "'a' is a Tensor"),
        ({"a": torch.zeros(2, dtype=torch.complex128)}, TypeError, "no name for"),
        ({"__metadata__": torch.ones(1)}, ValueError, "'__metadata__'"),
        ({"a": gs.from_dense(torch.ones(1), gs.COO()), "a:values": torch.ones(1)}, ValueError, "'a:values'"),
    ],
)
def test_what_cannot_be_saved(state: object, error: type[Exception], match: str, path: Path) -> None:
    with pytest.raises(error, match=match):
        gs.save(state, path)  # type: ignore[arg-type]
    assert list(path.parent.iterdir()) == []


def test_the_state_of_a_model_has_the_names_of_the_dense_one() -> None:
    model = gs.sparsify_(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), "50%", format=gs.CSR())
    state = write.state_of(model)
    assert list(state)[:2] == ["0.weight", "0.bias"] and "1.running_mean" in state
    assert state["0.weight"].format == gs.CSR() and state["0.bias"] is model[0].bias
    assert not any("weight_" in name for name in state)


def test_tied_tensors_are_written_once(path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    gs.save(model, path)
    with gs.io.File(path) as file:
        assert file.tied == {"1.weight": "0.weight"} and len(file) == 2
        assert path.stat().st_size < 36 + 8 + 700  # nine numbers, and a header
    gs.save({"a": model[0].weight, "b": model[0].weight}, path)  # a mapping may make its tensors anew: all are written
    with gs.io.File(path) as file:
        assert file.tied == {}


def test_a_tensor_that_is_not_contiguous_is_written_in_its_order(path: Path) -> None:
    gs.save({"t": torch.tensor([[1.0, 2.0], [3.0, 4.0]]).t()}, path)
    with gs.io.File(path) as file:
        assert file["t"].tolist() == [[1.0, 3.0], [2.0, 4.0]]


def test_a_sparse_tensor_as_a_dense_one(path: Path) -> None:
    gs.save({"w": gs.from_dense(torch.eye(2, dtype=torch.bfloat16), gs.CSR())}, path, dense=True)
    with gs.io.File(path) as file:
        assert type(file["w"]) is torch.Tensor and file["w"].dtype is torch.bfloat16
        assert file["w"].tolist() == [[1.0, 0.0], [0.0, 1.0]] and file.records == {}


@pytest.mark.parametrize("how", ["int8", "int8 weights", "fp8"])
def test_quantized_weights_as_dense_ones(how: Any, path: Path) -> None:
    layer = gs.sparsify_(nn.Linear(16, 8), "50%", format=gs.formats.PackedCSR())
    model = gs.quantize_(nn.ModuleDict({"a": layer, "b": layer, "c": nn.Linear(4, 4)}), how, where="a")
    gs.save(model, path, dense=True)
    fresh = nn.Linear(16, 8)
    other = nn.ModuleDict({"a": fresh, "b": fresh, "c": nn.Linear(4, 4)})
    gs.load(other, path)
    expected = gs.densify_(model)
    assert torch.equal(fresh.weight, expected["a"].weight) and torch.equal(other["c"].weight, expected["c"].weight)


def test_a_sparse_tensor_without_data_is_refused(path: Path) -> None:
    tensor = gs.from_dense(torch.eye(2), gs.CSR()).to("meta")
    with pytest.raises(ValueError, match="'w' is on the meta device, where there is no data to save"):
        gs.save({"w": tensor}, path)


def test_an_error_names_the_file_that_was_given(tmp_path):
    target = tmp_path / "no" / "model.safetensors"
    with pytest.raises(FileNotFoundError) as found:
        gs.save({"a": torch.ones(2)}, target)
    assert found.value.filename == str(target)
