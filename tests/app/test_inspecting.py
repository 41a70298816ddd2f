import io

import pytest
import torch
from rich.console import Console

import gossamer as gs
from gossamer.app.inspecting import found_in, table


def shown(found, **how):
    text = io.StringIO()
    Console(file=text, width=140).print(table(found, **how))
    return text.getvalue()


def test_long_tables_have_a_row_for_each_kind(tmp_path):
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(30)))
    gs.save(gs.sparsify_(model, "75%", format=gs.CSR()), tmp_path / "m.safetensors")
    found = found_in(str(tmp_path / "m.safetensors"))
    assert len(found["tensors"]) == 60
    short = shown(found)
    assert "*.weight" in short and "vectors" in short and "29.weight" not in short
    assert len(short.splitlines()) < 12
    assert "29.weight" in shown(found, every=True)


def test_all_shards_of_a_folder_are_read(bert, tmp_path):
    found = found_in(str(bert))
    names = [row["name"] for row in found["tensors"]]
    assert "bert.embeddings.word_embeddings.weight" in names and len(names) == len(set(names))
    from gossamer.app.opening import open_model

    opened = open_model(bert)
    opened.model.save_pretrained(tmp_path / "shards", max_shard_size="40KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    again = found_in(str(tmp_path / "shards"))
    assert again["total"]["values"] == found["total"]["values"]


def test_a_folder_without_a_model(tmp_path):
    with pytest.raises(ValueError, match=r"no \.safetensors file"):
        found_in(str(tmp_path))
