"""The quantizer interface of transformers, implemented for sparse weights. This module imports transformers.

``save_pretrained`` writes the parameters and buffers of a model as they are. The quantizer adds an entry to
``config.json``: which weights are masked, and which are stored in which format, with the sizes of their arrays.

A program without gossamer ignores this entry, with a warning. For it, a folder of masked weights is an ordinary dense
checkpoint. It would not find stored weights, and would initialise them at random. To prevent this, each stored weight
also has an empty tensor under its own name, so that loading stops with a size mismatch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from gossamer.core.tensor import SparseTensor
from gossamer.formats import Masked, Stacked, Structure, as_format
from gossamer.kernels.quantized.weight import Arrays
from gossamer.models.dynamic_int8 import expect_packed
from gossamer.models.int8 import Int8Linear, expect_int8
from gossamer.models.int8_layer import Int8Layer
from gossamer.models.loading import format_of
from gossamer.models.modules import SparseModule
from gossamer.models.quantize import expect_quantized
from gossamer.models.quantize_experts import Said, expect_experts
from gossamer.models.quantized import PARTS, QuantizedLinear
from gossamer.models.quantized_experts import QuantizedExperts, quantized_weights
from gossamer.models.quantized_stack import ExpertsWeight
from gossamer.models.stored import array_names
from gossamer.models.weights import Weight, all_weights, sparse_weights

_OURS = SparseModule, Int8Layer, QuantizedLinear, QuantizedExperts
#: Version of what is written under "sparsity_config". 3: parts of a weight are parameters and buffers of its module.
VERSION = 3


@register_quantization_config("gossamer")
class SparsityConfig(QuantizationConfigMixin):
    """``quantization_config`` in ``config.json``: which weights are masked, and how others are stored.

    Examples
    --------
    >>> SparsityConfig({"lm_head.weight": {"format": "CSR()", "parts": {}}}).to_dict()["version"]
    3
    """

    def __init__(
        self,
        sparsity_config: dict[str, Any] | None = None,
        masked: list[str] | None = None,
        int8: list[str] | None = None,
        packed: dict[str, int] | None = None,
        quantized: dict[str, Any] | None = None,
        experts: dict[str, Any] | None = None,
        version: int = VERSION,
        quant_method: str = "gossamer",
    ) -> None:
        self.quant_method = quant_method  # type: ignore[assignment]
        self.version = version
        self.sparsity_config = sparsity_config or {}
        self.masked, self.int8 = masked or [], int8 or []
        self.packed = packed or {}  # layers in eight bits, each with the number of its bytes
        self.quantized = quantized or {}  # of each layer with values of 8 or 4 bits: format, types and sizes of arrays
        self.experts = experts or {}  # the same of the weights of quantized experts
        if version != VERSION:
            raise ValueError(
                f"config.json describes sparse weights in version {version}; this gossamer reads version {VERSION}. "
                "Load the folder with the gossamer that wrote it, call gs.densify_, and save it again"
            )


@register_quantizer("gossamer")
class SparseQuantizer(HfQuantizer):
    """How ``save_pretrained`` writes a model with stored weights, and ``from_pretrained`` reads it.

    Examples
    --------
    >>> quantizer = SparseQuantizer(SparsityConfig())
    >>> quantizer.is_trainable, quantizer.is_serializable()
    (True, True)
    """

    quantization_config: SparsityConfig
    requires_calibration = True  # from_pretrained doesn't make a dense model sparse: gs.sparsify_ does

    def is_serializable(self) -> bool:
        """Return True: that is what we are for."""
        return True

    @property
    def is_trainable(self) -> bool:
        """Stored weights train."""
        return True

    @property
    def is_qat_trainable(self) -> bool:
        """They train themselves, not through an adapter."""
        return True

    @property
    def is_compileable(self) -> bool:
        """They compile."""
        return True

    def get_state_dict_and_metadata(self, model: Any) -> tuple[dict[str, Any] | None, dict[str, str]]:
        """Return the state of the model as it is; note in the config which weights are stored."""
        sparse, state = sparse_weights(model), model.state_dict()
        stored = {name: weight for name, weight in sparse.items() if weight.held is not None and weight.held.is_stored}
        packed = {n: m.packed.numel() for n, m in model.named_modules() if isinstance(m, Int8Layer)}
        quantized = {n: _arrays(m) for n, m in model.named_modules() if isinstance(m, QuantizedLinear)}
        experts = quantized_weights(model)
        if sparse or packed or quantized or experts:
            int8 = [name for name, module in model.named_modules() if isinstance(module, Int8Linear)]
            records = {name: _record(weight) for name, weight in stored.items()}
            masked = [name for name in sparse if name not in stored]
            arrays = {name: _arrays_of_experts(weight) for name, weight in experts.items()}
            model.config.quantization_config = SparsityConfig(records, masked, int8, packed, quantized, arrays)
        elif isinstance(getattr(model.config, "quantization_config", None), SparsityConfig):
            del model.config.quantization_config  # dense by now: an ordinary model
        empty = {name: _no_weight(weight) for weight in stored.values() for name in weight.names}
        empty |= {f"{name}.weight": torch.empty(0) for name in (*packed, *quantized)}
        empty |= {name: _to_be_cut(weight.shape[0]) for name, weight in experts.items()}
        return {**_unshared(state), **empty}, {"format": "pt", "gossamer": json.dumps(_page(stored))}

    def _process_model_before_weight_loading(self, model: Any, **kwargs: Any) -> None:
        prefix = f"{model.base_model_prefix}."
        config = self.quantization_config
        for name in config.int8:  # of the model that was saved: a head has its base's prefix
            expect_int8(model, {name, name.removeprefix(prefix), prefix + name})
        for name, size in config.packed.items():
            for form in expect_packed(model, dict.fromkeys((name, name.removeprefix(prefix), prefix + name), size)):
                model._keys_to_ignore_on_load_unexpected.add(f"^{re.escape(form)}.weight$")
        for name, record in config.quantized.items():
            for form in _expect_quantized(model, (name, name.removeprefix(prefix), prefix + name), record):
                model._keys_to_ignore_on_load_unexpected.add(f"^{re.escape(form)}.weight$")
        for form in _expect_experts(model, prefix, config.experts):
            model._keys_to_ignore_on_load_unexpected.add(f"^{re.escape(form)}$")
        for weight, record in _known(model, config.sparsity_config):
            _make_room(weight, record)
            model._keys_to_ignore_on_load_unexpected.update(f"^{re.escape(name)}$" for name in weight.names)
        tied = model.all_tied_weights_keys
        for target, source in [(t, s) for t, s in tied.items() if s in config.sparsity_config]:
            _make_room(all_weights(model)[target], config.sparsity_config[source])
            model._keys_to_ignore_on_load_unexpected.add(f"^{re.escape(target)}$")
            tied[f"{target}_values"] = f"{tied.pop(target)}_values"

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        for weight in sparse_weights(model).values():
            held = weight.held
            assert held is not None
            if held.is_stored:
                _refuse_missing(weight)
            held.checked = None  # what came from the file is checked, now
            weight.structure  # noqa: B018
            module, name = weight.places[0]
            if held.is_stored and format_of(module._buffers[f"{name}_format"]) != held.format:  # type: ignore[arg-type]
                raise ValueError(f"{weight.name} is of another format in config.json than in the file")
        for module in model.modules():
            if isinstance(module, QuantizedLinear | QuantizedExperts):
                _refuse_missing_arrays(module)
            if isinstance(module, Int8Layer):
                module.align()
            if isinstance(module, Int8Layer | QuantizedLinear | QuantizedExperts):
                module.check()
            if isinstance(module, QuantizedLinear | QuantizedExperts):
                module.settle()
        for weight, _ in _known(model, dict.fromkeys(self.quantization_config.masked)):
            weight.become(weight.dense(), weight.dense() != 0, Masked())
        tell(model)
        model.is_quantized = False  # it can be cast: transformers refuses half() and float() of quantized models
        return model

    def _dequantize(self, model: Any, dtype: Any = None) -> Any:
        from gossamer.models.surgery import densify_  # which tells transformers of models that it changes

        return densify_(model)


def _no_weight(weight: Weight) -> torch.Tensor:
    """Return what the file has by the name of a stored weight, so that a program without gossamer stops there."""
    return _to_be_cut(weight.shape[0]) if isinstance(weight.format, Stacked) else torch.empty(0)


def _to_be_cut(experts: int) -> torch.Tensor:
    """Return the same for experts: transformers cuts their weights into single ones before it writes them."""
    return torch.zeros(experts, 2, 2)


def _known(model: Any, names: dict[str, Any]) -> list[tuple[Weight, Any]]:
    """The weights of these names, with their records; a model with a head adds a prefix to its base's names."""
    weights, prefix = all_weights(model), f"{model.base_model_prefix}."
    forms = {n: dict.fromkeys((n, n.removeprefix(prefix), prefix + n)) for n in names}
    return [(weights[form], said) for n, said in names.items() for form in forms[n] if form in weights]


