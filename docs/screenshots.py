"""Take the manual's pictures of report and review page: `python docs/screenshots.py`, with Chromium installed.

They show the digits of `selex demo` with a few decisions made; that of Check shows cuts of scikit-image's
photos, which are free. A folder that `selex demo` wrote can be given as an argument, its `run` trained or not.
"""

from __future__ import annotations

import csv
import io
import os
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import skimage.data
import uvicorn
from PIL import Image, ImageEnhance, ImageFilter
from playwright.sync_api import Browser, Page, sync_playwright

from selex.cli.demo import TITLE
from selex.cli.demo import run_demo as run_demo
from selex.config import Config
from selex.discovery import discover
from selex.report.html import write_report
from selex.review.core.decisions import Decision
from selex.review.core.session import Review
from selex.review.recluster import recluster
from selex.review.server.app import create_app
from selex.review.server.guard import Door
from selex.review.server.serve import listen
from selex.runs.run import Run

IMAGES = Path(__file__).parent / "images"


def main(demo: Path | None) -> None:
    """Make a run, decide a little, serve it and take the pictures."""
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("error: no chromium; install it first (Debian: apt-get install chromium)")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        if demo is None:
            demo = Path(folder) / "demo"
            run_demo(demo, progress=True)
        report = write_report(Run.open(demo / "run"), Path(folder) / "report.html", demo / "truth.csv", title=TITLE)
        _take_report(browser, report)
        shutil.copytree(demo / "run", Path(folder) / "digits", ignore=shutil.ignore_patterns("review*"))
        review = Review(Path(folder) / "digits")
        digits = _novel_digits(demo)
        _decide(review, digits)
        with _served(review) as address:
            _take_all(browser, address, f"category/{review.state.names.index(digits['5'])}", demo)
        _take_photos(browser, Path(folder) / "spoilt")
        browser.close()


def _take_photos(browser: Browser, folder: Path) -> None:
    """Pictures of what is to be set aside, and of what was."""
    review = _spoilt(folder)
    with _served(review) as address:
        _take(browser, f"{address}check", "review-check", size=(1200, 640), act=_check)
    for kind in ("blurred", "dark"):
        rows = tuple(row for row, file in enumerate(review.results.files) if file.startswith(kind))
        review.decide(Decision("set_aside", rows=rows, reason=kind), review.version)
    review.ledger.close()
    recluster(folder / "run")
    review = Review(folder / "run")
    review.decide(Decision("set_aside", rows=(0, 1)), review.version)
    photos = tuple(aside[:2] for aside in review.aside.values())
    review.decide(Decision("restore", photos=photos[:2]), review.version)
    with _served(review) as address:
        _take(browser, f"{address}aside", "review-aside", size=(1200, 560))


@contextmanager
def _served(review: Review) -> Iterator[str]:
    """The address of a server, while this lasts."""
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        server = uvicorn.Server(uvicorn.Config(create_app(review, Door(port)), log_level="warning", lifespan="off"))
        threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True).start()
        yield f"http://127.0.0.1:{port}/"
        server.should_exit = True
        time.sleep(0.5)


def _spoilt(folder: Path) -> Review:
    """A run of cuts of scikit-image's free photos, among them blurred, dark and empty ones and a few twice."""
    photos = folder / "photos"
    photos.mkdir(parents=True)
    for name in ("astronaut", "chelsea", "coffee", "rocket"):
        whole = Image.fromarray(getattr(skimage.data, name)())
        width, height = whole.width // 4, whole.height // 3
        for number in range(12):
            x, y = number % 4 * width, number // 4 * height
            whole.resize((240, 240), Image.Resampling.BICUBIC, (x, y, x + width, y + height)).save(
                photos / f"{name} {number:02d}.png"
            )
    for number, (name, damage) in enumerate(DAMAGES):
        for file in sorted(photos.glob(f"* 0{number + 4}.png"))[:3]:
            with Image.open(file) as image:
                damage(image).save(photos / f"{name} {file.stem}.jpg")
            if name != "again":
                file.unlink()
    os.environ["SELEX_CACHE"] = str(folder / "cache")
    discover(Config.of(str(photos), categories=4, backbone="pixels"), folder / "run")
    return Review(folder / "run")


