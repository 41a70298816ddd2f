"""prune, pack, quantize and export: what they write loads and computes; bad input writes nothing."""

import json

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

import gossamer as gs
from gossamer.app import cli
from gossamer.app.opening import open_model

X = {"input_ids": torch.tensor([[2, 5, 6, 7, 3]])}


@pytest.fixture
def run():
    def run(*args, code=0):
        result = CliRunner().invoke(cli.main, [str(arg) for arg in args])
        assert result.exit_code == code, result.output
        return result

    return run


@pytest.fixture(scope="module")
def pruned(bert, texts, tmp_path_factory):
    out = tmp_path_factory.mktemp("changing") / "pruned"
    args = ["prune", bert, "--pattern", "2:4", "--calibration", texts, "-o", out, "--exclude", "*query*", "--json"]
    result = CliRunner().invoke(cli.main, [str(arg) for arg in args])
    assert result.exit_code == 0, result.output
    return out, json.loads(result.stdout)


@pytest.fixture
def file(tmp_path):
    torch.manual_seed(0)
    tensors = {"a.0.weight": torch.randn(32, 64), "a.0.bias": torch.randn(32), "embed.weight": torch.randn(10, 64)}
    save_file(tensors, tmp_path / "plain.safetensors")
    return tmp_path / "plain.safetensors", tensors


def logits(folder):
    with torch.no_grad():
        return open_model(folder).model(**X).logits


def test_prune_of_a_folder_is_calibrated_and_keeps_the_tokenizer(pruned, bert):
    out, said = pruned
    assert said["method"] == "sparsegpt" and 0.3 < said["sparsity"] < 0.5
    layer = open_model(out).model.bert.encoder.layer[0]
    assert layer.output.dense.weight.sparsity == 0.5
    assert not isinstance(layer.attention.self.query.weight, gs.SparseTensor)
    assert (out / "tokenizer.json").read_bytes() == (bert / "tokenizer.json").read_bytes()
    dense = open_model(bert).model.bert.encoder.layer[0].output.dense.weight
    kept = layer.output.dense.weight.mask()
    assert not torch.equal(layer.output.dense.weight.to_dense()[kept], dense[kept])  # SparseGPT has adjusted them


