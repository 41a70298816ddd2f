"""The attacks of the folder beside this file: each gets the answer that its README names, and nothing else happens."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
import torch

import gossamer as gs
from tests.io.attacks.attacks import ATTACKS

TABLE = [
    [cell.strip() for cell in line.strip().strip("|").split(" | ")]
    for line in (Path(__file__).parent / "attacks" / "README.md").read_text().splitlines()
    if line.startswith("|")
][2:]


def test_the_table_names_every_attack() -> None:
    assert [row[0] for row in TABLE] and {row[0] for row in TABLE} == set(ATTACKS)


@pytest.mark.parametrize(("name", "answer"), [(row[0], row[2]) for row in TABLE])
def test_answer(name: str, answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "model.safetensors"
    gs.save({"w": gs.from_dense(torch.eye(4), gs.CSR()), "b": torch.ones(4)}, path)
    path.write_bytes(ATTACKS[name](path.read_bytes()))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(gs.io.BadFile) as error, gs.io.File(path) as file:
        for tensor in file:
            file[tensor]
    assert answer in str(error.value) and str(path) in str(error.value)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB; gigabytes were asked for
    assert [p.name for p in tmp_path.iterdir()] == [path.name]  # no code ran


def test_a_whole_file_of_the_forger_is_read(tmp_path: Path) -> None:
    """Else the attacks above could fail for a reason of their own."""
    from tests.io.attacks.attacks import arrays, packed, record

    for i, whole in enumerate((arrays(), record(), packed("values", 0, 1))):
        path = tmp_path / f"{i}.safetensors"
        path.write_bytes(whole)
        with gs.io.File(path) as file:
            assert torch.equal(file["w"].to_dense(), torch.eye(file["w"].shape[0]))
