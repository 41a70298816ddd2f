"""The built site, as a reader gets it from a folder: links, and search without a server. `make docs` builds it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SITE = ROOT / "site"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

pytestmark = pytest.mark.skipif(not (SITE / "index.html").exists(), reason="no site: make docs builds it")


def test_no_link_is_broken():
    answer = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "links.py"), str(SITE)], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stdout


@pytest.mark.skipif(CHROMIUM is None, reason="needs a browser: apt-get install chromium")
def test_search_works_from_a_folder_and_nothing_is_loaded_from_elsewhere():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        loaded, errors = [], []
        page.on("request", lambda request: loaded.append(request.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto((SITE / "how-to" / "save.html").as_uri())
        page.click(".md-search__form")
        page.type("input.md-search__input", "quantize")
        page.wait_for_selector(".md-search-result__item", timeout=60_000)
        assert "matching document" in page.inner_text(".md-search-result__meta")
        assert not errors
        assert all(url.startswith(("file:", "data:", "about:", "blob:")) for url in loaded)
        browser.close()