def _arrays(layer: QuantizedLinear) -> dict[str, Any]:
    """What config.json says of a quantized layer."""
    return {"format": bytes(layer._buffers["format"].tolist()).decode(), "parts": _sizes(layer.arrays)}  # type: ignore[union-attr]


def _arrays_of_experts(weight: ExpertsWeight) -> dict[str, Any]:
    """What config.json says of a weight of quantized experts."""
    text: torch.Tensor = weight.experts._buffers[f"{weight.name}_format"]
    return {"format": bytes(text.tolist()).decode(), "parts": _sizes(weight.experts.arrays(weight.name))}


def _sizes(arrays: Arrays) -> dict[str, Any]:
    held = {part: array for part, array in zip(PARTS, arrays, strict=True) if array is not None}
    return {part: [str(array.dtype).removeprefix("torch."), list(array.shape)] for part, array in held.items()}


def _said(record: Any) -> Said:
    """What config.json says of an array, as a file would say it."""
    text = torch.tensor(list(record["format"].encode()), dtype=torch.uint8, device="cpu")
    return text, {part: (getattr(torch, dtype), tuple(shape)) for part, (dtype, shape) in record["parts"].items()}


def _expect_experts(model: Any, prefix: str, records: dict[str, Any]) -> list[str]:
    """Put experts without data where the model has experts of these names; return the names of their weights."""
    try:
        said = {n: _said(record) for n, record in records.items()}
        forms = {form: said[n] for n in said for form in (n, n.removeprefix(prefix), prefix + n)}
        taken = expect_experts(model, forms)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"config.json has an invalid entry for quantized experts: {error}") from None
    return [form for form in forms if form.rpartition(".")[0] in taken]


