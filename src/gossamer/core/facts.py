"""Facts about torch's operators, by name: one table for all of :mod:`gossamer.core`.

Each fact is a set (or a dictionary) of operator names, as :func:`gossamer.core.table.operator_of` gives them.
"""

from __future__ import annotations

import itertools

# -- names

#: Other names of an operator.
ALIASES = {
    "subtract": "sub", "multiply": "mul", "divide": "div", "true_divide": "div", "negative": "neg", "absolute": "abs",
    "arcsin": "asin", "arctan": "atan", "arcsinh": "asinh", "arctanh": "atanh", "fix": "trunc", "clip": "clamp",
    "greater": "gt", "greater_equal": "ge", "less": "lt", "less_equal": "le", "not_equal": "ne",
    "concat": "cat", "concatenate": "cat", "swapaxes": "transpose", "swapdims": "transpose", "moveaxis": "movedim",
    "_softmax": "softmax", "_log_softmax": "log_softmax", "_unsafe_view": "reshape", "view": "reshape",
    "linalg_vector_norm": "vector_norm", "ger": "outer", "arccos": "acos", "arccosh": "acosh", "arctan2": "atan2",
    "log_sigmoid": "logsigmoid", "special_softmax": "softmax", "special_log_softmax": "log_softmax",
    "special_expit": "sigmoid", "special_psi": "digamma", "special_gammaln": "lgamma", "special_gammainc": "igamma",
    "special_gammaincc": "igammac", "special_multigammaln": "mvlgamma", "linalg_diagonal": "diagonal",
    "reshape_as": "view_as", "linalg_matmul": "matmul", "row_stack": "vstack",
    "_sparse_softmax": "softmax", "_sparse_log_softmax": "log_softmax", "_sparse_mm": "mm", "_sparse_addmm": "addmm",
    "_sparse_sum": "sum",
    **{f"special_{name}": name for name in (
        "digamma", "erf", "erfc", "erfinv", "exp2", "expm1", "i0", "log1p", "logit", "polygamma", "round", "sinc",
        "xlogy", "logsumexp",
    )},
}  # fmt: skip
#: Python's special methods, without their underscores, where torch's function has another name.
DUNDERS = {
    "truediv": "div", "itruediv": "div", "idiv": "div", "invert": "bitwise_not",
    "floordiv": "floor_divide", "rfloordiv": "floor_divide", "ifloordiv": "floor_divide", "mod": "remainder",
    "imod": "remainder",
    "rmod": "remainder", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor", "iand": "bitwise_and",
    "ior": "bitwise_or", "ixor": "bitwise_xor", "rand": "bitwise_and", "ror": "bitwise_or", "rxor": "bitwise_xor",
}  # fmt: skip
#: Special methods that have a swapped (``__radd__``) and an in-place form (``__iadd__``).
ARITHMETIC = ("add", "sub", "mul", "matmul", "pow", "mod", "div", "truediv", "floordiv", "and", "or", "xor")
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
#: Names of the tensor parameters, in order, where they are not ``input, other``.
PARAMETERS = {
    "linear": ("input", "weight", "bias"),
    "conv2d": ("input", "weight", "bias", "stride", "padding", "dilation", "groups"),
    "embedding": ("input", "weight"),
    "mm": ("input", "mat2"), "bmm": ("input", "mat2"), "mv": ("input", "vec"), "addmm": ("input", "mat1", "mat2"),
    "baddbmm": ("input", "batch1", "batch2"), "addmv": ("input", "mat", "vec"), "cat": ("tensors", "dim"),
    "stack": ("tensors", "dim"), "addcmul": ("input", "tensor1", "tensor2"), "addcdiv": ("input", "tensor1", "tensor2"),
    "lerp": ("input", "end", "weight"),
}  # fmt: skip

# -- how an operator is called

