"""What transformers asks of a quantizer, answered for sparse weights. Importing this module imports transformers."""

from __future__ import annotations

import json
from typing import Any

from torch import Tensor, nn
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from gossamer.core.tensor import SparseTensor
from gossamer.formats.levels import Level
from gossamer.hf.names import flatten, sparse_names, unflatten
from gossamer.io.write import KNOWN, VERSION
from gossamer.models.int8 import Int8Linear, expect_int8
from gossamer.models.surgery import replace

_LEVELS = 8  # more than any stack has


@register_quantization_config("gossamer")
class SparsityConfig(QuantizationConfigMixin):
    """``quantization_config`` in ``config.json``: which weights are sparse, and in which format.

    Written by ``save_pretrained``. What is loaded is what the files say; this is for readers, but for ``int8``, the
    layers that :func:`gossamer.quantize_` made.

    Examples
    --------
    >>> SparsityConfig({"lm_head.weight": "CSR()"}).to_dict()["sparsity_config"]
    {'lm_head.weight': 'CSR()'}
    """

    def __init__(
        self,
        sparsity_config: dict[str, str] | None = None,
        int8: list[str] | None = None,
        version: int = VERSION,
        quant_method: str = "gossamer",
    ) -> None:
        self.quant_method = quant_method  # type: ignore[assignment]
        self.version = version
        self.sparsity_config = sparsity_config or {}
        self.int8 = int8 or []
        if version not in KNOWN:
            raise ValueError(f"config.json is of version {version}; this gossamer reads versions {KNOWN}")


@register_quantizer("gossamer")
class SparseQuantizer(HfQuantizer):
    """How ``save_pretrained`` writes a sparse model, and ``from_pretrained`` reads it.

    Examples
    --------
    >>> quantizer = SparseQuantizer(SparsityConfig())
    >>> quantizer.is_trainable, quantizer.is_serializable()
    (True, True)
    """

    quantization_config: SparsityConfig
    requires_calibration = True  # from_pretrained doesn't make a dense model sparse: gs.sparsify_ does

    def validate_environment(self, *args: Any, **kwargs: Any) -> None:
        """Refuse a transformers that would leave the weights out without a word."""
        try:
            from transformers.core_model_loading import WeightConverter  # noqa: F401
        except ImportError:
            raise ImportError(
                "sparse models are loaded by transformers 5 or newer: pip install -U transformers"
            ) from None

    def is_serializable(self) -> bool:
        """Return True: that is what we are for."""
        return True

    @property
    def is_trainable(self) -> bool:
        """Sparse weights train."""
        return True

    @property
    def is_qat_trainable(self) -> bool:
        """They train themselves, not through an adapter."""
        return True

    @property
    def is_compileable(self) -> bool:
        """They compile."""
        return True

    # -- saving

    def get_state_dict_and_metadata(self, model: Any) -> tuple[dict[str, Any] | None, dict[str, str]]:
        """Return the weights as plain tensors; note in the config which are sparse."""
        flat, records = flatten(model.state_dict())
        if not records:  # made dense again: an ordinary model
            if isinstance(getattr(model.config, "quantization_config", None), SparsityConfig):
                del model.config.quantization_config
            return flat, {}
        int8 = [name for name, module in model.named_modules() if isinstance(module, Int8Linear)]
        model.config.quantization_config = SparsityConfig({name: r["format"] for name, r in records.items()}, int8)
        return _unshared(flat), {"gossamer": json.dumps({"version": VERSION, "tensors": records})}

    # -- loading

    def _process_model_before_weight_loading(self, model: Any, **kwargs: Any) -> None:
        prefix = f"{model.base_model_prefix}."
        for name in self.quantization_config.int8:  # of the model that was saved: a head has its base's prefix
            expect_int8(model, {name, name.removeprefix(prefix), prefix + name})

    def get_weight_conversions(self) -> list[Any]:
        """Return the one conversion that there is: parts to the weight whose name is before the colon."""
        from transformers.core_model_loading import WeightConverter

        arrays = {array for level in _kinds(Level) for array in level.arrays}
        parts = [":format", ":values", *(f":{array}{i}" for array in sorted(arrays) for i in range(_LEVELS))]
        return [WeightConverter(parts, [""], [_together(self)])] if self.pre_quantized else []

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        # what we save is taken apart by us, so transformers must not try to do it by undoing the conversion
        model._weight_conversions = [c for c in model._weight_conversions if not self._is_ours(c)]
        tell(model)
        return model

    def _is_ours(self, conversion: Any) -> bool:
        return any(getattr(op, "hf_quantizer", None) is self for op in getattr(conversion, "operations", ()))

    def _dequantize(self, model: Any, dtype: Any = None) -> Any:
        from gossamer.models.surgery import densify_

        return densify_(model)