def _expect_quantized(model: Any, forms: Iterable[str], record: Any) -> list[str]:
    """Put empty quantized layers where a layer has one of these names; return the names."""
    try:
        return list(expect_quantized(model, dict.fromkeys(dict.fromkeys(forms), _said(record))))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"config.json has an invalid entry for a quantized layer: {error}") from None


def _refuse_missing_arrays(layer: QuantizedLinear | QuantizedExperts) -> None:
    """Raise ValueError if an array was not in the file: as :func:`_refuse_missing`."""
    held = {name: array for name, array in layer._buffers.items() if array is not None}
    read = [name for name, array in held.items() if hasattr(array, "_is_hf_initialized")]
    if read and len(read) < len(held):
        raise ValueError(f"the file lacks {', '.join(name for name in held if name not in read)} of a quantized layer")


def _record(weight: Weight) -> dict[str, Any]:
    tensor = weight.sparse()
    parts = {"values": tensor._values, **tensor.structure.arrays}
    sizes = {part: [str(array.dtype).removeprefix("torch."), list(array.shape)] for part, array in parts.items()}
    return {"format": repr(weight.format), "parts": sizes}


def _page(stored: dict[str, Weight]) -> dict[str, Any]:
    """What the file itself says of its weights, for :func:`gossamer.io.inspect`."""
    records = {
        name: {"format": repr(w.format), "shape": list(w.shape), "parts": ["values", *w.structure.arrays]}
        for name, w in stored.items()
    }
    return {"version": VERSION, "tensors": records}


def _make_room(weight: Weight, record: Any) -> None:
    """Let a weight that is about to be loaded be stored, with arrays of the sizes that the file has."""
    try:
        arrays = {
            part: torch.empty(shape, dtype=getattr(torch, dtype), device="meta")
            for part, (dtype, shape) in record["parts"].items()
        }
        values = arrays.pop("values")
        structure = Structure(as_format(record["format"]), weight.shape, arrays, values.device)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"config.json has an invalid entry for {weight.name}: {error}") from None
    with torch.device("meta"):
        weight.become(SparseTensor(values.to(weight.parameter.dtype), structure))


def _refuse_missing(weight: Weight) -> None:
    """Raise ValueError if an index array was not in the file.

    transformers fills what is missing with whatever the memory held, which may even be the array of another model. It
    marks what it has read.
    """
    (module, name), held = weight.places[0], weight.held
    assert held is not None
    if not hasattr(weight.parameter, "_is_hf_initialized"):
        return  # it was moved since, and lost the mark
    parts = [f"{name}_{array}" for array in (*array_names(held), "format")]
    missing = [part for part in parts if not hasattr(module._buffers[part], "_is_hf_initialized")]
    if missing:
        raise ValueError(f"the file lacks {', '.join(missing)} of {weight.name}")


def tell(model: Any) -> None:
    """Let a transformers model know who saves and loads its sparse weights."""
    if getattr(model, "hf_quantizer", None) is None and any(isinstance(m, _OURS) for m in model.modules()):
        model.hf_quantizer = SparseQuantizer(SparsityConfig())


def _unshared(state: dict[str, Any]) -> dict[str, Any]:
    """Copy index arrays that several weights share: safetensors has each tensor once. (Tied weights stay tied.)"""
    seen: dict[int, str] = {}
    for key, tensor in state.items():
        if isinstance(tensor, nn.Parameter) or not tensor.numel() or tensor.is_floating_point():
            continue
        first = seen.setdefault(tensor.data_ptr(), key)
        if first != key:
            state[key] = tensor.clone()
    return state
