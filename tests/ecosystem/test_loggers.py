"""Loggers: TensorBoard's writer has a test in tests/train; here those that have another interface."""

import pytest
import torch
from torch import nn

import gossamer as gs


@pytest.fixture
def method():
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
    return gs.train.RigL(model, torch.optim.SGD(model.parameters(), lr=0.1), sparsity=0.9, every=2, until=10)


def test_any_logger_of_names_numbers_and_steps(method):
    class Writer:
        seen: dict = {}  # noqa: RUF012

        def add_scalar(self, name, value, step):
            self.seen[name.replace("/", ".")] = (value, step)

    method.log(Writer())
    assert Writer.seen["sparsity.density"] == (pytest.approx(0.1, abs=0.01), 0)
    assert "sparsity.density.0.weight" in Writer.seen
    assert all(isinstance(value, int | float) for value, _ in Writer.seen.values())


@pytest.mark.filterwarnings("ignore")
def test_mlflow(method, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="needs mlflow: pip install mlflow-skinny")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    mlflow.set_experiment("sparse")

    class Writer:
        def add_scalar(self, name, value, step):
            mlflow.log_metric(name.replace("/", "."), value, step)

    with mlflow.start_run() as run:
        method.log(Writer())
    metrics = mlflow.get_run(run.info.run_id).data.metrics
    assert metrics["sparsity.density"] == pytest.approx(0.1, abs=0.01)
    assert "sparsity.churn.0.weight" in metrics


@pytest.mark.filterwarnings("ignore")
def test_wandb(method, tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="needs wandb: pip install wandb")
    monkeypatch.setenv("WANDB_MODE", "disabled")
    with wandb.init(dir=tmp_path) as run:
        run.log(method.log())
