"""The page in a real browser: it opens without a word on the console, sorts, and fits a phone, light and dark."""

import os
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

import gossamer as gs

api = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
LOOKS = Path(__file__).parent / "looks"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs a browser: apt-get install chromium")


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """A page with everything a page can have."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = gs.train.RigL(model, optimizer, sparsity=0.8, every=1, until=100)
    for _ in range(3):
        model(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()
        method.step()
    path = tmp_path_factory.mktemp("report") / "page.html"
    more = {"training": method, "curves": {"loss": [3.0, 2.0, 1.0]}, "accuracy": [("a", 0.0, 0.9), ("b", 0.8, 0.85)]}
    gs.report(model, path, tokens=[1, 4], title="a <b>bold</b> title", **more)
    return path.as_uri()


@pytest.fixture(scope="module")
def browser():
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser, url):
    """Opens the page; at the end nothing may have been said or fetched."""
    said, fetched, contexts = [], [], []

    def opened(width=1200, height=900, scheme="light"):
        contexts.append(browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme))
        page = contexts[-1].new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: fetched.append(request.url))
        page.goto(url)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert said == []
    assert [u for u in fetched if not u.startswith("data:")] == [url] * len(contexts)


def column(page, number):
    cells = page.locator("table.sorts").first.locator(f"tbody tr td:nth-child({number})")
    return [cell.get_attribute("data-v") for cell in cells.all()]


def test_sorts_by_click_and_back(open_page):
    page = open_page()
    assert page.title() == "a <b>bold</b> title"
    titles = page.locator("table.sorts").first.locator("th").all_inner_texts()
    number = 1 + next(i for i, title in enumerate(titles) if title.startswith("sparsity"))
    button = page.locator("table.sorts").first.locator("th button").nth(number - 1)
    before = column(page, number)
    assert len(set(before)) == 3
    button.click()
    assert column(page, number) == sorted(before, key=float, reverse=True)
    button.click()
    assert column(page, number) == sorted(before, key=float)
    page.locator("table.sorts").first.locator("th button").first.click()
    assert column(page, 1) == ["0.weight", "2.weight", "4.weight"]


def test_has_every_section_and_draws_it(open_page):
    page = open_page()
    heads = page.locator("h2").all_inner_texts()
    wanted = ["Layers", "Sparsity by layer", "Masks", "Roofline", "Training", "Accuracy against sparsity"]
    assert [h for h in heads if h != "Roofline"] == [w for w in wanted if w != "Roofline"]  # needs a compiler
    for svg in page.locator("figure svg").all():
        box = svg.bounding_box()
        assert box["width"] > 100 and box["height"] > 20


@pytest.mark.parametrize("width", [360, 390])
def test_fits_a_phone(open_page, width):
    page = open_page(width, 800)
    assert (
        page.evaluate("document.documentElement.scrollWidth") == width
    )  # no scrolling sideways; tables have their own
    assert page.evaluate("parseFloat(getComputedStyle(document.body).fontSize)") >= 15
    smallest = page.evaluate(
        """Math.min(...[...document.querySelectorAll("figure svg text")].map((text) => {
             const svg = text.ownerSVGElement;
             return 12 * svg.getBoundingClientRect().width / svg.viewBox.baseVal.width; }))"""
    )
    assert smallest >= 9


def test_light_and_dark(open_page):
    colors = {}
    for scheme in ("light", "dark"):
        page = open_page(scheme=scheme)
        style = "getComputedStyle(document.body)"
        colors[scheme] = [page.evaluate(f"{style}.{what}") for what in ("backgroundColor", "color")]
        luma = [sum(map(int, c[4:-1].split(","))) / 3 for c in colors[scheme]]
        assert abs(luma[0] - luma[1]) > 150  # dark on light, or light on dark
    assert colors["light"] != colors["dark"]


@pytest.mark.parametrize("width", [390, 1280])
def test_kinds_open_and_the_filter_leaves_what_fits(browser, tmp_path, width):
    layers = [nn.Linear(8, 8, bias=False) for _ in range(20)]
    gs.report(gs.sparsify_(nn.Sequential(*layers), "75%", format=gs.CSR()), tmp_path / "page.html", measure=False)
    page = browser.new_page(viewport={"width": width, "height": 800})
    page.goto((tmp_path / "page.html").as_uri())
    assert not page.locator("details li").first.is_visible()
    page.locator("details summary").first.click()
    assert page.locator("details li").first.is_visible()
    if width == 390:  # a title without a figure below it
        assert not page.locator("details li .n:empty").first.is_visible()
    page.locator("input.filter").fill("csr 7.weight")
    assert page.locator("table.sorts tbody tr:visible td:first-child").all_inner_texts() == ["7.weight", "17.weight"]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()


def block(width):
    layers = {name: nn.Linear(width, width, bias=False) for name in ("query", "key", "value", "output")}
    return nn.ModuleDict(layers)


def many(tmp_path, blocks):
    """A report of a model with many layers, as a path."""
    torch.manual_seed(0)
    model = gs.sparsify_(nn.Sequential(*(block(64) for _ in range(blocks))), "75%", format=gs.CSR())
    gs.report(model, tmp_path / "many.html", measure=False, title="many layers")
    return (tmp_path / "many.html").as_uri()


def test_all_masks_are_drawn_on_demand(browser, tmp_path):
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(many(tmp_path, 5))
    assert page.locator("figure .pair svg").count() == 2 * 16
    assert page.locator("canvas").count() == 2 * 4 and not page.locator("canvas").first.is_visible()
    page.locator("details.more summary").click()
    ink = """[...document.querySelectorAll("canvas")].map((canvas) => {
               const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
               return data.filter((value, i) => i % 4 == 3 && value > 0).length / (canvas.width * canvas.height); })"""
    page.wait_for_function(f"({ink})[0] > 0")
    shares = page.evaluate(ink)
    assert all(abs(share - 0.25) < 0.05 for share in shares[::2])  # corners: a quarter is kept
    assert all(share > 0.5 for share in shares[1::2])  # by density: something in most cells
    page.close()


def test_500_layers_load(browser, tmp_path):
    """The page is small enough to send, and its parts that are folded away cost nothing."""
    url = many(tmp_path, 125)
    assert (tmp_path / "many.html").stat().st_size < 5e6
    page = browser.new_page(viewport={"width": 390, "height": 844})
    page.goto(url)
    assert page.locator("table.sorts tbody tr").count() == 500
    page.locator("input.filter").fill("124.value")
    assert page.locator("table.sorts tbody tr:visible").count() == 1
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.close()


OVERLAPS = """() => {
  const seen = [...document.querySelectorAll(".tile, h2, h3, figure, .scroll, .filter, p, details.more")];
  const boxes = seen.map((e) => [e, e.getBoundingClientRect()]).filter(([, b]) => b.width && b.height);
  const bad = [];
  for (const [a, r] of boxes) for (const [b, s] of boxes) {
    if (a === b || a.contains(b) || b.contains(a)) continue;
    const width = Math.min(r.right, s.right) - Math.max(r.left, s.left);
    const height = Math.min(r.bottom, s.bottom) - Math.max(r.top, s.top);
    if (width > 1 && height > 1) bad.push(a.textContent.slice(0, 40) + " / " + b.textContent.slice(0, 40));
  }
  return bad; }"""


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_overlaps(open_page, width):
    assert open_page(width).evaluate(OVERLAPS) == []


COVERED = """() => {
  const bad = [];
  for (const plot of document.querySelectorAll("svg")) {
    const words = [...plot.querySelectorAll("text")].map((e) => [e, e.getBoundingClientRect()]);
    const marks = [...plot.querySelectorAll("text, circle")].map((e) => [e, e.getBoundingClientRect()]);
    for (const [a, r] of words) for (const [b, s] of marks) {
      const width = Math.min(r.right, s.right) - Math.max(r.left, s.left);
      const height = Math.min(r.bottom, s.bottom) - Math.max(r.top, s.top);
      if (a !== b && width > 2 && height > 3) bad.push(a.textContent + " / " + b.outerHTML.slice(0, 60));
    }
  }
  return bad; }"""


@pytest.mark.parametrize("width", [390, 1280])
def test_words_in_plots_are_free_of_other_words_and_of_points(open_page, width):
    assert open_page(width).evaluate(COVERED) == []


@pytest.mark.parametrize("look", ["desktop", "phone", "dark"])
def test_it_looks_as_a_person_approved(browser, tmp_path, look):
    """Coarsely, so that another font is no difference: GOSSAMER_APPROVE=1 writes what you then look at."""
    pillow = pytest.importorskip("PIL.Image")
    width, height = (390, 844) if look == "phone" else (1280, 900)
    scheme = "dark" if look == "dark" else "light"
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    url = many(tmp_path, 6)
    page.goto(url)
    page.evaluate("document.querySelector('header p').textContent = 'a machine'")
    page.screenshot(path=tmp_path / "now.png")
    page.close()
    approved = LOOKS / f"{look}.png"
    if os.environ.get("GOSSAMER_APPROVE"):
        approved.parent.mkdir(exist_ok=True)
        pillow.open(tmp_path / "now.png").convert("P", palette=1, colors=64).save(approved, optimize=True)
    both = [pillow.open(path).convert("RGB") for path in (tmp_path / "now.png", approved)]
    small = [picture.resize((width // 40, height // 40), pillow.Resampling.BOX) for picture in both]
    now, then = (torch.tensor(list(picture.tobytes())).float() for picture in small)
    assert float((now - then).abs().mean()) < 8  # of 255
