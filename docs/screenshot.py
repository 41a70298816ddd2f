"""Take the picture of a report for docs/how-to/report.md, in chromium.

python docs/screenshot.py                     runs the demo first
python docs/screenshot.py gossamer-report.html
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

PICTURE = Path(__file__).parent / "assets" / "report.png"


def main() -> None:
    """Open the page, and keep the picture."""
    if len(sys.argv) > 1:
        page = Path(sys.argv[1]).resolve()
    else:
        from gossamer.app import demo

        page = Path(tempfile.mkdtemp()) / "demo.html"
        demo.run(page)
    browser_path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser_path is None:
        raise SystemExit("there is no browser: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        shot = browser.new_page(viewport={"width": 1180, "height": 1500})
        shot.goto(page.as_uri())
        shot.screenshot(path=PICTURE)
        browser.close()
    print(f"{PICTURE}: {PICTURE.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
