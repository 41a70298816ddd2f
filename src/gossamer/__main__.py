"""``python -m gossamer`` is the command ``gossamer``."""

from gossamer.app.cli import main

if __name__ == "__main__":
    main(prog_name="python -m gossamer")
