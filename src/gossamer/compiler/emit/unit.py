"""The C file of a kernel: what it begins with, the function of each nest, and the functions that threads run."""

from __future__ import annotations

from gossamer.compiler.emit import gathers, prelude, workspaces
from gossamer.compiler.emit.c import Writer
from gossamer.compiler.emit.lanes import BYTES
from gossamer.compiler.loops import names
from gossamer.compiler.loops.nest import Nest, names_in

_SUMS = {"float": "double", "double": "double", "int": "long", "long": "long"}


def function(nest: Nest, name: str) -> str:
    """Return the C function of one nest, and the one that shares it among threads."""
    writer = Writer(nest)
    outputs = {names.OUT, names.OUT_COUNT, *(() if nest.known else (names.OUT_CRD,))}
    for i, (array, ctype) in enumerate(nest.arrays):
        const = "" if array in outputs else "const "
        writer.put(f"{const}{ctype} *restrict {writer.name.array(array)} = a[{i}];")
    for i, size in enumerate(nest.sizes):
        writer.put(f"const long {writer.name(size)} = z[{i}];")
    if any(array == names.OUT_COUNT for array, _ in nest.arrays):
        writer.put("(void)out_crd, (void)out_count, (void)out;")
    if nest.parts:
        writer.put("out += chunk * out_total;")
    if nest.workspace:
        writer.put(f"ws_open(ws, {writer.expr(nest.workspace_size)});")
        writer.put("if (ws->failed) return;")
    if nest.units is None and nest.appends:
        writer.put("long out_n = start[0];")
    writer.depth -= 1
    writer.block(nest.body)
    writer.depth += 1
    if nest.units is None and nest.appends:
        writer.put("if (done) done[0] = out_n - start[0];")
    signature = "void *const *a, const long *z, long lo, long hi, long chunk, long *start, long *done, ws_t *ws"
    unused = "  (void)lo, (void)hi, (void)chunk, (void)start, (void)done, (void)ws, (void)z;"
    body = "\n".join([f"static void {name}({signature}) {{", unused, *writer.lines, "}"])
    return f"{body}\n{_units(nest, name)}\n{_run(nest, name)}"


def _units(nest: Nest, name: str) -> str:
    """The function that says how many units there are."""
    lines = [f"static long units_{name}(void *const *a, const long *z) {{", "  (void)a, (void)z;"]
    if nest.units is None:
        return "\n".join([*lines, "  return 1;", "}"])
    used, writer = names_in(nest.units), Writer(nest)
    lines += [
        f"  const {ctype} *{writer.name.array(array)} = a[{i}];"
        for i, (array, ctype) in enumerate(nest.arrays)
        if array in used
    ]
    lines += [f"  const long {writer.name(size)} = z[{i}];" for i, size in enumerate(nest.sizes) if size in used]
    return "\n".join([*lines, f"  return {writer.expr(nest.units)};", "}"])


def _run(nest: Nest, name: str) -> str:
    position = {array: i for i, (array, _) in enumerate(nest.arrays)}
    weights = f"j->a[{position[nest.weights]}]" if nest.weights else "(void *)0"
    parts = joined = ""
    if nest.parts:
        known = {"out": position[names.OUT], "total": nest.sizes.index(names.TOTAL), "arrays": len(nest.arrays)}
        parts = prelude.PARTS.format(limit=prelude.JOINED, **known)
        joined = prelude.JOIN.format(sum=_SUMS[nest.value], **known)
    return prelude.RUN.format(name=name, weights=weights, parts=parts, joined=joined)


def source(nests: dict[str, Nest]) -> str:
    """Return the C source of a kernel: its nests, each under its name."""
    main = next(iter(nests.values()))
    types = dict(main.arrays)
    weight = types.get(main.weights or "", "int")
    parts = [
        f"typedef {main.value} real;",
        f"typedef {_SUMS[main.value] if main.long else main.value} sum_t;",
        f"#define WEIGHT {weight}",
    ]
    parts.append(f"#define REAL_IS_FLOAT {int(main.value == 'float')}")
    for width in sorted({bytes // BYTES[main.value] for bytes in (64, 32, 16)}):
        align = BYTES[main.value]
        parts.append(
            f"typedef real v{width} __attribute__((vector_size({width * align}), aligned({align}), may_alias));"
        )
    parts += [prelude.LANE if main.value in ("float", "double") else "#define LANE(e) (e)"]
    parts += [prelude.SHUFFLES, _horizontal(main.value), *([gathers.masks(main.value)] if main.ragged else [])]
    if main.value in ("float", "double"):
        parts.append(prelude.MATH.format(real=main.value, f="f" if main.value == "float" else ""))
    parts += [prelude.FIND, workspaces.SOURCES[main.workspace], prelude.SHARE]
    parts += [function(nest, name) for name, nest in nests.items()]
    return "\n".join(parts)


def _horizontal(value: str) -> str:
    """Functions that add up the lanes of a vector, by halves; shuffles keep them in registers, where there are any."""
    four, eight, sixteen = (bytes // BYTES[value] for bytes in (16, 32, 64))
    sums = " + ".join(f"v[{i}]" for i in range(four))
    parts = [f"static inline real v{four}_sum(v{four} v) {{ return {sums}; }}"]
    for half, whole in ((four, eight), (eight, sixteen)):
        low, high = ", ".join(map(str, range(half))), ", ".join(map(str, range(half, whole)))
        parts.append(prelude.HALVES.format(half=f"v{half}", whole=f"v{whole}", low=low, high=high))
    return "\n".join([*parts, _four_sums(sixteen)])


def _four_sums(lanes: int) -> str:
    """The function that adds up the lanes of four vectors: by halves, by quarters, then inside the quarters."""
    half, quarter = lanes // 2, lanes // 4

    def listed(*ranges: range) -> str:
        return ", ".join(str(i) for r in ranges for i in r)

    starts = (0, half, lanes, lanes + half)
    folds, step = [], quarter // 2
    while step:
        folds.append(f"  t += __builtin_shufflevector(t, t, {', '.join(str(i ^ step) for i in range(lanes))});")
        step //= 2
    return prelude.FOUR_SUMS.format(
        v=f"v{lanes}",
        keep=listed(range(half), range(lanes + half, 2 * lanes)),
        swap=listed(range(half, lanes), range(lanes, lanes + half)),
        first=listed(*(range(x, x + quarter) for x in starts)),
        second=listed(*(range(x + quarter, x + half) for x in starts)),
        folds="\n".join(folds),
        ends=listed(range(0, lanes, quarter)),
    )