DAMAGES: list[tuple[str, Callable[[Image.Image], Image.Image]]] = [
    ("blurred", lambda image: image.filter(ImageFilter.GaussianBlur(9))),
    ("dark", lambda image: ImageEnhance.Brightness(image).enhance(0.06)),
    ("empty", lambda image: Image.new("RGB", image.size, (205, 210, 215))),
    ("again", lambda image: ImageEnhance.Brightness(image).enhance(1.1)),
]


def _check(page: Page) -> None:
    page.click("#act-check")
    page.wait_for_selector(".finding", timeout=60_000)
    page.wait_for_timeout(1500)  # thumbnails are made now


def _novel_digits(demo: Path) -> dict[str, str]:
    """The name of the novel category that holds most images of each digit."""
    with open(demo / "truth.csv") as truth, open(demo / "run" / "clusters.csv") as clusters:
        digit = {row["file"]: row["label"] for row in csv.DictReader(truth)}
        pairs = [(digit[row["file"]], row["category"]) for row in csv.DictReader(clusters) if row["known"] == "0"]
    return {digit: category for (digit, category), _ in reversed(Counter(pairs).most_common())}


def _decide(review: Review, digits: dict[str, str]) -> None:
    for digit, name in (("6", "six"), ("7", "seven")):
        review.decide(Decision("name", category=review.state.names.index(digits[digit]), name=name), review.version)
    review.decide(Decision("confirm", category=0), review.version)


def _take_all(browser: Browser, address: str, five: str, demo: Path) -> None:
    def choose(page: Page) -> None:
        page.locator(".tile .shot").nth(1).click()
        page.locator(".tile .shot").nth(4).click(modifiers=["Shift"])

    def split(page: Page) -> None:
        page.click("#act-split")
        page.wait_for_selector("#split-go")

    def like(page: Page) -> None:
        page.keyboard.press("f")
        page.set_input_files("#similar-file", str(sorted((demo / "new").iterdir())[3]))
        page.wait_for_selector("#similar-result .tile", timeout=60_000)

    def drawn(page: Page) -> None:
        page.wait_for_selector("#map-says:has-text('images')", timeout=60_000)

    _take(browser, address, "review")
    _take(browser, f"{address}map", "review-map", act=drawn)
    _take(browser, f"{address}map", "review-map-phone", size=(390, 780), act=drawn)
    _take(browser, address, "review-similar", size=(1200, 640), act=like)
    _take(browser, f"{address}{five}", "review-dark", scheme="dark", act=choose)
    _take(browser, f"{address}{five}", "review-split", act=split)
    _take(browser, address, "review-phone", size=(390, 780))


def _take_report(browser: Browser, report: Path) -> None:
    def scroll(page: Page) -> None:
        page.locator("#map svg").first.scroll_into_view_if_needed()

    _take(browser, report.as_uri(), "report-top", size=(1100, 960))
    _take(browser, f"{report.as_uri()}#map", "report-map", scheme="dark", size=(1100, 780), act=scroll)


def _take(browser: Browser, address: str, name: str, scheme="light", size=(1200, 720), act=None) -> None:  # type: ignore[no-untyped-def]
    context = browser.new_context(color_scheme=scheme, viewport={"width": size[0], "height": size[1]})
    page = context.new_page()
    page.goto(address)
    if act:
        act(page)
    page.wait_for_load_state("networkidle")
    page.mouse.move(0, 0)
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB").quantize(256, Image.Quantize.FASTOCTREE)
    picture.save(IMAGES / f"{name}.png", optimize=True)
    context.close()
    print(f"wrote docs/images/{name}.png, {(IMAGES / f'{name}.png').stat().st_size:,} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else None)
