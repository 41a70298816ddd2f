from gossamer.app.demo import show


def test_the_table_shows_gains_over_the_first_row():
    sizes = dict.fromkeys(show.SIZES)
    found = [show.Row(name, 0.5, 0.9, 1.0, 50.0, dict.fromkeys(sizes, ms)) for name, ms in (("a", 8.0), ("b", 2.0))]
    table = show.table(found)
    assert [str(c.header) for c in table.columns][-4:] == ["1 x 16 tokens", "gain", "8 x 64 tokens", "gain"]
    assert list(table.columns[-1].cells) == ["1.0x", "4.0x"]
    assert show.plain(found)[1]["gain"] == {"1 x 16 tokens": 4.0, "8 x 64 tokens": 4.0}
