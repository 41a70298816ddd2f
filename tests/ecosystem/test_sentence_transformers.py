"""sentence-transformers: the transformer inside is pruned; encode, save and load are theirs."""

import numpy
import pytest
import torch

import gossamer as gs

st = pytest.importorskip("sentence_transformers", reason="needs sentence-transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # theirs


@pytest.fixture
def model(tmp_path):
    from sentence_transformers.models import Pooling, Transformer
    from transformers import BertConfig, BertModel, BertTokenizerFast

    words = "the a cat kitten sleeps naps on sofa rates rose".split()
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]))
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    torch.manual_seed(0)
    BertModel(BertConfig(vocab_size=len(words) + 5, max_position_embeddings=32, **sizes)).save_pretrained(tmp_path)
    BertTokenizerFast(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    inside = Transformer(str(tmp_path))
    return st.SentenceTransformer(modules=[inside, Pooling(32)], device="cpu")


def test_prune_pack_encode_save_load(model, tmp_path):
    sentences = ["the cat sleeps", "a kitten naps on the sofa", "rates rose"]
    gs.sparsify_(model[0].auto_model, "75%")
    masked = model.encode(sentences)
    gs.pack_(model[0].auto_model, tune=False)
    packed = model.encode(sentences)
    numpy.testing.assert_allclose(packed, masked, rtol=1e-4, atol=1e-5)
    model.save(str(tmp_path / "saved"))
    again = st.SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    assert gs.nn.sparse_parameters(again[0].auto_model)
    assert numpy.array_equal(again.encode(sentences), packed)
