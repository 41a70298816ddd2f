"""Models: making them sparse, packing and describing them, and training them on several machines."""

from gossamer.models import hf as hf
from gossamer.models import serve as serve
from gossamer.models import steps as steps  # its hooks handle sparse weights before and after optimizer steps
from gossamer.models.averaging import follow_
from gossamer.models.builder import SparsityBuilder
from gossamer.models.deploy.deploy import DeployError, deploy
from gossamer.models.distributed import reduce_in_order, reduce_values, synchronize_
from gossamer.models.dynamic_int8 import DynamicInt8Linear
from gossamer.models.fuse import FusedLinear, fuse_
from gossamer.models.group import group_
from gossamer.models.int8 import Int8Linear
from gossamer.models.int8_conv import DynamicInt8Conv
from gossamer.models.masked import MaskedParameter
from gossamer.models.modules import SparseModule
from gossamer.models.opaque import hold_
from gossamer.models.pack.pack import pack_
from gossamer.models.pack.report import MeasuredExample, PackedLayer, PackReport
from gossamer.models.quantize import quantize_
from gossamer.models.quantized import QuantizedLinear
from gossamer.models.quantized_experts import QuantizedExperts
from gossamer.models.serve import Served
from gossamer.models.shrink import shrink_
from gossamer.models.summary import Flops, Summary, count_flops, summary
from gossamer.models.surgery import densify_, sparse_parameters, sparsify_
from gossamer.models.weights import Weight, all_weights, sparse_weights

__all__ = [
    "DeployError", "DynamicInt8Conv", "DynamicInt8Linear", "Flops", "FusedLinear", "Int8Linear", "MaskedParameter",
    "MeasuredExample", "PackReport", "PackedLayer", "QuantizedExperts", "QuantizedLinear", "Served", "SparseModule",
    "SparsityBuilder", "Summary", "Weight", "all_weights", "count_flops", "densify_", "deploy", "follow_", "fuse_",
    "group_", "hold_", "pack_", "quantize_", "reduce_in_order", "reduce_values", "shrink_", "sparse_parameters",
    "sparse_weights", "sparsify_", "summary", "synchronize_",
]  # fmt: skip
