"""Inside of a real Lightning trainer: accumulation, clipping, mixed precision, stop and resume."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import gossamer as gs
from tests.support import is_sparse

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's own: loaders without workers, and the like
pl = pytest.importorskip("pytorch_lightning")


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 4))

    def training_step(self, batch, index):
        x, y = batch
        return F.cross_entropy(self.net(x), y)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def make(model, optimizer):
    return gs.train.SRigL(model, optimizer, 0.5, every=2, until=20, min_salient=1)


def fit(steps, checkpoint=None, **options):
    torch.manual_seed(1)
    x, y = torch.randn(8, 12), torch.randint(4, (8,))  # eight times the same batch: Lightning may resume at any of them
    data = DataLoader(TensorDataset(x.repeat(8, 1), y.repeat(8)), batch_size=8)
    module, callback = Module(), gs.train.callbacks.for_lightning(make)
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = pl.Trainer(accelerator="cpu", max_steps=steps, callbacks=[callback], **quiet, **options)
    trainer.fit(module, data, ckpt_path=checkpoint)
    return trainer, module, callback.method


def test_updates_happen_and_weights_stay_sparse():
    _, module, method = fit(6, accumulate_grad_batches=2, gradient_clip_val=0.5)
    assert (method.steps, method.log()["updates"]) == (6, 3)
    weight = module.net[0].weight
    assert is_sparse(weight) and not weight.detach().to_dense()[~weight.mask()].any()


def test_mixed_precision():
    _, module, method = fit(4, precision="bf16-mixed")
    assert method.log()["updates"] == 2 and module.net[0].weight.dtype == torch.float32


def test_a_run_is_resumed_bit_identically(tmp_path):
    _, straight, _ = fit(16)
    trainer, _, method = fit(8)  # a whole epoch
    trainer.save_checkpoint(tmp_path / "half.ckpt")
    _, resumed, again = fit(16, tmp_path / "half.ckpt")
    assert (method.steps, again.steps) == (8, 16)
    for a, b in zip(straight.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a.detach().to_dense(), b.detach().to_dense())
