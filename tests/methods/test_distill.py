import pytest
import torch

import gossamer as gs


def test_distillation():
    pytest.importorskip("transformers")
    from transformers.modeling_outputs import BaseModelOutput

    a, b = torch.randn(2, 3, 5), torch.randn(2, 3, 5)
    want = torch.nn.functional.kl_div(
        torch.log_softmax(a / 2, -1).flatten(0, 1), torch.softmax(b / 2, -1).flatten(0, 1), reduction="batchmean"
    )
    torch.testing.assert_close(gs.prune.distill_logits(a, b), 4 * want)
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    want = (a - b)[mask.bool()].square().sum() / b[mask.bool()].square().sum()
    torch.testing.assert_close(gs.prune.distill_hidden([a], [b], mask), want)
    teacher = lambda *args, **kwargs: BaseModelOutput(last_hidden_state=b)
    holder = gs.prune.Distill(None)
    holder.teacher = teacher
    torch.testing.assert_close(holder(BaseModelOutput(last_hidden_state=a), attention_mask=mask), want)
    assert float(gs.prune.Distill(None)(a)) == 0.0
    with pytest.raises(ValueError, match="hidden states"):
        gs.prune.distill_hidden([a], [b, b])
    with pytest.raises(TypeError, match="logits"):
        gs.prune.Distill(None)(3)
