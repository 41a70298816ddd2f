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


def test_attention():
    mine, theirs = (torch.softmax(torch.randn(2, 3, 4, 4, dtype=torch.float64), -1) for _ in range(2))
    gap = (theirs * (theirs.log() - mine.log())).sum(-1)
    torch.testing.assert_close(gs.prune.distill_attention([mine, mine], [theirs, mine]), gap.mean() / 2)
    mask = torch.tensor([[1, 1, 0, 0], [1, 0, 0, 0]])
    kept = mask[:, None].expand(2, 3, 4).bool()
    torch.testing.assert_close(gs.prune.distill_attention([mine], [theirs], mask), gap[kept].mean())
    with pytest.raises(ValueError, match="attentions"):
        gs.prune.distill_attention([mine], [])


def test_all_parts_of_a_transformer():
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.BertConfig(vocab_size=40, attn_implementation="eager", **sizes)
    torch.manual_seed(0)
    teacher, student = (transformers.BertForSequenceClassification(config).eval() for _ in range(2))
    batch = {"input_ids": torch.randint(40, (3, 5)), "attention_mask": torch.ones(3, 5, dtype=torch.long),
             "output_hidden_states": True, "output_attentions": True}  # fmt: skip
    ours, wanted = student(**batch), teacher(**batch)
    parts = [
        gs.prune.distill_logits(ours.logits, wanted.logits),
        gs.prune.distill_hidden(ours.hidden_states, wanted.hidden_states, batch["attention_mask"]),
        gs.prune.distill_attention(ours.attentions, wanted.attentions, batch["attention_mask"]),
    ]
    distill = gs.prune.Distill(teacher, logits=1.0, hidden=2.0, attention=3.0)
    torch.testing.assert_close(distill(ours, **batch), parts[0] + 2 * parts[1] + 3 * parts[2])
    torch.testing.assert_close(gs.prune.Distill(teacher)(ours, **batch), parts[0] + parts[1])
    assert float(distill(wanted, **batch).detach()) == pytest.approx(0.0, abs=1e-6)
