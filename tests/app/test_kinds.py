import pytest

from gossamer.app.kinds import groups, kind_of


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("layers.0.mlp.up_proj.weight", "layers.*.mlp.up_proj.weight"),
        ("layers.10.experts.3.w1", "layers.*.experts.*.w1"),
        ("conv2d.weight", "conv2d.weight"),
        ("0.weight", "*.weight"),
        ("7", "*"),
    ],
)
def test_numbers_become_stars(name, kind):
    assert kind_of(name) == kind


def test_rows_of_a_kind_must_share_what_is_named():
    rows = [{"name": f"{i}.weight", "format": f} for i, f in enumerate(["CSR", "Dense", "CSR"])]
    assert {key: len(same) for key, same in groups(rows, "format").items()} == {
        ("*.weight", "CSR"): 2,
        ("*.weight", "Dense"): 1,
    }
