"""Checkpoints of compressed-tensors, written here by hand; where its old releases are installed, by themselves."""

import json

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gossamer as gs
from gossamer.io.compressed import Compressed, compressed_config


def packed(mask):
    """Eight positions a byte, lowest bit first, as numpy.packbits(bitorder="little")."""
    padded = torch.nn.functional.pad(mask.to(torch.uint8), (0, -mask.shape[1] % 8))
    eight = padded.unflatten(1, (padded.shape[1] // 8, 8))
    return (eight << torch.arange(8, dtype=torch.uint8)).sum(2).to(torch.uint8)


def arrays(prefix, weight, mask=None, offsets=True):
    mask = weight != 0 if mask is None else mask
    counts = mask.sum(1)
    made = {"compressed": weight[mask], "bitmask": packed(mask), "shape": torch.tensor(weight.shape)}
    if offsets:
        made["row_offsets"] = torch.cumsum(counts, 0) - counts
    return {f"{prefix}.{part}": array.contiguous() for part, array in made.items()}


def write(path, tensors):
    safetensors.torch.save_file(tensors, path)
    return path


def test_by_hand(tmp_path):
    weight = torch.tensor([[5.0, 0, 0, 0, 0, 0, 0, 0, 7.0], [0, 3.0, 0, 0, 0, 0, 0, 0, 0]])
    made = arrays("fc", weight)
    assert made["fc.bitmask"].tolist() == [[1, 1], [2, 0]]
    with Compressed(write(tmp_path / "m.safetensors", made | {"norm.weight": torch.ones(2)})) as weights:
        assert list(weights) == ["fc.weight", "norm.weight"] and len(weights) == 2 and "fc.compressed" not in weights
        assert weights["fc.weight"].format == gs.CSR() and weights["fc.weight"].nnz == 3
        assert torch.equal(weights["fc.weight"].to_dense(), weight)
        assert torch.equal(weights["norm.weight"], torch.ones(2))
        with pytest.raises(KeyError):
            weights["fc.bitmask"]


def test_older_names_halves_and_2_to_4_with_stored_zeros(tmp_path):
    weight = torch.zeros(4, 8, dtype=torch.bfloat16)
    weight[:, 1] = 2
    two = torch.tensor([1, 1, 0, 0, 0, 0, 1, 1]).bool().expand(4, 8)
    made = arrays("old.weight", weight) | arrays("new", weight, two, offsets=False)
    made["new.compressed"] = made["new.compressed"].reshape(4, 4)
    made["new.shape"] = made["new.shape"].reshape(-1, 1)
    with Compressed(write(tmp_path / "m.safetensors", made)) as weights:
        assert torch.equal(weights["old.weight"].to_dense(), weight)
        assert torch.equal(weights["new.weight"].to_dense(), weight)
        assert weights["new.weight"].nnz == 16


@pytest.mark.parametrize("scale", [torch.tensor([0.5]), torch.tensor([[0.5], [2.0], [1.0]])])
def test_eight_bits_are_multiplied_by_their_scale(tmp_path, scale):
    small = torch.tensor([[1, 0, 2, 0], [0, 0, 0, 3], [0, 0, 0, 0]]).to(torch.float8_e4m3fn)
    kept = small.float() != 0
    made = arrays("fc", small.view(torch.int8), kept)
    made["fc.compressed"] = made["fc.compressed"].view(torch.float8_e4m3fn)
    made |= {"fc.weight_scale": scale, "fc.input_scale": torch.ones(1)}
    made |= {"head.weight": torch.tensor([[4, 8]] * 3, dtype=torch.int8), "head.weight_scale": scale.clone()}
    with Compressed(write(tmp_path / "m.safetensors", made)) as weights:
        assert list(weights) == ["fc.weight", "head.weight"]
        assert torch.equal(weights["fc.weight"].to_dense(), small.float() * scale.reshape(-1, 1))
        assert torch.equal(weights["head.weight"], torch.tensor([[4.0, 8.0]] * 3) * scale.reshape(-1, 1))


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(0, 9), columns=st.integers(0, 20), kept=st.floats(0, 1), seed=st.integers(0, 1000))
def test_any_size(tmp_path_factory, rows, columns, kept, seed):
    draw = torch.Generator().manual_seed(seed)
    weight = torch.randn(rows, columns, generator=draw) * (torch.rand(rows, columns, generator=draw) < kept)
    with Compressed(write(tmp_path_factory.mktemp("c") / "m.safetensors", arrays("fc", weight))) as weights:
        assert torch.equal(weights["fc.weight"].to_dense(), weight)


GOOD = torch.tensor([[1.0, 0, 2.0], [0, 3.0, 0]])
BROKEN = {
    "a bit more": ({"fc.bitmask": torch.tensor([[7], [2]], dtype=torch.uint8)}, "keeps 4 values, and there are 3"),
    "beyond the last column": ({"fc.bitmask": torch.tensor([[9], [2]], dtype=torch.uint8)}, "beyond the last of 3"),
    "a bitmask of other rows": ({"fc.bitmask": torch.zeros(3, 1, dtype=torch.uint8)}, "no bitmask of"),
    "a bitmask of int32": ({"fc.bitmask": torch.zeros(2, 1, dtype=torch.int32)}, "no bitmask of"),
    "a huge shape": ({"fc.shape": torch.tensor([2**40, 2**40])}, "no bitmask of"),
    "a negative shape": ({"fc.shape": torch.tensor([-2, 3])}, "no bitmask of"),
    "a shape of three": ({"fc.shape": torch.tensor([2, 3, 1])}, "two integers"),
    "a shape of floats": ({"fc.shape": torch.tensor([2.0, 3.0])}, "two integers"),
    "other offsets": ({"fc.row_offsets": torch.tensor([0, 1])}, "row_offsets"),
    "bytes without a scale": ({"fc.compressed": torch.ones(3, dtype=torch.int8)}, "need a weight_scale"),
    "scales for other rows": ({"fc.weight_scale": torch.ones(3)}, "one per row"),
    "a scale of integers": ({"fc.weight_scale": torch.ones(1, dtype=torch.int32)}, "floating point"),
    "a zero point": ({"fc.weight_scale": torch.ones(1), "fc.weight_zero_point": torch.ones(1)}, "zero point"),
    "packed words": ({"fc.weight_packed": torch.ones(1, dtype=torch.int32)}, "several values in a word"),
    "twice": ({"fc.weight": torch.ones(2, 3)}, "occurs twice"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_refused_and_named(tmp_path, name):
    change, words = BROKEN[name]
    path = write(tmp_path / "m.safetensors", arrays("fc", GOOD) | change)
    with pytest.raises(gs.io.BadFile, match=words) as error, Compressed(path) as weights:
        weights["fc.weight"]
    assert str(path) in str(error.value)


@pytest.mark.parametrize("part", ["bitmask", "shape"])
def test_a_part_is_missing(tmp_path, part):
    made = arrays("fc", GOOD)
    del made[f"fc.{part}"]
    with pytest.raises(gs.io.BadFile, match=f"no {part}"):
        Compressed(write(tmp_path / "m.safetensors", made))


def test_shards_and_what_is_no_checkpoint(tmp_path):
    with pytest.raises(FileNotFoundError, match="no safetensors file"):
        Compressed(tmp_path)
    made = arrays("fc", GOOD)
    write(tmp_path / "a.safetensors", {key: made.pop(key) for key in ("fc.compressed", "fc.shape")})
    write(tmp_path / "b.safetensors", made)
    with Compressed(tmp_path) as weights:
        assert torch.equal(weights["fc.weight"].to_dense(), GOOD)
        gs.save(weights, tmp_path / "ours.st")
    with gs.io.File(tmp_path / "ours.st") as file:
        assert torch.equal(file["fc.weight"].to_dense(), GOOD)
    write(tmp_path / "c.safetensors", made)
    with pytest.raises(gs.io.BadFile, match=r"is in b\.safetensors, too"):
        Compressed(tmp_path)


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ({"sparsity_config": {"format": "sparse-24-bitmask"}}, True),
        ({"sparsity_config": {"format": "dense"}}, False),
        ({"quant_method": "fp8", "sparsity_config": {"format": "sparse-bitmask"}}, False),
        ({"sparsity_config": "sparse-bitmask"}, False),
        (["sparse-bitmask"], False),
    ],
)
def test_config(tmp_path, said, wanted):
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": said}))
    assert (compressed_config(tmp_path) is not None) == wanted
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(gs.io.BadFile, match="not a configuration"):
        compressed_config(tmp_path)


def test_files_of_compressed_tensors_itself(tmp_path):
    """Releases up to 0.12 write these formats: pip install --no-deps compressed-tensors==0.12.2 loguru."""
    bitmask = pytest.importorskip("compressed_tensors.compressors.sparse_compressors.sparse_bitmask")
    two = pytest.importorskip("compressed_tensors.compressors.sparse_compressors.sparse_24_bitmask")
    any_place, of_four = (gs.sparsify(torch.randn(12, 20), how).to_dense() for how in ("75%", "2:4"))
    made = bitmask.BitmaskTensor.from_dense(any_place).dict("a")
    made |= two.Sparse24BitMaskTensor.from_dense(of_four).dict("b.weight")
    with Compressed(write(tmp_path / "m.safetensors", made)) as weights:
        assert torch.equal(weights["a.weight"].to_dense(), any_place)
        assert torch.equal(weights["b.weight"].to_dense(), of_four)
