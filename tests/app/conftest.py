"""A small model of transformers on disk, with a tokenizer, and a text file: built here, nothing is downloaded."""

import pytest
import torch

WORDS = "the a sparse model keeps few weights and runs fast on small machines every day".split()


@pytest.fixture(scope="session")
def bert(tmp_path_factory):
    from transformers import BertConfig, BertForMaskedLM, BertTokenizerFast

    root = tmp_path_factory.mktemp("bert")
    (root / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]))
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(WORDS) + 5, hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=2,
        max_position_embeddings=32,
    )  # fmt: skip
    BertForMaskedLM(config).save_pretrained(root / "bert")
    BertTokenizerFast(str(root / "vocab.txt")).save_pretrained(root / "bert")
    return root / "bert"


@pytest.fixture(scope="session")
def texts(tmp_path_factory):
    file = tmp_path_factory.mktemp("texts") / "texts.txt"
    file.write_text("\n".join(" ".join(WORDS[i % 5 : i % 7 + 6]) for i in range(20)) + "\n\n")
    return file
