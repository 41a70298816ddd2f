"""timm: its models are ordinary modules. Skipped where timm is not installed: it would bring a torch of its own."""

import pytest
import torch

import gossamer as gs

timm = pytest.importorskip("timm", reason="needs timm: pip install timm")


@pytest.mark.parametrize(
    ("name", "options", "side", "how"),
    [
        ("vit_tiny_patch16_224", {"img_size": 32, "patch_size": 8, "depth": 2}, 32, {"head": None, "*": "75%"}),
        ("resnet10t", {}, 64, {"conv1*": None, "fc": None, "*": "90%"}),
    ],
)
def test_a_model_is_packed_saved_and_loaded(name, options, side, how, tmp_path):
    model = timm.create_model(name, num_classes=10, **options).eval()
    x = torch.randn(1, 3, side, side)
    with torch.no_grad():
        before = gs.sparsify_(model, how)(x)
        assert gs.pack_(model, x, tune=False).layers
        torch.testing.assert_close(model(x), before, rtol=1e-3, atol=1e-3)
        gs.save(model, tmp_path / "m.safetensors")
        again = gs.load(timm.create_model(name, num_classes=10, **options).eval(), tmp_path / "m.safetensors")
        assert torch.equal(again(x), model(x))
