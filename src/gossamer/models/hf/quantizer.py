"""What transformers asks of a quantizer, answered for stored weights. Importing this module imports transformers.

``save_pretrained`` writes the parameters and buffers of a model as they are. This notes in ``config.json`` which
weights are stored in which format, with the sizes of their arrays, so that ``from_pretrained`` makes room for them.
Masked weights are ordinary dense tensors in a folder, and need none of this.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from gossamer.core.tensor import SparseTensor
from gossamer.formats import Structure, as_format
from gossamer.models.int8 import Int8Linear, expect_int8
from gossamer.models.modules import SparseModule
from gossamer.models.weights import Weight, all_weights, sparse_weights

#: Version of what is written under "sparsity_config". 3: parts of a weight are parameters and buffers of its module.
VERSION = 3


@register_quantization_config("gossamer")
class SparsityConfig(QuantizationConfigMixin):
    """``quantization_config`` in ``config.json``: which weights are stored, and how large their arrays are.

    Examples
    --------
    >>> SparsityConfig({"lm_head.weight": {"format": "CSR()", "parts": {}}}).to_dict()["version"]
    3
    """

    def __init__(
        self,
        sparsity_config: dict[str, Any] | None = None,
        int8: list[str] | None = None,
        version: int = VERSION,
        quant_method: str = "gossamer",
    ) -> None:
        self.quant_method = quant_method  # type: ignore[assignment]
        self.version = version
        self.sparsity_config = sparsity_config or {}
        self.int8 = int8 or []
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
        stored = {name: weight for name, weight in sparse_weights(model).items() if weight.held.is_stored}  # type: ignore[union-attr]
        if stored:
            int8 = [name for name, module in model.named_modules() if isinstance(module, Int8Linear)]
            records = {name: _record(weight) for name, weight in stored.items()}
            model.config.quantization_config = SparsityConfig(records, int8)
        elif isinstance(getattr(model.config, "quantization_config", None), SparsityConfig):
            del model.config.quantization_config  # dense or masked by now: an ordinary model
        return _unshared(model.state_dict()), {"format": "pt"}

    def _process_model_before_weight_loading(self, model: Any, **kwargs: Any) -> None:
        prefix = f"{model.base_model_prefix}."
        config = self.quantization_config
        for name in config.int8:  # of the model that was saved: a head has its base's prefix
            expect_int8(model, {name, name.removeprefix(prefix), prefix + name})
        weights = all_weights(model)
        for name, record in config.sparsity_config.items():
            for known in dict.fromkeys((name, name.removeprefix(prefix), prefix + name)):
                if known in weights:
                    _make_room(weights[known], record)

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        for module in model.modules():
            if isinstance(module, SparseModule):
                for name, held in module._sparse.items():
                    held.checked = None  # what came from the file is checked, now
                    if held.is_stored:
                        module.structure_of(name)
        tell(model)
        return model

    def _dequantize(self, model: Any, dtype: Any = None) -> Any:
        from gossamer.models.surgery import densify_  # which tells transformers of models that it changes

        return densify_(model)


def _record(weight: Weight) -> dict[str, Any]:
    tensor = weight.sparse()
    parts = {"values": tensor._values, **tensor.structure.arrays}
    sizes = {part: [str(array.dtype).removeprefix("torch."), list(array.shape)] for part, array in parts.items()}
    return {"format": repr(weight.format), "parts": sizes}


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
        raise ValueError(f"config.json says nothing sensible of {weight.name}: {error}") from None
    with torch.device("meta"):
        weight.become(SparseTensor(values.to(weight.parameter.dtype), structure))


def tell(model: Any) -> None:
    """Let a transformers model know who saves and loads its stored weights."""
    if getattr(model, "hf_quantizer", None) is None and any(isinstance(m, SparseModule) for m in model.modules()):
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
