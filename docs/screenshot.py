"""Take the pictures of docs/assets in chromium: the report, and the site on a desktop, on a phone and in dark mode.

make docs && python docs/screenshot.py                 runs the demo first, for its report
make docs && python docs/screenshot.py gossamer-report.html
make docs && python docs/screenshot.py --site          only the pages of the site
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

ASSETS = Path(__file__).parent / "assets"
SITE = Path(__file__).parents[1] / "site"
#: Name, width, height, colours.
LOOKS = (("desktop", 1280, 900, "light"), ("phone", 390, 844, "light"), ("dark", 1280, 900, "dark"))


def main() -> None:
    """Open the pages, and keep the pictures."""
    argument = sys.argv[1] if len(sys.argv) > 1 else None
    report = None if argument == "--site" else Path(argument).resolve() if argument else _demo()
    browser_path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser_path is None:
        raise SystemExit("there is no browser: apt-get install chromium")
    pages = {"home": SITE / "index.html", "recipe": SITE / "recipes" / "bert-cpu.html"}
    if report is not None:
        pages["report"] = report
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        if report is not None:
            _take(browser, report, ASSETS / "report.png", 1180, 1500, "light")
        for name, page in pages.items():
            for look, width, height, colours in LOOKS:
                _take(browser, page, ASSETS / "looks" / f"{name}-{look}.jpg", width, height, colours)
        browser.close()


def _demo() -> Path:
    from gossamer.app import demo

    page = Path(tempfile.mkdtemp()) / "demo.html"
    demo.run(page)
    return page


def _take(browser: Any, page: Path, picture: Path, width: int, height: int, colours: str) -> None:
    picture.parent.mkdir(exist_ok=True)
    shot = browser.new_page(viewport={"width": width, "height": height}, color_scheme=colours)
    shot.goto(page.as_uri())
    shot.wait_for_timeout(500)
    if shot.evaluate("document.documentElement.scrollWidth") > width:
        print(f"{page.name} is wider than {width} pixels")
    shot.screenshot(path=picture, **({} if picture.suffix == ".png" else {"quality": 60}))
    shot.close()
    print(f"{picture}: {picture.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
