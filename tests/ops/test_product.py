"""product: act(x @ W.T + bias) on plain tensors, by every family of kernels, in eager mode and in traces."""

import pytest
import torch
import torch.nn.functional as F

import gossamer as gs
from gossamer.formats import PackedCSR, PackedNM, PackedVNM, Structure
from gossamer.ops.product import case_of, chosen, multiply, product

#: A format, a pattern that it holds, and the family of its kernels.
CASES = {
    "CSR": (gs.CSR(), "70%", "CsrProduct"),
    "CSC": (gs.CSC(), "70%", "CsrProduct"),
    "COO": (gs.COO(), "70%", "CsrProduct"),
    "ELL": (gs.ELL(), "70%", "CsrProduct"),
    "DCSR": (gs.DCSR(), "90%", "CsrProduct"),
    "Masked": (gs.Masked(), "70%", "DenseProduct"),
    "BSR": (gs.BSR((4, 8)), "block 4x8 50%", "BlocksProduct"),
    "packed": (PackedCSR(), "70%", "RowsProduct"),
    "n:m": (PackedNM(2, 4), "2:4", "RowsProduct"),
    "V:N:M": (PackedVNM("all", 2, 4), "2:4", "VnmProduct"),
}
every = pytest.mark.parametrize("name", CASES)


def weight(name, shape=(20, 32), dtype=torch.float32):
    format, how, _ = CASES[name]
    return gs.sparsify(torch.randn(shape), how, format=format).to(dtype)


def bound(x, dense):
    """What rounding may change: k u |x||w| for sums of k terms."""
    u = torch.finfo(x.dtype).eps / 2
    return (dense.shape[1] + 4) * u * (x.double().abs() @ dense.double().abs().t()) + 1e-30


def test_by_hand():
    w = gs.from_dense(torch.tensor([[0.0, 3.0], [-4.0, 0.0]]), gs.CSR())
    x, bias = torch.tensor([[1.0, 2.0]]), torch.tensor([10.0, 1.0])
    assert product(x, w.values(), w.structure).tolist() == [[6.0, -4.0]]
    assert product(x, w.values(), w.structure, bias, "relu").tolist() == [[16.0, 0.0]]
    assert product(x, w.values(), w.structure, transpose=True).tolist() == [[-8.0, 3.0]]


@every
@pytest.mark.parametrize("lead", [(5,), (1,), (2, 3), (2, 1, 3), (), (0,), (2, 0)], ids=str)
def test_values_for_every_number_of_dimensions(name, lead):
    w, x, bias = weight(name), torch.randn(*lead, 32), torch.randn(20)
    out = product(x, w._values, w.structure, bias)
    dense = w.to_dense()
    assert out.shape == (*lead, 20)
    wrong = (out.double() - (x.double() @ dense.double().t() + bias.double())).abs() > bound(x, dense) + 1e-6
    assert not bool(wrong.any())
    assert torch.equal(out, F.linear(x, w, bias))


@every
def test_the_family_is_decided_by_the_format(name):
    w = weight(name)
    assert chosen(*case_of(w._values, w.structure)).__name__ == CASES[name][2]


@every
def test_inputs_that_are_not_contiguous(name):
    w = weight(name)
    dense = w.to_dense()
    strided = torch.randn(32, 6).t(), torch.randn(6, 64)[:, ::2], torch.randn(3, 2, 64)[..., 16:48]
    for x in (*strided, torch.randn(1, 32).expand(4, 32), torch.randn(3, 2, 32).transpose(0, 1)):
        assert bool(((product(x, w._values, w.structure) - x @ dense.t()).abs() <= 2 * bound(x, dense)).all())


@every
@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
def test_activations(name, activation):
    w, x, bias = weight(name), torch.randn(4, 32), torch.randn(20)
    expected = getattr(F, activation)(F.linear(x, w.to_dense(), bias))
    torch.testing.assert_close(product(x, w._values, w.structure, bias, activation), expected, rtol=1e-4, atol=1e-5)
    values = w._values.clone().requires_grad_()  # then it is applied after the product, and has a gradient
    product(x, values, w.structure, bias, activation).sum().backward()
    reference = w.to_dense().requires_grad_()
    getattr(F, activation)(F.linear(x, reference, bias)).sum().backward()
    grad = gs.SparseTensor(values.grad, w.structure).to_dense()
    torch.testing.assert_close(grad, reference.grad * w.mask(), rtol=1e-3, atol=1e-4)


