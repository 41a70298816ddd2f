"""What transformers is told of sparse weights, and what config.json says of them."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer.models.hf.quantizer import SparseQuantizer, SparsityConfig, _unshared, tell


class Model(nn.Module):
    """As much of a transformers model as the quantizer asks for."""

    base_model_prefix = "base"

    def __init__(self):
        super().__init__()
        self.config = SimpleNamespace()
        self.base = nn.ModuleDict({"a": nn.Linear(4, 2, bias=False), "b": nn.Linear(4, 2, bias=False)})
        self._keys_to_ignore_on_load_unexpected = set()
        self.all_tied_weights_keys = {}


def sparse():
    model = Model()
    w = torch.tensor([[0.0, 1.0, 0.0, 0.0], [2.0, 0.0, 0.0, 3.0]])
    weights = gs.nn.all_weights(model)
    weights["base.a.weight"].become(w, w != 0, gs.CSR())
    weights["base.b.weight"].become(w, w != 0, gs.Masked())
    return model


def saved(model):
    return SparseQuantizer(SparsityConfig()).get_state_dict_and_metadata(model)


def test_what_is_saved_by_hand():
    model = sparse()
    state, metadata = saved(model)
    config = model.config.quantization_config
    index = str(model.base["a"].weight_crd1.dtype)[6:]
    assert config.sparsity_config == {
        "base.a.weight": {
            "format": "CSR()",
            "parts": {"values": ["float32", [3]], "pos1": [index, [3]], "crd1": [index, [3]]},
        }
    }
    assert config.masked == ["base.b.weight"] and config.int8 == [] and config.packed == {}
    assert state["base.a.weight"].shape == (0,)  # so that a program without gossamer stops
    assert state["base.a.weight_values"].tolist() == [1.0, 2.0, 3.0] and state["base.b.weight"].shape == (2, 4)
    assert metadata["format"] == "pt" and '"version": 3' in metadata["gossamer"] and "CSR()" in metadata["gossamer"]


def test_a_model_that_is_dense_by_now_is_an_ordinary_one():
    model = sparse()
    saved(model)
    gs.densify_(model)
    state, _ = saved(model)
    assert not hasattr(model.config, "quantization_config")
    assert list(state) == ["base.a.weight", "base.b.weight"] and state["base.a.weight"].shape == (2, 4)


@pytest.mark.parametrize("prefix", ["base.", ""], ids=["with its head", "of its base"])
def test_room_is_made_for_what_a_file_has(prefix):
    one, other = sparse(), Model()
    state, _ = saved(one)
    records = {prefix + n.removeprefix("base."): r for n, r in one.config.quantization_config.sparsity_config.items()}
    quantizer = SparseQuantizer(SparsityConfig(records, masked=[f"{prefix}b.weight"]))
    quantizer._process_model_before_weight_loading(other)
    assert other.base["a"].weight_values.shape == (3,) and other.base["a"].weight_values.is_meta
    assert other._keys_to_ignore_on_load_unexpected == {"^base\\.a\\.weight$"}
    for key, value in state.items():  # as transformers does it: each tensor to its place
        module, name = other.get_submodule(key.rpartition(".")[0]), key.rpartition(".")[2]
        if name in module._parameters:
            module._parameters[name] = nn.Parameter(value)
        elif name in module._buffers:
            module._buffers[name] = value
    assert quantizer._process_model_after_weight_loading(other) is other
    weights = gs.nn.all_weights(other)
    assert weights["base.a.weight"].format == gs.CSR() and weights["base.b.weight"].format == gs.Masked()
    for name, weight in gs.nn.all_weights(one).items():
        assert torch.equal(weights[name].dense(), weight.dense())
    assert isinstance(other.hf_quantizer, SparseQuantizer)


@pytest.mark.parametrize(
    "record", [None, {}, {"format": "CSR()", "parts": {}}, {"format": "Nonsense", "parts": {"values": ["int8", [1]]}}]
)
def test_a_record_without_sense_is_refused(record):
    quantizer = SparseQuantizer(SparsityConfig({"base.a.weight": record}))
    with pytest.raises(ValueError, match=r"config.json has an invalid entry for base.a.weight: "):
        quantizer._process_model_before_weight_loading(Model())


def test_other_versions_are_refused():
    assert SparsityConfig().version == 3
    with pytest.raises(ValueError, match=r"in version 2; this gossamer reads version 3. Load the folder with"):
        SparsityConfig(version=2)


def test_only_sparse_models_are_told_of_and_another_quantizer_is_left():
    dense, model = Model(), sparse()
    tell(dense)
    assert not hasattr(dense, "hf_quantizer")
    tell(model)
    own = model.hf_quantizer
    tell(model)
    assert model.hf_quantizer is own


def test_index_arrays_that_are_shared_are_copied_but_tied_weights_stay_tied():
    index, weight = torch.arange(3), nn.Parameter(torch.ones(3))
    out = _unshared({"a": index, "b": index, "c": weight, "d": weight, "e": torch.empty(0, dtype=torch.long)})
    assert out["a"] is index and out["b"] is not index and out["b"].tolist() == [0, 1, 2]
    assert out["c"] is out["d"] is weight
