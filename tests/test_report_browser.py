"""The report as a browser shows it: from disk, without network, by keyboard, on a phone, in the dark, printed."""

import itertools
import shutil

import pytest

from commands import digit_photos
from selex import Config, discover
from selex.report.html import write_report
from selex.runs.writer import RunWriter

CHROMIUM = shutil.which("chromium")
try:
    from playwright.sync_api import expect, sync_playwright
except ImportError:
    sync_playwright = None

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="needs a browser: the command `chromium` is not there"),
    pytest.mark.skipif(sync_playwright is None, reason="needs the package playwright"),
]

LONG = "Ein_sehr_langer_Name_ohne_ein_einziges_Leerzeichen_darin_wie_er_in_Tabellen_vorkommt"
HOSTILE = "<img src=x onerror=document.title='run'>"

# Contrast of every piece of text with what is behind it, as WCAG 2 defines it; returns those below AA.
TOO_FAINT = """() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const part = (value) => (value /= 255) <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour.length < 4 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const found = [];
  let seen = 0;
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || !element.checkVisibility() || element.closest("script")) continue;
    const style = getComputedStyle(element);
    const colour = element.closest("svg") ? style.fill : style.color;
    const [high, low] = [light(parse(colour)), light(behind(element))].sort((a, b) => b - a);
    seen += 1;
    if ((high + 0.05) / (low + 0.05) < 4.5) found.push([walker.currentNode.textContent.trim(), colour]);
  }
  return [seen, found];
}"""


