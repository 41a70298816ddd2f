import io

from rich.console import Console

from gossamer.app.kinds import by_kind, groups


def test_rows_of_a_kind_must_share_what_is_named():
    rows = [{"name": f"{i}.weight", "format": f} for i, f in enumerate(["CSR", "Dense", "CSR"])]
    assert {key: len(same) for key, same in groups(rows, "format").items()} == {
        ("*.weight", "CSR"): 2,
        ("*.weight", "Dense"): 1,
    }


def test_times_of_a_kind_are_added_up():
    row = {"format": "CSR()", "sparsity": 0.5, "dense_us": 4.0, "us": 2.0, "bytes": 1, "dense_bytes": 2, "clear": True}
    text = io.StringIO()
    Console(file=text, width=120).print(by_kind([{"name": f"{i}.weight", **row} for i in range(3)]))
    assert text.getvalue().split()[-8:] == ["*.weight", "CSR()", "3", "50.0%", "12", "6", "2.00x", "0.50x"]


def test_times_that_are_in_doubt_are_marked():
    row = {"format": "CSR()", "sparsity": 0.5, "dense_us": 4.0, "us": 2.0, "bytes": 1, "dense_bytes": 2}
    text = io.StringIO()
    Console(file=text, width=120).print(by_kind([{"name": f"{i}.weight", **row, "clear": i > 0} for i in range(3)]))
    assert text.getvalue().split()[-3:] == ["2.00x", "?", "0.50x"]
