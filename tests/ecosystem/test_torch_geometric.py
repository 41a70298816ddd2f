"""torch_geometric: a graph as a sparse tensor computes what its layers do, and its weights can be sparse, too."""

import pytest
import torch
from torch import nn

import gossamer as gs

pytest.importorskip("torch_geometric", reason="needs torch_geometric: pip install torch_geometric")

from torch_geometric.nn import GCNConv, SAGEConv, Sequential
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import to_torch_coo_tensor

NODES = 60


@pytest.fixture
def edges():
    return torch.randint(0, NODES, (2, 300)).unique(dim=1)


def test_a_layer_by_hand(edges):
    conv, x = GCNConv(16, 8), torch.randn(NODES, 16)
    normal = to_torch_coo_tensor(*gcn_norm(edges, None, NODES), (NODES, NODES)).t().coalesce()
    adjacency = gs.from_torch(normal).to_format(gs.CSR())  # row: a node; columns: where its messages come from
    ours = adjacency @ conv.lin(x) + conv.bias
    torch.testing.assert_close(ours, conv(x, edges), rtol=1e-4, atol=1e-5)
    grads = [torch.autograd.grad(y.square().sum(), conv.lin.weight)[0] for y in (ours, conv(x, edges))]
    torch.testing.assert_close(*grads, rtol=1e-3, atol=1e-4)


def test_sums_over_neighbours(edges):
    conv, x = SAGEConv(16, 8, aggr="sum", root_weight=False), torch.randn(NODES, 16)
    graph = gs.from_torch(to_torch_coo_tensor(edges, size=(NODES, NODES)).t().coalesce())
    torch.testing.assert_close(conv.lin_l(graph @ x), conv(x, edges), rtol=1e-4, atol=1e-5)


def test_weights_of_its_layers(edges):
    model = Sequential("x, e", [(GCNConv(16, 64), "x, e -> x"), nn.ReLU(), (GCNConv(64, 4), "x, e -> x")]).eval()
    x = torch.randn(NODES, 16)
    for conv in model.modules():
        if isinstance(conv, GCNConv):  # its Linear is a class of its own
            linear = nn.Linear(conv.in_channels, conv.out_channels, bias=False)
            linear.weight, conv.lin = conv.lin.weight, linear
    gs.sparsify_(model, "75%")
    with torch.no_grad():
        before = model(x, edges)
        assert len(gs.pack_(model, (x, edges), tune=False).layers) == 2
        torch.testing.assert_close(model(x, edges), before, rtol=1e-4, atol=1e-4)