@pytest.fixture(scope="module")
def browser():
    expect.set_options(timeout=60_000)
    with sync_playwright() as tool:
        started = tool.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Digits with hard names, training curves and truth: every part of the page."""
    home = tmp_path_factory.mktemp("browser")
    truth = digit_photos(home / "photos", per_digit=40, digits=10, n_known=5)
    (home / "photos/digit 0").rename(home / "photos" / HOSTILE)
    (home / "photos/digit 1").rename(home / "photos" / LONG)
    (home / "photos/unlabelled/bad.png").write_bytes(b"no image")
    config = Config.of(str(home / "photos"), categories=14, backbone="pixels")
    run = discover(config, home / "run", store=home / "store")
    for epoch in range(20):
        RunWriter(run.folder).log(
            step="epoch", epoch=epoch, loss=5 / (epoch + 1), use=3.0, sse=2.0, agreement=0.9, sizes=[3, 9, 20]
        )
    lines = [f"{file},{LONG if digit == 1 else digit}" for file, digit in truth.items()]
    (home / "truth.csv").write_text("\n".join(["file,label", *lines]) + "\n")
    return write_report(run, home / "report.html", home / "truth.csv")


@pytest.fixture
def open_page(browser, report):
    """Opens the report as given; at the end nothing was complained about and nothing was asked of the network."""
    complaints, asked, pages = [], [], []

    def opened(**how):
        page = browser.new_page(**how)
        page.set_default_timeout(60_000)
        pages.append(page)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(report.as_uri())
        return page

    yield opened
    for page in pages:
        page.close()
    assert complaints == []
    assert [url for url in asked if not url.startswith("data:")] == [report.as_uri()] * len(pages)


def test_it_opens_from_disk_and_shows_every_image(open_page):
    page = open_page()
    assert page.title() == f"photos: {page.locator('article').count()} categories"
    broken = "images => images.filter(image => !image.complete || !image.naturalWidth).length"
    assert page.locator("img").count() > 100
    assert page.locator("img").evaluate_all(broken) == 0
    assert page.get_by_role("heading", name=HOSTILE).is_visible()


def test_the_tree_is_folded_and_unfolded_by_keyboard(open_page):
    page = open_page()
    first = page.locator("#tree details").first
    below = first.locator("li").first
    assert below.is_visible()
    page.get_by_role("button", name="Expand all").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.tagName") == "SUMMARY"
    page.keyboard.press("Enter")
    assert not below.is_visible()
    page.keyboard.press("Space")
    assert below.is_visible()
    page.get_by_role("button", name="Collapse all", exact=True).press("Enter")
    assert page.locator("#tree details[open]").count() == 0
    page.get_by_role("button", name="Expand all").press("Enter")
    assert page.locator("#tree details:not([open])").count() == 0


def test_it_works_without_scripts(open_page):
    page = open_page(java_script_enabled=False)
    below = page.locator("#tree details").first.locator("li").first
    assert below.is_visible()
    page.locator("#tree summary").first.click()
    assert not below.is_visible()
    assert page.locator(".filter").is_hidden()
    assert page.locator("#tree button").first.is_hidden()


def test_the_keyboard_reaches_everything_and_shows_where_it_is(open_page):
    page = open_page(viewport={"width": 1000, "height": 700})
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the result"
    assert page.locator("[autofocus]").count() == 0, "while it loads, it would take the focus away, or complain"
    page.keyboard.press("Enter")
    assert page.evaluate("location.hash") == "#found"
    reach = "elements => elements.filter(element => element.tabIndex < 0 && !element.closest('svg')).length"
    assert page.locator("a, button, summary, input, .scroll").evaluate_all(reach) == 0
    page.locator("nav a").first.focus()
    page.keyboard.press("Tab")
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert page.evaluate(outline) == "solid"


def test_the_filter_leaves_the_cards_that_match_and_a_link_brings_a_hidden_one_back(open_page):
    page = open_page()
    cards = page.locator("article:visible")
    count = cards.count()
    page.get_by_label("Show only categories named").fill("NOVEL-")
    assert 0 < cards.count() < count
    assert all("novel" in text for text in page.locator("article:visible .kind").all_inner_texts())
    page.locator("#tree a").filter(has_text=LONG).click()
    expect(cards).to_have_count(count)
    assert page.locator("article").filter(has=page.get_by_role("heading", name=LONG)).is_visible()


@pytest.mark.parametrize("width", [320, 390, 768])
def test_nothing_is_wider_than_a_phone(open_page, width):
    page = open_page(viewport={"width": width, "height": 844}, device_scale_factor=2, is_mobile=True, has_touch=True)
    page.get_by_role("button", name="Expand all").tap()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    beyond = "elements => elements.filter(one => one.scrollWidth > one.clientWidth).map(one => one.className)"
    assert page.locator("#map, #map *:not(svg *)").evaluate_all(beyond) == [], "the map fits, without a swipe"
    assert page.locator("svg.plane").evaluate("one => one.getBoundingClientRect().right") <= width
    tall = "cells => Math.max(...cells.map(cell => cell.getBoundingClientRect().height))"
    assert page.locator("tbody th, tbody td").evaluate_all(tall) < 150, "a narrow column breaks names letter by letter"
    small = (
        "elements => elements.map(element => parseFloat(getComputedStyle(element).fontSize)).filter(size => size < 12)"
    )
    assert page.locator("main p, main li, main td, main figcaption, main h3").evaluate_all(small) == []
    lines = "labels => Math.max(...labels.map(label => label.getClientRects()[0].height))"
    assert page.locator(".meter-label").evaluate_all(lines) < 30, "of one line"


@pytest.mark.parametrize("width", [320, 390, 768])
def test_names_below_bars_do_not_collide(open_page, width):
    """Reports of up to twelve categories have them; this one has more, so they are put there."""
    page = open_page(viewport={"width": width, "height": 844})
    names = "".join(f"<li><bdi>novel-{number}</bdi></li>" for number in range(12))
    page.locator(".bars").evaluate(
        "(bars, names) => bars.insertAdjacentHTML('beforeend', names)", f"<ol class=under>{names}</ol>"
    )
    boxes = "names => names.map(name => name.getBoundingClientRect()).map(box => [box.left, box.right])"
    under = page.locator(".under bdi").evaluate_all(boxes)
    assert len(under) == 12
    assert all(right <= left for (_, right), (left, _) in itertools.pairwise(under))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_has_enough_contrast(open_page, scheme):
    page = open_page(color_scheme=scheme)
    seen, faint = page.evaluate(TOO_FAINT)
    assert seen > 300
    assert faint == []
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == {"light": "rgb(245, 246, 248)", "dark": "rgb(18, 22, 26)"}[scheme]


def test_it_is_printed_unfolded_and_on_white(open_page, tmp_path):
    page = open_page(color_scheme="dark")
    page.get_by_role("button", name="Collapse all", exact=True).click()
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details:not([open])").count() == 0
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator("nav").is_visible()
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("#tree details[open]").count() == 0
    page.pdf(path=tmp_path / "page.pdf", format="A4")
    assert (tmp_path / "page.pdf").stat().st_size > 50_000


@pytest.mark.parametrize(("width", "height", "least"), [(1280, 800, 8), (390, 844, 8), (320, 640, 4)])
def test_photos_are_on_the_first_screen(open_page, width, height, least):
    page = open_page(viewport={"width": width, "height": height})
    ends = "images => images.map(image => image.getBoundingClientRect().bottom)"
    assert sum(0 < end < height for end in page.locator(".gallery img:visible").evaluate_all(ends)) >= least
    page.locator(".gallery a").first.click()
    assert page.evaluate("document.querySelector('.card:target') !== null")


@pytest.mark.parametrize("width", [320, 390, 1280])
def test_long_names_leave_photos_as_wide_as_the_others(open_page, width):
    page = open_page(viewport={"width": width, "height": 844})
    page.locator(".gallery bdi").nth(1).evaluate("name => name.textContent = 'Red-cockaded Woodpecker of the north'")
    sizes = page.locator(".gallery img:visible").evaluate_all("all => all.map(one => Math.round(one.width))")
    assert max(sizes) - min(sizes) <= 1
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_click_or_a_key_enlarges_an_image_and_arrows_turn(open_page):
    page = open_page()
    card = page.locator("article").first
    images, large = card.locator(".pictures").first.locator("img"), page.locator("#large")
    images.nth(1).click()
    expect(large).to_be_visible()
    expect(page.get_by_role("button", name="Close")).to_be_focused()
    shown = large.locator("img")
    expect(shown).to_have_attribute("alt", images.nth(1).get_attribute("alt"))
    assert shown.bounding_box()["width"] > 3 * images.nth(1).bounding_box()["width"]
    page.keyboard.press("ArrowRight")
    expect(shown).to_have_attribute("alt", images.nth(2).get_attribute("alt"))
    page.get_by_role("button", name="Previous").click()
    expect(shown).to_have_attribute("alt", images.nth(1).get_attribute("alt"))
    page.keyboard.press("Escape")
    expect(large).to_be_hidden()
    images.nth(3).focus()
    page.keyboard.press("Enter")
    expect(shown).to_have_attribute("alt", images.nth(3).get_attribute("alt"))
    page.get_by_role("button", name="Close").click()
    expect(images.nth(3)).to_be_focused()


def test_all_of_a_category_is_unfolded(open_page):
    page = open_page()
    fold = page.locator("article details.all").first
    assert not fold.locator("img").first.is_visible()
    fold.locator("summary").click()
    count = int(fold.locator("summary").text_content().split()[1])
    assert fold.locator("img:visible").count() == count


def test_axe_finds_no_serious_fault(open_page):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page = open_page(bypass_csp=True)  # axe is a script of another's: only the test lets it in
    faults = axe.run(page).response["violations"]
    assert [fault["id"] for fault in faults if fault["impact"] in ("serious", "critical")] == []
