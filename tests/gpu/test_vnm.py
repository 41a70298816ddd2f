"""Packed V:N:M on a GPU: right for every shape, order and v; obeys streams, graphs, threads; says what it can't do."""

import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gossamer as gs
from gossamer.formats import PackedVNM
from gossamer.kernels import gpu
from gossamer.kernels.vnm import cuda as vnm_cuda
from gossamer.kernels.vnm.operators import vnm_of
from tests.gpu.right import assert_right

pytestmark = pytest.mark.gpu

HALVES = [torch.float16, torch.bfloat16]
KINDS = [
    ("all", 4),
    ("all", 8),
    (64, 8),
    (256, 8),
    (128, 16),
    (16, 8),
    (3, 5),
    (1, 16),
    ("all", 100),
    (64, 32),
    (512, 256),
]
#: below, at and above tiles of rows (64, 128, 256) and steps of columns (16 m)
SHAPES = [(64, 64), (128, 512), (70, 203), (257, 1032), (1, 1), (512, 2048), (1000, 96)]
TOKENS = [1, 2, 7, 8, 16, 17, 33, 64, 65, 128, 200, 513]


@pytest.fixture(autouse=True)
def sums_in_float32():
    """Where cuBLAS multiplies a decoded weight it may add parts up in half precision; not here."""
    matmul = torch.backends.cuda.matmul  # its attributes are made on access: pytest's monkeypatch would delete them
    matmul.allow_fp16_reduced_precision_reduction = matmul.allow_bf16_reduced_precision_reduction = False
    yield
    matmul.allow_fp16_reduced_precision_reduction = matmul.allow_bf16_reduced_precision_reduction = True


def packed(rows, cols, v, m, dtype=torch.float16):
    dense = gs.sparsify(torch.randn(rows, cols, device="cuda").to(dtype), gs.VNM(v, 2, m), format=gs.Dense())
    return dense, gs.from_dense(dense, PackedVNM(v, 2, m))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("v", "m"), KINDS)
def test_every_shape_and_order(v, m, dtype):
    for rows, cols in SHAPES:
        dense, weight = packed(rows, cols, v, m, dtype)
        bias = torch.randn(rows, device="cuda").to(dtype)
        for tokens in TOKENS:
            x = torch.randn(tokens, cols, device="cuda").to(dtype)
            out = F.linear(x, weight, bias)
            assert out.is_contiguous()
            assert_right(out, x, dense, bias, twice=v in (16, 3, 1))  # cuBLAS, above some tokens
            turned = x.t().contiguous().t()
            out = F.linear(turned, weight)
            assert_right(out, turned, dense)
            assert tokens == 1 or out.stride(0) == 1 or rows == 1 or turned.stride(1) == 1


@pytest.mark.parametrize("name", ["relu", "gelu", "silu"])
@pytest.mark.parametrize("tokens", [3, 40, 300])
@pytest.mark.parametrize(("v", "m"), [("all", 4), ("all", 8), (64, 16), (5, 8)])
def test_activations(v, m, tokens, name):
    dense, weight = packed(192, 520, v, m)
    bias, function = torch.randn(192, device="cuda").half(), getattr(F, name)
    for x in (torch.randn(tokens, 520), torch.randn(520, tokens).t()):
        x = x.cuda().half()
        x = x.t().contiguous().t() if not x.is_contiguous() else x
        assert_right(
            gs.linear(x, weight, bias, name), x, dense, bias, function, twice=v == 5
        )  # cuBLAS, from 17 tokens on


@pytest.mark.parametrize("processors", [1, 3])
@pytest.mark.parametrize(("v", "m"), [("all", 4), ("all", 16), (256, 8), (128, 8), (64, 8)])
def test_many_tiles_of_every_shape(v, m, processors, monkeypatch):
    """Few processors: a block has many tiles, whose results leave while the next is under way."""
    monkeypatch.setattr(gpu, "processors", lambda device: processors)
    monkeypatch.setattr(vnm_cuda, "_known", {})
    for rows, cols, tokens in ((512, 1040, 400), (776, 512, 1000), (520, 4096, 184), (257, 264, 355)):
        dense, weight = packed(rows, cols, v, m)
        bias = torch.randn(rows, device="cuda").half()
        x = torch.randn(tokens, cols, device="cuda").half()
        for each in (x, x.t().contiguous().t()):
            assert_right(F.linear(each, weight, bias), x, dense, bias)


@pytest.mark.parametrize(
    ("rows", "cols", "m"),
    [
        (1000, 520, 8),
        (2200, 3200, 4),
        (2200, 6416, 8),
        (8300, 520, 4),
        (8300, 520, 8),
        (8300, 1040, 16),
        (4300, 1040, 32),
    ],
)
def test_few_tokens_of_every_shape(rows, cols, m):
    """Clusters of one to eight, 4 to 16 warps, 64 and 128 rows: what the plan takes for small and large layers."""
    for v in ("all", 64):
        dense, weight = packed(rows, cols, v, m)
        bias = torch.randn(rows, device="cuda").half()
        for tokens in (1, 8, 16):
            x = torch.randn(tokens, cols, device="cuda").half()
            assert_right(F.linear(x, weight, bias), x, dense, bias)


