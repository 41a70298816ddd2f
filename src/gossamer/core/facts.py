"""What is known of torch's operators by name: which are pointwise, which keep zeros."""

import itertools

#: f(0) = 0 for every setting of the other arguments.
ZERO_PRESERVING = {
    "abs", "neg", "sgn", "sign", "positive", "sqrt", "square", "sin", "sinh", "tan", "tanh", "asin", "asinh", "atan",
    "atanh", "erf", "erfinv", "expm1", "log1p", "ceil", "floor", "round", "trunc", "frac", "deg2rad", "rad2deg", "relu",
    "relu6", "leaky_relu", "elu", "selu", "celu", "gelu", "silu", "mish", "hardswish", "tanhshrink", "softshrink",
    "hardshrink", "softsign", "nan_to_num", "conj", "conj_physical", "resolve_conj", "resolve_neg", "real", "isnan",
    "isinf", "isneginf", "isposinf", "rrelu", "angle", "signbit",
    "special_bessel_j1", "special_i1", "special_i1e", "special_modified_bessel_i1",
}  # fmt: skip
#: f(0) depends on the function or its arguments, and is worked out.
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
POINTWISE = ZERO_PRESERVING | OTHER_UNARY | BINARY
#: What may run on the values alone when the target is one of the operands: all of these are pointwise.
INPLACE = POINTWISE | {"addcmul", "addcdiv", "dropout"}
