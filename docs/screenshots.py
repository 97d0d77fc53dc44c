"""Take the pictures of the review page that the manual shows: `python docs/screenshots.py`, with Chromium installed.

They show the digits of `selex demo` with a few decisions made. A folder that it wrote can be given as an argument.
"""

from __future__ import annotations

import csv
import io
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import uvicorn
from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from selex.demo import run as run_demo
from selex.review.core.decisions import Decision
from selex.review.core.session import Review
from selex.review.server.app import create_app
from selex.review.server.guard import Door
from selex.review.server.serve import listen

IMAGES = Path(__file__).parent / "images"


def main(demo: Path | None) -> None:
    """Make a run, decide a little, serve it and take the pictures."""
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("error: no chromium; install it first (Debian: apt-get install chromium)")
    with tempfile.TemporaryDirectory() as folder, listen("127.0.0.1", 0) as listener:
        if demo is None:
            demo = Path(folder) / "demo"
            run_demo(demo, progress=True)
        shutil.copytree(demo / "run", Path(folder) / "digits", ignore=shutil.ignore_patterns("review*"))
        review = Review(Path(folder) / "digits")
        digits = _novel_digits(demo)
        _decide(review, digits)
        port = listener.getsockname()[1]
        server = uvicorn.Server(uvicorn.Config(create_app(review, Door(port)), log_level="warning", lifespan="off"))
        threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True).start()
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            _take_all(browser, f"http://127.0.0.1:{port}/", f"category/{review.state.names.index(digits['5'])}")
            browser.close()
        server.should_exit = True
        time.sleep(0.5)


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


def _take_all(browser: Browser, address: str, five: str) -> None:
    def choose(page: Page) -> None:
        page.locator(".tile .shot").nth(1).click()
        page.locator(".tile .shot").nth(4).click(modifiers=["Shift"])

    def split(page: Page) -> None:
        page.click("#act-split")
        page.wait_for_selector("#split-go")

    _take(browser, address, "review")
    _take(browser, f"{address}{five}", "review-dark", scheme="dark", act=choose)
    _take(browser, f"{address}{five}", "review-split", act=split)
    _take(browser, address, "review-phone", size=(390, 780))


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