def _kinds(level: type[Level]) -> list[type[Level]]:
    return [level, *(kind for own in level.__subclasses__() for kind in _kinds(own))]


def _together(quantizer: SparseQuantizer) -> Any:
    """Return the operation that puts parts together; its class can be made only once transformers is loading."""
    from transformers.core_model_loading import ConversionOps

    class PutTogether(ConversionOps):
        def __init__(self) -> None:
            self.hf_quantizer = quantizer  # transformers then leaves the dtypes of the parts alone

        def convert(  # type: ignore[override]
            self, input_dict: dict[str, Any], *args: Any, model: Any = None, full_layer_name: str = "", **kwargs: Any
        ) -> dict[str, Tensor]:
            parts = {key[1:]: given[0] if isinstance(given, list) else given for key, given in input_dict.items()}
            target = model.get_parameter_or_buffer(full_layer_name)
            tensor = unflatten(full_layer_name, parts, tuple(target.shape))
            return {full_layer_name: tensor.to(target.dtype) if target.is_floating_point() else tensor}

    return PutTogether()


def tell(model: Any) -> None:
    """Let a transformers model know who saves and loads its sparse weights."""
    known = getattr(model, "hf_quantizer", None)
    if known is not None and not isinstance(known, SparseQuantizer):
        return  # another library's weights are in it
    if known is None:
        model.hf_quantizer = SparseQuantizer(SparsityConfig())
    if not any(getattr(hook, "hook", hook) is _put_together for hook in model._load_state_dict_pre_hooks.values()):
        model.register_load_state_dict_pre_hook(_put_together)


def _put_together(module: nn.Module, state: dict[str, Any], prefix: str, *rest: Any) -> None:
    """Before ``load_state_dict``: parts, as a checkpoint of transformers' Trainer has them, become sparse weights."""
    for name, parts in sparse_names(state).items():
        if not name.startswith(prefix):
            continue
        try:
            target = module.get_parameter(name.removeprefix(prefix))
        except AttributeError:
            continue  # load_state_dict says that it is unexpected
        given = {part: state.pop(f"{name}:{part}") for part in parts}
        tensor = unflatten(name, given, tuple(target.shape)).to(device=target.device, dtype=target.dtype)
        assert isinstance(tensor, SparseTensor)
        if isinstance(target, SparseTensor):
            tensor.grad_format, tensor.rule = target.grad_format, target.rule
        replace(target, tensor)
        state[name] = tensor


def _unshared(flat: dict[str, Any]) -> dict[str, Any]:
    """Copy index arrays that several weights share: safetensors has each tensor once. (Tied weights stay tied.)"""
    seen: dict[int, str] = {}
    for key, tensor in flat.items():
        name, _, part = key.rpartition(":")
        if not name or part in ("values", "format") or not tensor.numel():
            continue
        first = seen.setdefault(tensor.data_ptr(), name)
        if first != name and flat[f"{first}:values"].data_ptr() != flat[f"{name}:values"].data_ptr():
            flat[key] = tensor.clone()
    return flat