@every
@pytest.mark.parametrize("transpose", [False, True])
def test_gradients_once_and_twice(name, transpose):
    w = weight(name, (8, 32), torch.float64)
    values, bias = w._values.clone().requires_grad_(), torch.randn(32 if transpose else 8, dtype=torch.float64)
    x = torch.randn(2, 3, 8 if transpose else 32, dtype=torch.float64, requires_grad=True)
    valid = w.structure.valid()

    def f(x, values, bias):  # padding is no place of the matrix, and has no gradient
        kept = values if valid is None else torch.where(valid, values, 0)
        return product(x, kept, w.structure, bias, transpose=transpose)

    assert torch.autograd.gradcheck(f, (x, values, bias.requires_grad_()))
    assert torch.autograd.gradgradcheck(f, (x, values, bias), atol=1e-4)


@every
def test_the_gradient_of_padding_is_zero(name):
    w = weight(name)
    valid, values = w.structure.valid(), w._values.clone().requires_grad_()
    product(torch.randn(3, 32), values, w.structure).sum().backward()
    assert valid is None or not bool(values.grad[~valid].any())


@every
def test_the_same_as_one_node_for_a_sparse_tensor(name):
    w, x = weight(name).requires_grad_(), torch.randn(3, 32, requires_grad=True)
    bias = torch.randn(20, requires_grad=True)
    values = w.detach()._values.clone().requires_grad_()
    ours, plain = multiply(x, w, bias), product(x, values, w.structure, bias)
    assert torch.equal(ours, plain)
    grad = torch.randn_like(ours)
    one = torch.autograd.grad(ours, (x, w, bias), grad)
    two = torch.autograd.grad(plain, (x, values, bias), grad)
    assert torch.equal(one[0], two[0]) and torch.equal(one[2], two[2])
    assert torch.equal(one[1]._values, two[1]) and one[1].structure is w.structure


@every
def test_a_structure_that_changes_before_the_backward_is_not_used_for_it(name):
    w = weight(name).requires_grad_()
    old = w.structure
    out = F.linear(torch.ones(1, 32), w)
    w.data = weight(name)
    (grad,) = torch.autograd.grad(out.sum(), w)
    assert grad.structure is old


class Layer(torch.nn.Module):
    """A layer of plain tensors, as modules keep them: the structure is made of buffers where they are read."""

    def __init__(self, w, activation=None):
        super().__init__()
        self.format, self.shape, self.activation = w.format, w._dense_shape, activation
        self.values = torch.nn.Parameter(w._values.clone())
        for name, array in w.structure.arrays.items():
            self.register_buffer(name, array)
        self.names = tuple(w.structure.arrays)

    def forward(self, x):
        arrays = {name: getattr(self, name) for name in self.names}
        structure = Structure(self.format, self.shape, arrays, self.values.device)
        return product(x, self.values, structure, activation=self.activation)


@pytest.mark.slow
@every
def test_inside_of_torch_compile(name):
    torch._dynamo.reset()
    layer, x = Layer(weight(name), "relu"), torch.randn(3, 32)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), layer(x))
    torch.testing.assert_close(compiled(x), layer(x))
    grads = [torch.autograd.grad(f(x).square().sum(), layer.values)[0] for f in (compiled, layer)]
    torch.testing.assert_close(*grads)


@pytest.mark.slow
@every
def test_inside_of_an_export(name):
    layer, x = Layer(weight(name)), torch.randn(3, 32)
    exported = torch.export.export(layer, (x,))
    torch.testing.assert_close(exported.module()(x), layer(x))


def test_errors_say_what_is_wrong():
    w = weight("CSR")
    with pytest.raises(ValueError, match=r"x has shape \(2, 5\); its last dimension must be 32"):
        product(torch.randn(2, 5), w._values, w.structure)
    with pytest.raises(TypeError, match="a product needs one type"):
        product(torch.randn(2, 32).double(), w._values, w.structure)
    with pytest.raises(ValueError, match="must be 32"):
        product(torch.tensor(1.0), w._values, w.structure)


def test_types_of_one_structure_have_products_of_their_own():
    w, x = weight("packed"), torch.randn(2, 32)
    double = gs.SparseTensor(w._values.double(), w.structure)
    for _ in range(2):
        assert F.linear(x, w).dtype is torch.float32
        assert F.linear(x.double(), double).dtype is torch.float64