def test_pack_then_export_gives_an_ordinary_checkpoint(run, pruned, tmp_path):
    said = json.loads(run("pack", pruned[0], "-o", tmp_path / "packed", "--tokens", 4, "--no-tune", "--json").stdout)
    assert len(said["layers"]) == 3 * 5 + 1
    run("export", tmp_path / "packed", "-o", tmp_path / "dense")
    torch.testing.assert_close(logits(tmp_path / "packed"), logits(pruned[0]), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(logits(tmp_path / "dense"), logits(pruned[0]), rtol=1e-4, atol=1e-5)
    assert "quantization_config" not in json.loads((tmp_path / "dense/config.json").read_text())
    weights = load_file(tmp_path / "dense/model.safetensors")
    assert float((weights["bert.encoder.layer.0.output.dense.weight"] == 0).float().mean()) == 0.5


def test_a_table_of_kinds_is_printed(run, pruned, tmp_path):
    text = run("pack", pruned[0], "-o", tmp_path / "packed", "--no-tune").output
    assert "bert.encoder.layer.*.output.dense.weight" in text and "layer.1." not in text


def test_quantize_of_a_folder(run, pruned, tmp_path):
    run("quantize", pruned[0], "-o", tmp_path / "int8")
    model = open_model(tmp_path / "int8").model
    assert "Int8" in type(model.bert.encoder.layer[0].output.dense).__name__
    assert float((logits(tmp_path / "int8") - logits(pruned[0])).abs().max()) < 0.05


@pytest.mark.filterwarnings("ignore")  # torch.export's own
def test_export_of_a_program(run, pruned, tmp_path):
    run("export", pruned[0], "--to", "pt2", "--tokens", 5, "-o", tmp_path / "model.pt2")
    program = torch.export.load(tmp_path / "model.pt2")
    torch.testing.assert_close(program.module()(**X).logits, logits(pruned[0]), rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_export_of_a_decoder(run, tmp_path):
    """Its cache is no output that torch.export knows."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=20, n_embd=16, n_layer=1, n_head=2, n_positions=16, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config).eval()
    model.save_pretrained(tmp_path / "gpt2")
    run("export", tmp_path / "gpt2", "--to", "pt2", "--tokens", 5, "-o", tmp_path / "model.pt2")
    ids = torch.arange(5)[None]
    logits = torch.export.load(tmp_path / "model.pt2").module()(input_ids=ids).logits
    torch.testing.assert_close(logits, model(ids).logits)


def test_files_go_all_the_way(run, file, tmp_path):
    path, tensors = file
    run("prune", path, "--pattern", "75%", "-o", tmp_path / "s.safetensors")
    sparse = open_model(tmp_path / "s.safetensors").model
    assert sparse.a.get_submodule("0").weight.sparsity == 0.75
    assert torch.equal(sparse.embed.weight, tensors["embed.weight"])  # a table that is looked up
    assert torch.equal(sparse.a.get_submodule("0").bias, tensors["a.0.bias"])
    run("pack", tmp_path / "s.safetensors", "-o", tmp_path / "p.safetensors", "--no-tune")
    run("quantize", tmp_path / "s.safetensors", "-o", tmp_path / "q.safetensors")
    run("export", tmp_path / "p.safetensors", "-o", tmp_path / "d.safetensors")
    weight = load_file(tmp_path / "d.safetensors")["a.0.weight"]
    assert torch.equal(weight, sparse.a.get_submodule("0").weight.to_dense())
    run("pack", tmp_path / "q.safetensors", "-o", tmp_path / "r.safetensors", "--no-tune")
    run("export", tmp_path / "r.safetensors", "-o", tmp_path / "e.safetensors")
    assert load_file(tmp_path / "e.safetensors")["a.0.weight"].dtype is torch.float32
    run("report", tmp_path / "q.safetensors", "--out", tmp_path / "q.html", "--no-times")


def test_what_exists_is_replaced_only_by_force(run, file, pruned, tmp_path):
    path, _ = file
    out = tmp_path / "out.safetensors"
    out.write_bytes(b"precious")
    assert "--force" in run("prune", path, "--pattern", "2:4", "-o", out, code=2).output
    assert out.read_bytes() == b"precious"
    run("prune", path, "--pattern", "2:4", "-o", out, "--force")
    assert gs.io.inspect(out)
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "old").touch()
    run("export", pruned[0], "-o", folder, "--force")
    assert (folder / "config.json").exists() and not (folder / "old").exists()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("prune", "{bert}", "--pattern", "2:5x"), "Unknown pattern '2:5x'"),
        (("prune", "{bert}", "--pattern", "2:4", "--method", "nope"), "unknown method 'nope'"),
        (("prune", "{bert}", "--pattern", "2:4", "--method", "wanda"), "--method wanda needs --calibration FILE"),
        (("prune", "{bert}", "--pattern", "2:4", "--exclude", "*"), "leaves nothing to prune"),
        (("prune", "{bert}", "--pattern", "2:4", "--samples", "0"), "0 is not in the range x>=1"),
        (("prune", "{bert}", "--pattern", "2:4", "--length", "-3"), "-3 is not in the range x>=1"),
        (("pack", "{bert}", "--tokens", "0"), "0 is not in the range x>=1"),
        (("prune", "{bert}", "--pattern", "2:4", "--calibration", "{empty}"), "no text in it"),
        (("prune", "{empty}", "--pattern", "2:4"), "0 bytes long"),
        (("prune", "{folder}", "--pattern", "2:4"), "no config.json"),
        (("prune", "{broken}", "--pattern", "2:4"), "can't be loaded"),
        (("prune", "{file}", "--pattern", "2:4", "--calibration", "{texts}"), "needs a transformers folder"),
        (("pack", "{bert}"), "no sparse layer"),
        (("quantize", "{file}", "--weights-only"), "no packed linear layer"),
        (("export", "{file}", "--to", "pt2"), "needs a folder"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_input_is_one_line_exit_2_and_nothing_written(run, bert, texts, file, tmp_path, args, words):
    places = {"bert": bert, "texts": texts, "file": file[0]}
    for name in ("empty", "folder", "broken"):
        places[name] = tmp_path / name
    places["empty"].touch()
    places["folder"].mkdir()
    places["broken"].mkdir()
    (places["broken"] / "config.json").write_text((bert / "config.json").read_text())
    (places["broken"] / "model.safetensors").write_bytes(b"not a model at all")
    before = sorted(tmp_path.rglob("*"))
    result = run(*(arg.format(**places) for arg in args), "-o", tmp_path / "out", code=2)
    last = result.output.splitlines()[-1]
    assert last.startswith("Error: ") and words in last
    assert sorted(tmp_path.rglob("*")) == before
