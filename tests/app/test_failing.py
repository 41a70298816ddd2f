import click
import pytest

from gossamer.app.failing import failing_plainly


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ValueError("bad"), 2),
        (FileNotFoundError("gone"), 2),
        (NotImplementedError("no GPU"), 1),
        (OSError("disk full"), 1),
        (ModuleNotFoundError("No module named 'x'", name="x"), 1),
    ],
    ids=repr,
)
def test_exit_codes(error, code):
    with pytest.raises(click.ClickException) as found, failing_plainly("test"):
        raise error
    assert found.value.exit_code == code


def test_bugs_keep_their_traceback():
    with pytest.raises(ZeroDivisionError), failing_plainly("test"):
        1 / 0