@pytest.mark.parametrize("tokens", [5, 16, 300])
def test_a_layer_waits_for_the_one_before(tokens):
    """Kernels may be set up while the one before still runs: what they read must be what that one wrote."""
    (one, first), (two, second) = packed(2048, 512, "all", 8), packed(512, 2048, "all", 16)
    one, two = one.float() / 16, two.float() / 16
    first, second = (gs.from_dense(w.half(), PackedVNM("all", 2, m)) for w, m in ((one, 8), (two, 16)))
    x = torch.randn(tokens, 512, device="cuda").half()
    for y in (x, x.t().contiguous().t()):
        expected = y.float()
        for _ in range(20):
            y = F.linear(torch.relu(F.linear(y, first)), second)
            y = y / y.norm() * tokens
            expected = F.linear(torch.relu(F.linear(expected, one)), two)
            expected = expected / expected.norm() * tokens
        assert float((y.float() - expected).norm() / expected.norm()) < 0.05
    chain, again = x, x
    for _ in range(10):  # no kernel of torch's between
        chain = F.linear(F.linear(chain, first), second)
        torch.cuda.synchronize()
    for _ in range(10):
        again = F.linear(F.linear(again, first), second)
    assert bool(torch.isfinite(chain).all()) and torch.equal(chain, again)  # numbers that overflow would hide the rest


@pytest.mark.parametrize("tokens", [1, 5, 64, 200])
@pytest.mark.parametrize(("v", "m"), [("all", 4), ("all", 8), (64, 8), (7, 8)])
def test_views_of_every_kind(v, m, tokens):
    dense, weight = packed(130, 264, v, m)
    big = torch.randn(2 * tokens + 2, 2 * 264 + 2, device="cuda").half()
    for x in (
        big[:tokens, 1:265],
        big[1 : tokens + 1, : 2 * 264 : 2],
        big[: 2 * tokens : 2, 8:272],
        big.t().contiguous()[1:265, 1 : tokens + 1].t(),
        big[:1, :264].expand(tokens, 264),
        big[: 2 * tokens, :264].view(2, tokens, -1)[:, :, :264],
    ):
        assert_right(F.linear(x, weight).reshape(-1, 130), x.reshape(-1, 264), dense)


@pytest.mark.parametrize("shape", [(264,), (1, 1, 264), (2, 3, 264), (5, 8, 264), (2, 2, 50, 264), (3, 0, 264)])
@pytest.mark.parametrize(("v", "m"), [("all", 4), ("all", 8), (64, 8), (7, 8)])
def test_inputs_of_any_dimensions(v, m, shape):
    dense, weight = packed(136, 264, v, m)
    bias = torch.randn(136, device="cuda").half()
    for _ in range(3):  # the first call is Python's, the others are launched without it
        x = torch.randn(shape, device="cuda").half()
        out = F.linear(x, weight, bias)
        assert out.shape == (*shape[:-1], 136) and out.is_contiguous()
        assert_right(out.reshape(-1, 136), x.reshape(-1, 264), dense, bias, twice=v == 7)
        if x.dim() > 2:
            other = x.transpose(0, 1)
            assert_right(F.linear(other, weight).reshape(-1, 136), other.reshape(-1, 264), dense, twice=v == 7)


