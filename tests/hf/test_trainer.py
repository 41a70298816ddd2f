"""A method of gs.train inside transformers' own Trainer: it steps, it is saved, it resumes to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf

import gossamer as gs
from tests.hf.models import bert
from tests.hf.test_pretrained import assert_same


def trainer(model: Any, folder: Path, **more: Any) -> tf.Trainer:
    generator = torch.Generator().manual_seed(0)
    data = [{"input_ids": torch.randint(1, 100, (8,), generator=generator), "labels": i % 2} for i in range(64)]
    arguments = tf.TrainingArguments(
        str(folder),
        max_steps=6,
        per_device_train_batch_size=8,
        save_steps=3,
        logging_steps=1,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        dataloader_pin_memory=False,
        learning_rate=1e-3,
    )
    return tf.Trainer(model, arguments, train_dataset=data, **more)


def make(model: Any, optimizer: Any) -> gs.train.RigL:
    return gs.train.RigL(model, optimizer, sparsity=0.8, every=2, until=6)


@pytest.mark.filterwarnings("ignore::UserWarning:torch.optim.lr_scheduler")
def test_trainer_saves_and_resumes(tmp_path: Path) -> None:
    model = bert()
    callback = gs.train.callbacks.for_trainer(make)
    run = trainer(model, tmp_path, callbacks=[callback])
    run.train()
    assert callback.method.steps == 6
    assert abs(callback.method.log()["density"] - 0.2) < 0.01
    assert all(abs(row["density"] - 0.2) < 0.01 for row in run.state.log_history)
    # a checkpoint is a model folder: sparse weights and all
    loaded = tf.AutoModelForSequenceClassification.from_pretrained(tmp_path / "checkpoint-6")
    assert_same(model, loaded)
    # half-way, into a model with other weights and other masks
    torch.manual_seed(1)
    other = bert()
    again = trainer(other, tmp_path)
    again.create_optimizer()
    method = make(other, again.optimizer)
    again.add_callback(gs.train.callbacks.for_trainer(method))
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert method.steps == 6
    assert_same(model, other)


def test_resuming_without_the_state_is_refused(tmp_path: Path) -> None:
    trainer(bert(), tmp_path, callbacks=[gs.train.callbacks.for_trainer(make)]).train()
    other = bert()
    again = trainer(other, tmp_path / "elsewhere")
    again.create_optimizer()
    again.add_callback(gs.train.callbacks.for_trainer(make(other, again.optimizer)))
    with pytest.raises(FileNotFoundError, match=r"resumes at step 3, but .*elsewhere/checkpoint-3/gossamer.pt"):
        again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))


@pytest.mark.filterwarnings("ignore::UserWarning:torch.optim.lr_scheduler")
@pytest.mark.parametrize("format", [gs.Masked(), gs.CSR(), gs.formats.PackedCSR()], ids=str)
def test_fine_tuning_keeps_the_mask(format: gs.Format, tmp_path: Path) -> None:
    model = gs.sparsify_(bert(), "75%", format=format)
    masks = {n: p.mask() for n, p in gs.nn.sparse_parameters(model).items()}
    before = model.classifier.weight.detach().to_dense().clone()
    trainer(model, tmp_path).train()
    after = gs.nn.sparse_parameters(model)
    assert all(torch.equal(after[n].mask(), mask) for n, mask in masks.items())
    assert not torch.equal(after["classifier.weight"].detach().to_dense(), before)
