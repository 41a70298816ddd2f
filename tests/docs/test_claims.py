"""The figures that the README and the home page quote are those of benchmarks/results."""

import importlib.util
from collections import defaultdict
from pathlib import Path
from statistics import geometric_mean

import pytest

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("claims", ROOT / "docs" / "claims.py")
assert spec is not None and spec.loader is not None
claims = importlib.util.module_from_spec(spec)
spec.loader.exec_module(claims)
README = (ROOT / "README.md").read_text(encoding="utf-8")
AGAIN = "run python docs/claims.py, and read the sentences around the figures"


def test_the_table_of_the_readme():
    assert claims.table() in README, AGAIN


def test_each_model_has_one_line_with_all_that_it_is_compared_with():
    first, *others = [line.split("|")[1:-1] for line in claims.table().splitlines()[2:]]
    assert all(len(line) == 5 for line in (first, *others)) and len({line[0] for line in others}) == len(others)
    assert first[0] == " all-MiniLM-L6-v2, one text of 16 tokens "
    assert "torch float32" in first[3] and "onnxruntime float32" in first[3]
    assert "onnxruntime int8" in first[4] and "gossamer int8" in first[4]
    cells = sum(line[3].count("**") + line[4].count("**") for line in (first, *others))
    assert cells == 2 * len(claims.shown())  # no claim is lost


def test_the_three_numbers_of_the_home_page():
    page = claims.HOME.read_text(encoding="utf-8")
    places = [page.find(f"- **{number}**") for number in claims.numbers()]
    assert -1 not in places and places == sorted(places), AGAIN


def test_the_picture_of_the_home_page():
    assert claims.PICTURE.read_text(encoding="utf-8") == claims.picture(), AGAIN
    assert "figures/speedups.svg" in claims.HOME.read_text(encoding="utf-8")


def quality(name: str) -> float:
    return claims.result("encoder")["quality"][name]["cosine"]


def eager() -> dict[str, float]:
    return claims.result("encoder")["ms"]["1 x 16"]


def half_on_zen4() -> tuple[float, float]:
    """The smallest and the largest gain at 50 %, by number of tokens, over all shapes."""
    rows = [row for row in claims.result("cpu-avx512")["linear"] if row["threads"] == 1]
    dense = {(*row["shape"], row["tokens"]): row["us"] for row in rows if row["name"] == "dense"}
    gains = defaultdict(list)
    for row in rows:
        if row["name"] in ("unstructured 50%", "grouped 2:4"):
            gains[row["name"], row["tokens"]].append(dense[*row["shape"], row["tokens"]] / row["us"])
    means = [geometric_mean(values) for values in gains.values()]
    return min(means), max(means)


@pytest.mark.parametrize(
    "sentence",
    [
        f"keeps a cosine similarity of {quality('ours, 2:4 int8'):.2f} to the float32 embeddings",
        f"2:4 reaches {claims.result('recovery')[0]['cosine']:.3f}",
        f"after {claims.result('recovery')[0]['seconds']} seconds of training without labels",
        f"the 2:4 model takes {eager()['ours, 2:4 int8']:.1f} ms and onnxruntime int8 is faster",
        f"2:4 itself adds {eager()['ours, dense int8, deployed'] / eager()['ours, 2:4 int8, deployed']:.1f}x",
        "{:.1f}x to {:.1f}x on Zen 4".format(*half_on_zen4()),
    ],
)
def test_sentences_of_the_readme(sentence):
    assert sentence in README


def test_what_the_sentences_say():
    found = claims.result("encoder")["quality"]["ours, 2:4 int8"]
    assert found["found"] == 1.0  # "and finds every verse"
    assert eager()["onnxruntime int8 dynamic"] < eager()["ours, 2:4 int8"]
    assert claims.result("recovery")[0]["how"] == "2:4"