@pytest.mark.parametrize(("v", "m"), KINDS)
@pytest.mark.parametrize("dtype", [*HALVES, torch.float32, torch.float64])
def test_packs_as_a_cpu_does(v, m, dtype):
    dense, weight = packed(130, 300, v, m, dtype)
    there = gs.from_dense(dense.cpu(), PackedVNM(v, 2, m))
    for name, array in there.structure.arrays.items():
        assert torch.equal(weight.structure.arrays[name].cpu(), array)
    assert torch.equal(weight.values().cpu(), there.values())
    assert torch.equal(weight.to_dense(), dense)
    assert torch.equal(there.cuda().to_dense(), dense)
    shared, meta, sizes = vnm_of(weight.structure)
    assert torch.equal(torch.ops.gossamer.vnm_decode(weight.values(), shared, meta, *sizes), dense)
    assert torch.equal(torch.ops.gossamer.vnm_sample(dense, shared, meta, *sizes), weight.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("tokens", [3, 100])
def test_other_types_are_right(dtype, tokens):
    dense, weight = packed(130, 300, 16, 8, dtype)
    x = torch.randn(tokens, 300, device="cuda", dtype=dtype)
    torch.testing.assert_close(F.linear(x, weight).double(), x.double() @ dense.double().t(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("v", "m"), [("all", 4), (64, 8), (3, 8)])
@pytest.mark.parametrize("tokens", [3, 100])
def test_gradients(v, m, tokens):
    dense, weight = packed(128, 320, v, m, torch.float16)
    weight, leaf = nn.Parameter(weight), dense.clone().requires_grad_()
    x = torch.randn(tokens, 320, device="cuda").half().requires_grad_()
    bias = torch.randn(128, device="cuda").half().requires_grad_()
    push = torch.randn(tokens, 128, device="cuda").half()
    gx, gw, gb = torch.autograd.grad(F.linear(x, weight, bias), (x, weight, bias), push)
    dx, dw, db = torch.autograd.grad(F.linear(x, leaf, bias), (x, leaf, bias), push)
    torch.testing.assert_close((gx, gb), (dx, db), rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(gw.to_dense(), torch.where(weight.mask(), dw, 0), rtol=1e-2, atol=1e-2)


def test_trains_in_its_format():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 64)).cuda().bfloat16()
    gs.sparsify_(model, gs.VNM(64, 2, 8), format=PackedVNM(64, 2, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x, y = torch.randn(80, 128, device="cuda").bfloat16(), torch.randn(80, 64, device="cuda").bfloat16()
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]
    model[0].weight.structure.check(model[0].weight.detach()._values)


@pytest.mark.parametrize("tokens", [4, 200])
def test_a_graph_replays_on_new_inputs(tokens):
    dense, weight = packed(256, 512, "all", 8)
    x = torch.randn(tokens, 512, device="cuda").half()
    F.linear(x, weight)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = F.linear(x, weight)
    for _ in range(3):
        x.copy_(torch.randn(tokens, 512))
        graph.replay()
        assert_right(out, x, dense)


@pytest.mark.parametrize("tokens", [4, 200])
def test_the_current_stream_is_obeyed(tokens):
    dense, weight = packed(256, 512, 64, 8)
    x, late = torch.zeros(tokens, 512, device="cuda").half(), torch.randn(tokens, 512, device="cuda").half()
    F.linear(x, weight)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        x.copy_(late)  # a kernel on another stream would still see zeros
        out = F.linear(x, weight)
    stream.synchronize()
    assert_right(out, late, dense)


def test_from_a_thread_of_its_own():
    dense, weight = packed(256, 512, 64, 8)
    x, outs = torch.randn(9, 512, device="cuda").half(), []
    threads = [threading.Thread(target=lambda: outs.append(F.linear(x, weight))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outs) == 4
    for out in outs:
        assert_right(out, x, dense)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_another_device_than_the_current_one():
    dense, weight = packed(256, 512, 64, 8)
    x = torch.randn(9, 512).half().to("cuda:1")
    assert_right(F.linear(x, weight.to("cuda:1")), x, dense)


@pytest.mark.parametrize("tokens", [4, 200])
def test_compiles_in_one_graph(tokens):
    dense, weight = packed(256, 512, 64, 8)
    layer = nn.Linear(512, 256).cuda().half()
    layer.weight = nn.Parameter(weight)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x = torch.randn(tokens, 512, device="cuda").half()
    assert_right(compiled(x), x, dense, layer.bias)


def test_torchs_rules_for_operators():
    _, weight = packed(70, 130, 16, 8, torch.float32)
    shared, meta, sizes = vnm_of(weight.structure)
    values = weight.values().requires_grad_()
    for x in (torch.randn(3, 130, device="cuda"), torch.randn(130, 3, device="cuda").t()):
        arguments = (values, shared, meta, x, torch.randn(70, device="cuda"), *sizes, 0)
        torch.library.opcheck(torch.ops.gossamer.vnm_linear.default, arguments)


def test_bad_input_is_said_so():
    _, weight = packed(70, 130, 16, 8)
    assert F.linear(torch.randn(0, 130, device="cuda").half(), weight).shape == (0, 70)
    with gs.fallback("silent"):
        with pytest.raises(RuntimeError, match="dtype"):
            F.linear(torch.randn(3, 130, device="cuda"), weight)
        with pytest.raises(RuntimeError, match="device"):
            F.linear(torch.randn(3, 130).half(), weight)
        with pytest.raises(RuntimeError, match=r"shapes|130"):
            F.linear(torch.randn(3, 131, device="cuda").half(), weight)
        with pytest.raises(RuntimeError, match=r"dtype|bias"):
            F.linear(torch.randn(3, 130, device="cuda").half(), weight, torch.zeros(70, device="cuda"))


def test_values_that_are_not_finite_stay_where_they_belong():
    dense, weight = packed(64, 256, "all", 8)
    used = (dense != 0).any(0)
    for tokens in (3, 200):
        x = torch.randn(tokens, 256, device="cuda").half()
        x[:, ~used] = float("nan")  # columns that no row keeps are never read into a sum
        assert bool(torch.isfinite(F.linear(x, weight)).all())