#: Calls that read or set an attribute of every tensor; torch handles them for the wrapper itself.
METADATA = {
    "size", "dim", "ndimension", "numel", "nelement", "stride", "storage_offset", "is_contiguous", "is_floating_point",
    "is_complex", "is_signed", "is_inference", "is_conj", "is_neg", "is_same_size", "element_size", "get_device",
    "type", "register_hook", "register_post_accumulate_grad_hook", "retain_grad", "requires_grad", "requires_grad_",
    "backward", "__hash__", "__len__", "__bool__", "is_nonzero", "detach", "grad.get", "grad.set", "_grad.get",
    "grad_fn.get",
    "is_leaf.get", "requires_grad.get", "requires_grad.set", "shape.get", "dtype.get", "device.get", "layout.get",
    "ndim.get", "is_cpu.get", "is_cuda.get", "is_mps.get", "is_xpu.get", "is_meta.get", "is_sparse.get",
    "is_sparse_csr.get", "is_quantized.get", "is_nested.get", "is_mkldnn.get", "names.get", "name.get", "_version.get",
    "output_nr.get", "retains_grad.get", "_backward_hooks.get", "_backward_hooks.set", "_base.get", "itemsize.get",
    "is_vulkan.get", "is_xla.get", "is_ipu.get", "is_maia.get", "is_mtia.get", "volatile.get", "_cdata.get",
    "_is_view", "has_names", "is_shared", "data_ptr", "untyped_storage", "_typed_storage", "grad", "result_type",
    "_use_count", "grad_dtype.get", "grad_dtype.set", "_post_accumulate_grad_hooks.get", "can_cast", "__dir__",
    "_has_symbolic_sizes_strides.get", "_is_zerotensor", "is_distributed", "is_pinned", "is_tensor", "is_storage",
    "_has_compatible_shallow_copy_type", "get_default_device", "access_subclass_inner_tensor",
}  # fmt: skip
#: Prefixes of operators on lists of tensors.
LISTS = ("_foreach_", "_fused_", "_amp_foreach_")
#: Autocast runs these in its lower precision.
LOWERED = {"linear", "matmul", "mm", "mv", "bmm", "addmm", "addmv", "baddbmm", "conv2d"}
#: In-place operators that fill a tensor, independent of its old values.
FILLS = {"zero", "fill", "normal", "uniform", "exponential", "random", "bernoulli", "cauchy", "geometric", "log_normal"}
#: In-place operators whose result may have another shape.
RESHAPING = {"t", "transpose", "squeeze", "unsqueeze", "as_strided", "resize", "resize_as"}
#: Operators that write into their arguments, though their name doesn't end in an underscore.
WRITES = {
    "batch_norm", "native_batch_norm", "instance_norm", "_batch_norm_with_update", "_native_batch_norm_legit",
}  # fmt: skip

# -- pointwise operators, and zeros

#: f(0) = 0 for every setting of the other arguments.
ZERO_PRESERVING = {
    "abs", "neg", "sgn", "sign", "positive", "sqrt", "square", "sin", "sinh", "tan", "tanh", "asin", "asinh", "atan",
    "atanh", "erf", "erfinv", "expm1", "log1p", "ceil", "floor", "round", "trunc", "frac", "deg2rad", "rad2deg", "relu",
    "relu6", "leaky_relu", "elu", "selu", "celu", "gelu", "silu", "mish", "hardswish", "tanhshrink", "softshrink",
    "hardshrink", "softsign", "nan_to_num", "conj", "conj_physical", "resolve_conj", "resolve_neg", "real", "isnan",
    "isinf", "isneginf", "isposinf", "rrelu", "angle", "signbit",
    "special_bessel_j1", "special_i1", "special_i1e", "special_modified_bessel_i1",
}  # fmt: skip
#: f(0) depends on the function or its arguments, and is computed.
OTHER_UNARY = {
    "cos", "cosh", "acos", "acosh", "exp", "exp2", "log", "log2", "log10", "reciprocal", "rsqrt", "sigmoid", "logit",
    "erfc", "lgamma", "digamma", "polygamma", "mvlgamma", "i0", "sinc", "logical_not", "isfinite", "isreal",
    "hardtanh", "hardsigmoid", "softplus", "logsigmoid", "threshold", "clamp", "clamp_min", "clamp_max", "pow",
    "float_power", "special_bessel_j0", "special_bessel_y0", "special_bessel_y1", "special_entr", "special_erfcx",
    "special_i0e", "special_log_ndtr", "special_ndtri", "special_modified_bessel_i0", "special_modified_bessel_k0",
    "special_modified_bessel_k1", "special_scaled_modified_bessel_k0", "special_scaled_modified_bessel_k1",
    "special_spherical_bessel_j0", "special_airy_ai", "special_ndtr",
}  # fmt: skip
_POLYNOMIALS = (
    *itertools.product(("chebyshev", "shifted_chebyshev"), "tuvw"),
    ("hermite", "h"),
    ("hermite", "he"),
    ("laguerre", "l"),
    ("legendre", "p"),
)
BINARY = {
    "add", "sub", "mul", "div", "rsub", "floor_divide", "remainder", "fmod", "maximum", "minimum", "fmax", "fmin",
    "eq", "ne", "lt", "le", "gt", "ge", "atan2", "hypot", "copysign", "xlogy", "special_xlog1py", "logical_and",
    "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor", "logaddexp", "logaddexp2", "ldexp",
    "heaviside", "isclose", "nextafter", "special_zeta", "lerp", "igamma", "igammac", "where",
    *(f"special_{kind}_polynomial_{letter}" for kind, letter in _POLYNOMIALS),
}  # fmt: skip
POINTWISE = ZERO_PRESERVING | OTHER_UNARY | BINARY | {"bitwise_not"}
#: Operators that may run on the values alone if the target is one of the operands; all are pointwise.
INPLACE = POINTWISE | {"addcmul", "addcdiv", "dropout"}
#: In-place operators that leave the padding of their target 0, if that of their operands is and numbers are finite.
KEEPS_ZEROS = {"mul", "lerp", "addcmul", "abs", "neg", "sqrt", "square", "sign"}
