"""Any results as tables: what is a row, what a figure, and how values are written."""

import io

from rich.console import Console

from gossamer.app.bench.show import rows_of, shown, tables_of


def text(table):
    console = Console(file=io.StringIO(), width=100)
    console.print(table)
    return console.file.getvalue()


def test_values_by_hand():
    assert shown(None) == "" and shown(1234567.0) == "1.235e+06" and shown(1234.4) == "1,234"
    assert shown(0.00012) == "0.00012" and shown(7) == "7"
    assert shown((768, 3072)) == "768 x 3072" and shown(["a", 1.5]) == "a, 1.5" and shown(True) == "True"


def test_a_column_for_each_name_and_numbers_to_the_right():
    table = rows_of("times", [{"name": "dense", "us": 10.0}, {"name": "CSR", "us": 2.5, "gain": 4.0}])
    assert [(str(c.header), c.justify) for c in table.columns] == [("name", "left"), ("us", "right"), ("gain", "right")]
    assert "2.5" in text(table) and table.row_count == 2


def test_nested_results_have_the_path_as_title():
    tables = list(tables_of({"isa": "avx2", "part": {"x": 1, "rows": [{"a": 1}]}, "empty": [], "list": [1, 2]}))
    assert [t.title for t in tables] == [None, "part", "part rows"]
    assert list(tables_of({})) == []
