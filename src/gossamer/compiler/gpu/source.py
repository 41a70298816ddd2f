"""The CUDA source of a kernel: what it begins with, its parameters, the body of its nest."""

from __future__ import annotations

from gossamer.compiler.gpu.emit import Writer
from gossamer.compiler.gpu.mapping import THREADS, Mapping
from gossamer.compiler.gpu.rows import TOTALS
from gossamer.compiler.loops import names
from gossamer.compiler.loops.nest import Nest

#: Numbers of ``numbers.cuh`` for types that are stored in one way and computed in another.
ELEMENTS = {"half": 0, "bfloat16": 1, "float": 2}

_WIDE = """\
typedef float real;
#define ELEMENT {element}
#include "numbers.cuh"
"""
_OTHER = """\
typedef {type} real;
typedef {type} Element;
__device__ __forceinline__ real widen(Element e) {{ return e; }}
__device__ __forceinline__ Element narrow(real e) {{ return e; }}
"""
_LINES = """\
typedef {idx} idx;
struct alignas(sizeof(Element) * {wide}) Line {{ Element e[{wide}]; }};
struct alignas(sizeof(real) * {wide} < 16 ? sizeof(real) * {wide} : 16) Sums {{ real e[{wide}]; }};
"""
_TOTAL = """\
__device__ __forceinline__ real total(real mine) {{
  _Pragma("unroll") for (int by = {half}; by; by /= 2) mine += __shfl_xor_sync(0xffffffffu, mine, by);
  return mine;
}}
"""
_HIGHEST = """\
__device__ __forceinline__ real highest(real mine) {{
  _Pragma("unroll") for (int by = {half}; by; by /= 2) {{
    const real other = __shfl_xor_sync(0xffffffffu, mine, by);
    if (other > mine || other != other) mine = other;
  }}
  return mine;
}}
"""
_FIND = """\
#define FIND(name, array, begin, stop, coord) \\
  idx name = (begin); \\
  { idx high_ = (stop); const idx want_ = (coord); \\
    while (name < high_) { \\
      const idx m_ = name + (high_ - name) / 2; \\
      if (array[m_] < want_) name = m_ + 1; else high_ = m_; \\
    } \\
    if (name < (stop) && array[name] != want_) name = (stop); }
"""


def source(nest: Nest, mapping: Mapping, long: bool) -> str:
    """Return the source; ``long``: do integers need 64 bits?"""
    writer = Writer(nest, mapping)
    writer.block(nest.body)
    if nest.value in ELEMENTS:
        head = _WIDE.format(element=ELEMENTS[nest.value])
    else:
        head = _OTHER.format(type="long long" if nest.value == "long" else nest.value)
    head += _LINES.format(idx="long long" if long else "int", wide=mapping.wide)
    if mapping.role == "sum":
        head += (_TOTAL + _HIGHEST).format(half=mapping.lanes // 2)
    if mapping.lines:
        head += TOTALS.format(lanes=mapping.lanes, unroll=mapping.unroll)
    comment = "".join(f"// {line}\n" for line in nest.title.splitlines())
    lines = [
        f'extern "C" __global__ void __launch_bounds__({THREADS}, {mapping.blocks})',
        f"nest({', '.join(_parameters(nest, writer))}) {{",
        f"  const int lane = threadIdx.x % {mapping.lanes};",
        f"  idx unit = (idx)blockIdx.x * {mapping.units} + threadIdx.x / {mapping.lanes};",
        *_guard(mapping),
        *(f"  const idx {writer.name(size)} = (idx){writer.name(size)}_;" for size in nest.sizes),
        *writer.lines,
        "}",
    ]
    return "\n".join([f"{comment}{head}{_FIND}", *lines, ""])


def _guard(mapping: Mapping) -> list[str]:
    """A group of lanes without a turn: it is done, unless it must be there when others add up their parts."""
    if mapping.role != "sum":
        return ["  if (unit >= units_) return;"]
    return ["  const bool active = unit < units_;", "  if (!active) unit = (idx)units_ - 1;"]


def _parameters(nest: Nest, writer: Writer) -> list[str]:
    outputs = {names.OUT, names.PART}
    found = []
    for array, ctype in nest.arrays:
        kind = "Element" if array in writer.values and ctype != "real" else "long long" if ctype == "long" else ctype
        const = "" if array in outputs else "const "
        found.append(f"{const}{kind}* __restrict__ {writer.name.array(array)}")
    return [*found, *(f"long long {writer.name(size)}_" for size in nest.sizes), "long long units_"]


def parameters(nest: Nest) -> str:
    """Return the types of the parameters, as the launch packs them."""
    return " ".join(["P"] * len(nest.arrays) + ["q"] * (len(nest.sizes) + 1))
