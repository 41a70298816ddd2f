import pytest
import torch

from gossamer.patterns import NM, VNM, Blocks, FanIn, GroupedNM, Threshold, Unstructured
from gossamer.prune.gram import Gram
from gossamer.prune.methods import Known
from gossamer.prune.obs import OBS
from gossamer.prune.sparsegpt import SparseGPT
from gossamer.scores import BlockFisher


def gathered(grads, block, damp=0.1):
    fisher = BlockFisher(*grads.shape[1:], count=len(grads), block=block, damp=damp)
    for grad in grads:
        fisher.add(grad)
    return fisher


def test_no_gradient_at_all():
    fisher = gathered(torch.zeros(3, 2, 8), 8)
    out = OBS().prune(torch.randn(2, 8), NM(2, 4), Known(gradients=fisher))
    assert out.weight.isfinite().all() and "no gradient" in out.notes[0]


PATTERNS = [
    NM(2, 4),
    VNM(4, 2, 8),
    Unstructured(0.6),
    FanIn(0.5),
    Blocks(0.5, (2, 4)),
    GroupedNM(1, 4, 2),
    Threshold(0.5),
]


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize("shape", [(8, 32), (7, 30)])
def test_obs_beats_magnitude_in_its_own_loss(pattern, shape):
    w = torch.randn(shape, dtype=torch.float64)
    grads = torch.randn(64, *shape, dtype=torch.float64) @ torch.randn(shape[1], shape[1], dtype=torch.float64)
    obs = OBS(block=8)
    fisher = gathered(grads, obs.collector(pattern, *shape, count=64).block, damp=0.01)
    out = obs.prune(w, pattern, Known(gradients=fisher))
    assert torch.equal(out.weight != 0, out.mask)
    if pattern.sparsity_of(shape) is not None and not (isinstance(pattern, Blocks) and shape[0] % 2):
        assert abs(float(1 - out.mask.double().mean()) - pattern.sparsity_of(shape)) < 0.06
    if not isinstance(pattern, GroupedNM | Threshold):
        assert torch.equal(pattern.select(out.mask.double()), out.mask)
    block = fisher.block

    def loss(new):
        d = torch.nn.functional.pad(new - w, (0, -shape[1] % block)).view(shape[0], -1, block)
        return float(torch.einsum("rbi,rbij,rbj", d, torch.linalg.inv(fisher.inverse()), d))

    magnitude = w * pattern.select(w.abs())
    assert loss(out.weight) < loss(magnitude)


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_obs_by_the_hessian_beats_sparsegpt(pattern):
    w, x = torch.randn(16, 64, dtype=torch.float64), torch.randn(200, 64, dtype=torch.float64)
    x = x @ torch.randn(64, 64, dtype=torch.float64)
    gram = Gram((x.T @ x)[None])
    out = OBS("hessian").prune(w, pattern, Known(gram))
    assert torch.equal(out.weight != 0, out.mask)
    other = SparseGPT().prune(w, pattern, Known(gram))
    assert abs(float(out.mask.double().mean() - other.mask.double().mean())) < 1e-9
    error = lambda new: gram.error(new - w)
    assert error(out.weight) < (1.0 if isinstance(pattern, Threshold) else 1.1) * error(other.weight)
