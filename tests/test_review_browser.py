"""The review page as a person uses it: Debian's Chromium against a real run of handwritten digits."""

import json
import re
import shutil
import time

import numpy as np
import pytest
from PIL import Image, ImageFilter

from commands import digit_photos, reseal, start
from review_runs import made_up_run
from selex import Config, Run, discover

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(not CHROMIUM, reason="needs Chromium (Debian: apt-get install chromium)")
sync_api = pytest.importorskip("playwright.sync_api")

NASTY = "<img src=x onerror=alert(1)>"
ODD_FILE = 'it\'s "odd" <b>é 日本\nline.png'


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A real run, and the folder it is in."""
    folder = tmp_path_factory.mktemp("digits")
    digit_photos(folder / "photos", per_digit=20, n_known=3, digits=6)
    Image.new("L", (8, 8), 200).save(folder / "photos" / "unlabelled" / ODD_FILE)
    config = Config.of(str(folder / "photos"), categories=6, backbone="pixels", refine="none")
    discover(config, folder / "run", store=folder / "store")
    return folder


@pytest.fixture(scope="module")
def browser():
    sync_api.expect.set_options(timeout=60_000)
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Served:
    """A server of its own copy of the run, and the pages that look at it."""

    def __init__(self, folder, browser, *options):
        self.folder, self.browser, self.contexts, self.wrong, self.options = folder, browser, [], [], options
        self.start(0)

    def start(self, port):
        (self.folder / ".stdout").unlink(missing_ok=True)
        self.process = start("review", "run", "--no-browser", "--port", port, *self.options, cwd=self.folder)
        told, end = self.folder / ".stdout", time.monotonic() + 60
        while not (found := re.search(r"http://127\.0\.0\.1:(\d+)/", told.read_text() if told.exists() else "")):
            assert self.process.is_alive(), (self.folder / ".stderr").read_text()
            assert time.monotonic() < end, "it does not start"
            time.sleep(0.02)
        self.address, self.port = found[0], int(found[1])

    def close(self):
        for context in self.contexts:
            context.close()
        self.kill()
        assert self.wrong == []

    def kill(self):
        self.process.kill()
        self.process.join()

    def page(self, path="", **options):
        """A page in a browser of its own; it may talk to this server only, and never shows an alert."""
        self.contexts.append(self.browser.new_context(**options))
        page = self.contexts[-1].new_page()
        page.set_default_timeout(60_000)
        page.on("request", lambda request: self._check(request.url.startswith(self.address), request.url))
        page.on("dialog", lambda dialog: self._check(False, f"alert: {dialog.message}"))
        page.on("pageerror", lambda error: self._check(False, str(error)))
        page.on("console", lambda said: self._check("Security Policy" not in said.text, said.text))
        page.goto(self.address + path)
        return page

    def _check(self, fine, what):
        if not fine:
            self.wrong.append(what)

    def api(self, path):
        return self.contexts[-1].request.get(self.address + path).json()

    def id_of(self, name):
        found = self.api("api/categories?sort=name")["categories"]
        return next(card["id"] for card in found if card["name"] == name)

    def sizes(self):
        return {card["name"]: card["size"] for card in self.api("api/categories")["categories"]}


@pytest.fixture
def served(made, browser, tmp_path, monkeypatch):
    shutil.copytree(made / "run", tmp_path / "run")
    shutil.copytree(made / "store", tmp_path / "cache" / "store")
    monkeypatch.setenv("SELEX_CACHE", str(tmp_path / "cache"))
    served = Served(tmp_path, browser)
    yield served
    served.close()


def said(page, text):
    """The page says so, after the server has."""
    sync_api.expect(page.locator("#toast")).to_contain_text(text)


def answer(page, text):
    """Type into the question for a category, and agree."""
    page.locator("#ask-text").fill(text)
    page.locator("#ask-go").click()


def test_name_merge_split_move_undo_export(served):
    page = served.page()
    before = served.sizes()
    with page.expect_navigation():
        page.click("text=novel-1 >> nth=-1")
    page.click("#act-name")
    answer(page, "robin")
    said(page, "Named novel-1 “robin”")
    sync_api.expect(page.locator("h1")).to_have_text("robin")

    page.click("#act-split")
    page.click("#split-go")
    said(page, "Split robin into parts of")
    sizes = served.sizes()
    assert sizes["robin"] + sizes["novel-4"] == before["novel-1"]

    page.locator(".tile .shot").nth(0).click()
    page.locator(".tile .shot").nth(2).click(modifiers=["Shift"])
    sync_api.expect(page.locator("#chosen strong")).to_have_text("3 selected")
    page.click("#chosen >> text=Move to…")
    answer(page, "wren")
    said(page, "Moved 3 images to the new category “wren”")
    assert served.sizes()["wren"] == 3

    page.goto(served.address)
    page.check("[aria-label='Select novel-4']")
    page.check("[aria-label='Select wren']")
    sync_api.expect(page.locator("#chosen strong")).to_have_text("novel-4 → wren")  # what has a name keeps it
    page.click("#chosen >> text=Merge")
    sync_api.expect(page.locator("#ask-text")).to_have_value("wren")  # offered; another can be typed or chosen
    sync_api.expect(page.locator("#ask-list li")).to_have_text(["“wren”", "“novel-4”"])
    page.click("#ask-go")
    said(page, "Merged novel-4 into wren")
    page.click("#undo")
    said(page, "Undone: merged")
    page.click("#redo")
    said(page, "Redone: merged")

    page.click("#export")
    page.check("input[value=csv]")
    page.click("#export-go")
    sync_api.expect(page.locator("#export-result")).to_contain_text("exports/csv-1.6.csv")
    table = (served.folder / "run" / "exports" / "csv-1.6.csv").read_text()
    assert table.count(",robin,") >= sizes["robin"] - 3
    page.keyboard.press("Escape")
    for _ in range(4):
        page.keyboard.press("z")
        said(page, "Undone")
        page.evaluate("document.getElementById('toast').textContent = ''")
    assert served.sizes() == before


def test_a_split_of_a_known_category_keeps_most_labels_and_is_in_view(served):
    page = served.page(viewport={"width": 1100, "height": 500})
    name = next(card["name"] for card in served.api("api/categories")["categories"] if card["known"])
    number = served.id_of(name)
    page.goto(f"{served.address}category/{number}#split")  # as a suggestion does
    page.locator("#split-go").wait_for()
    below = page.evaluate("document.getElementById('top').getBoundingClientRect().bottom")
    sync_api.expect(page.locator("#split h2")).to_be_in_viewport()
    assert page.locator("#split h2").bounding_box()["y"] >= below
    page.click("#split-go")
    said(page, f"Split {name} into parts of")
    images = served.api(f"api/categories/{number}")["images"]
    assert sum(image["labelled"] for image in images) > 7 / 2, "most labels that came with the photos stay"


def test_keyboard_only(served):
    page = served.page("?sort=name&filter=novel")
    page.keyboard.press("ArrowRight")  # into the grid: novel-1
    page.keyboard.press("n")
    page.keyboard.type("robin")
    sync_api.expect(page.locator("#ask-list li")).to_have_count(1)
    page.keyboard.press("Enter")
    said(page, "Named novel-1 “robin”")
    page.keyboard.press("Escape")
    page.locator("main").focus()
    page.keyboard.press("ArrowRight")
    for key in ("x", "ArrowRight", "x", "m"):
        page.keyboard.press(key)
    sync_api.expect(page.locator("#ask-text")).to_be_focused()
    page.keyboard.type("finch")
    page.keyboard.press("Enter")
    said(page, "now “finch”")
    page.keyboard.press("z")
    said(page, "Undone: merged")
    assert "finch" not in served.sizes()
    page.locator("main").focus()
    page.keyboard.press("ArrowRight")
    with page.expect_navigation():
        page.keyboard.press("Enter")
    assert "/category/" in page.url
    page.keyboard.press("s")
    sync_api.expect(page.locator("#split-go")).to_be_focused()
    page.keyboard.press("Enter")
    said(page, "Split")
    page.locator("main").focus()
    for key in ("ArrowRight", "Shift+ArrowRight", "Shift+ArrowRight", "v"):
        page.keyboard.press(key)
    page.keyboard.type("digit 0")
    sync_api.expect(page.locator("#ask-list li[aria-selected=true]")).to_contain_text("digit 0")
    page.keyboard.press("Enter")
    said(page, "Moved 3 images to digit 0")
    for key, text in (("c", "Confirmed"), ("Control+z", "Undone: confirmed"), ("Control+y", "Redone: confirmed")):
        page.keyboard.press(key)
        said(page, text)
    page.locator("main").focus()
    for keys, text in ((("ArrowRight", "x", "u"), "as unsure"), (("ArrowRight", "x", "j"), "aside")):
        for key in keys:
            page.keyboard.press(key)
        said(page, text)
    page.keyboard.press("?")
    sync_api.expect(page.locator("#help-dialog")).to_be_visible()
    page.locator("#single-keys").focus()
    page.keyboard.press("Space")
    page.keyboard.press("Escape")
    version = served.api("api/standing")["version"]
    page.keyboard.press("z")
    page.keyboard.press("Control+z")
    said(page, "Undone: set 1 image aside")
    assert int(served.api("api/standing")["version"].split(".")[1]) == int(version.split(".")[1]) + 1, "z alone is off"


def test_a_box_and_a_double_click(served):
    page = served.page("images?sort=typical")
    first, last = (page.locator(".tile .shot").nth(number).bounding_box() for number in (0, 2))
    page.mouse.move(first["x"] - 6, first["y"] + 20)
    page.mouse.down()
    page.mouse.move(last["x"] + 10, last["y"] + 40, steps=4)
    page.mouse.up()
    sync_api.expect(page.locator("#chosen strong")).to_have_text("3 selected")
    page.keyboard.press("Escape")
    sync_api.expect(page.locator("#chosen")).to_be_hidden()
    page.locator(".tile .shot").nth(1).dblclick()
    page.wait_for_url("**/image/*")
    assert page.locator("#like").is_visible()
    page.click("#act-set_aside")
    said(page, "Set 1 image aside")


def test_nothing_confirmed_is_lost_by_kill_9(served):
    page = served.page()
    page.goto(f"{served.address}category/{served.id_of('novel-2')}")
    page.click("#act-name")
    answer(page, "wren")
    said(page, "Named")
    page.locator(".tile .shot").nth(0).click()
    page.click("#chosen >> text=Set aside")
    said(page, "aside")
    served.kill()
    page.locator(".tile .shot").nth(1).click()
    page.click("#chosen >> text=Unsure")
    said(page, "The server does not answer: this was not saved")
    served.start(served.port)
    page.reload()
    sync_api.expect(page.locator("h1")).to_have_text("wren")
    assert [event["kind"] for event in served.api("api/history")["events"]] == ["decide", "decide"]
    assert served.api("api/standing")["set_aside"] == 1
    page.keyboard.press("z")
    said(page, "Undone: set 1 image aside")


def test_a_list_is_selected_with_its_other_pages(served):
    page, chosen = served.page("images"), "#chosen strong"
    page.keyboard.press("a")
    sync_api.expect(page.locator(chosen)).to_have_text("120 selected")
    page.click("text=Select all 121")
    sync_api.expect(page.locator(chosen)).to_have_text("121 selected, 1 on other pages")
    page.keyboard.press("Escape")
    sync_api.expect(page.locator("#chosen")).to_be_hidden()
    page.keyboard.press("A")
    sync_api.expect(page.locator(chosen)).to_have_text("121 selected, 1 on other pages")
    page.keyboard.press("u")
    said(page, "Marked 121 images as unsure")
    page.click(".far >> text=121 unsure")
    sync_api.expect(page.locator("h1")).to_have_text("121 images")
    sync_api.expect(page.get_by_role("link", name="Unsure", exact=True)).to_have_attribute("aria-current", "true")
    page.goto(served.address)
    sync_api.expect(page.locator(".card .facts").first).to_contain_text("unsure")


def test_keys_pressed_faster_than_the_page_is_shown(served):
    page = served.page("category/3")
    for key in "czZzZz":
        page.keyboard.press(key)
    sync_api.expect(page.locator("#redo")).to_be_enabled()
    sync_api.expect(page.locator("body")).to_have_attribute("data-version", "1.6")
    kinds = [event["kind"] for event in served.api("api/history")["events"]]
    assert kinds == ["undo", "redo", "undo", "redo", "undo", "decide"]
    assert not page.locator("#conflict").is_visible()


def test_next_is_decided_where_it_is_shown(served):
    page = served.page("next")
    page.keyboard.press("ArrowRight")
    first = page.locator(".idea .what").first.text_content()
    while not first.startswith("Name "):
        page.keyboard.press("ArrowRight")
        first = page.evaluate("document.activeElement.querySelector('.what').textContent")
    page.keyboard.press("n")
    answer(page, "robin")
    said(page, f"Named {first.removeprefix('Name ')} “robin”")
    sync_api.expect(page.locator(".idea", has_text=first)).to_have_count(0)
    known = page.locator(".idea", has_text="Confirm digit").first
    name = known.locator(".what").text_content().removeprefix("Confirm ")
    assert re.search(r"undecided, confidence \d\d? %", known.text_content())
    known.locator("button").click()
    said(page, f"Confirmed {name}")
    sync_api.expect(page.locator(".idea", has_text=name)).to_have_count(0)


def test_keys_work_on_the_suggestion_that_shows_them(served):
    page = served.page("next")
    shown = page.locator(".idea kbd:visible")
    sync_api.expect(shown).to_have_count(1)  # of the first, until another is pointed at or moved to
    last = page.locator(".idea", has_text="Name ").last
    last.hover()
    sync_api.expect(shown).to_have_text("n")
    name = last.locator(".what").text_content().removeprefix("Name ")
    page.keyboard.press("n")
    answer(page, "robin")
    said(page, f"Named {name} “robin”")


def test_keys_that_have_nothing_to_work_on_say_so(served):
    page = served.page("images")
    page.keyboard.press("j")
    said(page, "Select images first")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("j")
    said(page, "Set 1 image aside")
    page.goto(served.address)
    page.keyboard.press("n")
    said(page, "Choose a category first")


def test_a_name_that_is_there_in_other_letters_is_asked_about(served):
    page = served.page("category/3")
    page.click("#act-name")
    answer(page, "Siamese cat")
    said(page, "Named")
    page.goto(f"{served.address}category/4")
    page.click("#act-name")
    answer(page, "siamese-cat")
    sync_api.expect(page.locator("#ask-same")).to_contain_text("“Siamese cat” already exists. Is it the same?")
    page.click("text=No, “siamese-cat” is a different one")
    said(page, "“siamese-cat”")
    assert {"Siamese cat", "siamese-cat"} <= set(served.sizes())
    page.keyboard.press("z")
    said(page, "Undone")
    page.locator(".tile .shot").nth(0).click()
    page.click("#chosen >> text=Move to…")
    page.locator("#ask-text").fill("SIAMESE CAT")
    page.locator("#ask-list li", has_text="New category").click()
    page.click("text=Yes, use “Siamese cat”")
    said(page, "Moved 1 image to Siamese cat")


def test_a_name_that_is_too_long_is_not_cut_but_refused(served):
    page = served.page("category/3")
    page.click("#act-name")
    page.locator("#ask-text").fill("")
    page.keyboard.insert_text(201 * "é")
    sync_api.expect(page.locator("#ask-hint")).to_have_text("A name may have 200 characters, this one has 201.")
    page.keyboard.press("Enter")
    sync_api.expect(page.locator("#ask")).to_be_visible()
    page.keyboard.press("Backspace")
    sync_api.expect(page.locator("#ask-hint")).to_have_text("")
    page.keyboard.press("Enter")
    said(page, "Named")
    assert 200 * "é" in served.sizes()


def test_a_name_that_another_category_has_merges_only_after_a_look_at_both(served):
    page = served.page()
    names = {card["id"]: card["name"] for card in served.api("api/categories")["categories"]}
    into, one = list(names)[:2]
    before = served.sizes()
    for button, text in (("text=Keep them apart", ""), ("button.strong", f"Merged {names[one]} into {names[into]}")):
        page.goto(f"{served.address}category/{one}")
        page.click("#act-name")
        answer(page, names[into])
        sync_api.expect(page.locator("#same-title")).to_have_text(f"Merge {names[one]} into {names[into]}?")
        sync_api.expect(page.locator("#same-strips strong")).to_have_text([names[into], names[one]])
        page.click(f"#same >> {button}")
        if text:
            said(page, text)
        else:
            sync_api.expect(page.locator("#same")).to_be_hidden()
            assert served.sizes() == before


def test_bad_photos_and_near_duplicates_are_set_aside_together(browser, tmp_path):
    made_up = spoilt_run(tmp_path)
    served = Served(tmp_path, browser)
    page = served.page("check")
    page.click("#act-check")
    headings = page.locator(".finding h2")
    sync_api.expect(headings).to_have_text(["2 near-duplicates", "2 blurred photos", "1 dark photo", "1 empty photo"])
    sync_api.expect(page.locator(".finding").first.locator(".tile .note")).to_have_text(["kept", "kept"])
    page.click("#aside-near-duplicate")
    said(page, "Set 2 images aside")
    sync_api.expect(headings).to_have_text(["2 blurred photos", "1 dark photo", "1 empty photo"])
    aside = [card["file"] for card in served.api("api/images?filter=set_aside")["images"]]
    assert sorted(aside) == sorted(made_up["copies"]), "of each pair the sharper one is kept"
    page.click("#aside-blurred")
    said(page, "Set 2 images aside")
    page.keyboard.press("z")
    said(page, "Undone: set 2 images aside")
    sync_api.expect(headings.first).to_have_text("2 blurred photos")
    page.locator(".finding").first.locator(".shot").first.click()  # this one is fine
    page.keyboard.press("c")
    said(page, "Confirmed 1 image")
    sync_api.expect(headings.first).to_have_text("1 blurred photo")
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    other = served.page("check", bypass_csp=True)
    faults = axe.run(other).response["violations"]
    assert [fault["id"] for fault in faults if fault["impact"] in ("serious", "critical")] == []
    served.close()


def test_a_photo_is_not_lost_both_as_a_near_duplicate_and_as_blurred(browser, tmp_path):
    spoilt_run(tmp_path)
    photos = [tmp_path / "photos" / f"{number:02d}.png" for number in (0, 3, 4, 7)]
    Image.open(photos[0]).filter(ImageFilter.GaussianBlur(5)).convert("RGBA").save(photos[0], compress_level=0)
    for path in photos[2:]:
        Image.open(path).filter(ImageFilter.GaussianBlur(5)).save(path)
    served = Served(tmp_path, browser)
    page = served.page("check")
    page.click("#act-check")
    section = {kind: page.locator(f"section[aria-labelledby=found-{kind}]") for kind in ("near-duplicate", "blurred")}
    copies, blurred = section.values()
    sync_api.expect(copies.locator(".note")).to_have_text(["kept", "kept, listed below"])
    assert copies.locator(".tile").first.get_attribute("data-row") == "3", "not 0, the larger file, which is blurred"
    sync_api.expect(copies.locator("strong")).to_have_text(
        "1 of those kept has no better copy and is listed below: set aside there too, nothing of its group is left."
    )
    sync_api.expect(blurred.locator("strong")).to_have_text(
        "2 of these have no better copy: set aside too, nothing of their groups is left."
    )
    sync_api.expect(blurred.locator(".note")).to_have_text(["no better copy", "no better copy"])
    page.click("#aside-near-duplicate")
    said(page, "Set 2 images aside")
    sync_api.expect(blurred.locator("h2")).to_have_text("3 blurred photos")
    sync_api.expect(blurred.locator(".note")).to_have_text(["no better copy"])
    page.click("#aside-blurred")
    said(page, "Set 3 images aside")
    left = [card["file"] for card in served.api("api/images?filter=undecided")["images"]]
    assert "03.png" in left
    assert not {"00.png", "04.png", "07.png"} & set(left)
    served.close()


def test_photos_are_filtered_by_folder_day_and_the_users_own_columns(browser, tmp_path):
    files = [f"{folder}/{number}.jpg" for folder in ("north", "south") for number in range(6)]
    for number, file in enumerate(files):
        path, exif = tmp_path / "photos" / file, Image.Exif()
        path.parent.mkdir(parents=True, exist_ok=True)
        exif.get_ifd(0x8769)[0x9003] = f"2024:05:{number + 1:02d} 10:00:00"
        exif[0x0110] = f"TrailCam {number // 4}"
        Image.new("RGB", (8, 8), (20 * number, 90, 90)).save(path, exif=exif)
    lines = [f"{file},{('dog', 'cat', 'fox')[number % 3]},{'ab'[number % 2]}" for number, file in enumerate(files)]
    (tmp_path / "photos" / "table.csv").write_text("\n".join(["file_name,animal,trap", *lines]))
    made_up_run(tmp_path / "run", tmp_path / "photos", files, [0, 1] * 6, 0, ["novel-1", "novel-2"])
    served = Served(tmp_path, browser, "--table", "photos/table.csv")
    page = served.page("images")
    sync_api.expect(page.locator("h1")).to_have_text("12 images")
    page.click("summary")
    page.select_option("select[name=folder]", "south")  # stays when filters by date appear, once dates are read
    sync_api.expect(page.locator("#reading")).to_have_count(0)
    page.fill("input[name=until]", "2024-05-09")
    animal, trap, camera = (page.locator(".facets label", has_text=text) for text in ("animal", "trap", "camera"))
    assert [one.locator("select").input_value() for one in (animal, trap, camera)] == ["", "", ""], "any"
    assert page.locator(".facets button").count() == 1, "all filters are one question"
    page.click(".facets button")
    sync_api.expect(page.locator("h1")).to_have_text("3 images")
    animal.locator("select").select_option("animal=dog")
    trap.locator("select").select_option("trap=a")
    page.click(".facets button")
    sync_api.expect(page.locator("h1")).to_have_text("1 image")
    sync_api.expect(trap.locator("select")).to_have_value("trap=a")
    sync_api.expect(page.locator(".tile p a").first).to_have_text("0.jpg")
    page.click(".choices >> text=Changed")  # which keeps both columns
    sync_api.expect(page.locator("h1")).to_have_text("0 images")
    assert page.url.count("column=") == 2
    page.click("text=Clear the filters")
    page.click(".choices >> text=All")
    sync_api.expect(page.locator("h1")).to_have_text("12 images")
    page.click("summary")
    camera.locator("select").select_option("camera (EXIF)=TrailCam 2")
    page.click(".facets button")
    sync_api.expect(page.locator("h1")).to_have_text("4 images")
    assert len(served.api("api/rows?folder=north&since=2024-05-04")["rows"]) == 3, "what is selected as a whole list"
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    faults = axe.run(served.page("images?folder=north", bypass_csp=True)).response["violations"]
    assert [fault["id"] for fault in faults if fault["impact"] in ("serious", "critical")] == []
    served.close()


def lasso(page, places, zoom=1.0):
    """Draw around the middle of the map, with Shift; how many images lie inside by their places."""
    measure = (
        "at => [at.getBoundingClientRect().x + 1, at.getBoundingClientRect().y + 1, at.clientWidth, at.clientHeight]"
    )
    left, top, width, height = page.locator("#map-canvas").evaluate(measure)  # without its border of one pixel
    fit = zoom * min(width / places["width"], height / places["height"])
    corners = [(-330.5, -160.5), (330.5, -160.5), (330.5, 160.5), (-330.5, 160.5)]
    middle = left + width / 2, top + height / 2
    page.keyboard.down("Shift")
    for number, (x, y) in enumerate(corners):
        page.mouse.move(middle[0] + x, middle[1] + y)
        if not number:
            page.mouse.down()
    page.mouse.up()
    page.keyboard.up("Shift")
    away = [
        ((x - places["width"] / 2) * fit, (y - places["height"] / 2) * fit)
        for x, y in zip(places["x"], places["y"], strict=True)
    ]
    return sum(abs(x) < 330.5 and abs(y) < 160.5 for x, y in away)


def test_the_map_is_zoomed_coloured_and_selected_in(served):
    page = served.page("map")
    page.wait_for_selector("canvas[data-names]")
    places, drawn, legend = served.api("api/map"), page.locator("#map-canvas"), page.locator("#map-legend")
    assert len(places["row"]) == 121
    assert int(drawn.get_attribute("data-names")) == 6, "all names have room"
    for colour, text in (
        ("confidence", "Confidence 0 %"),
        ("date", "No photo here has a date"),
        ("category", "its own colour"),
    ):
        page.click(f"[data-colour={colour}]")
        sync_api.expect(legend).to_contain_text(text)
        before, now = (
            drawn.get_attribute("data-ms"),
            page.evaluate("document.getElementById('map-canvas').toDataURL().length"),
        )
        assert now > 3000, f"{colour}: something is drawn ({before} ms)"
    inside = lasso(page, places)
    assert 0 < inside < 121
    sync_api.expect(page.locator("#chosen strong")).to_have_text(f"{inside} selected")
    sync_api.expect(page.locator("#map-chosen li")).to_have_count(min(inside, 48))
    page.keyboard.press("j")
    said(page, f"Set {inside} images aside")
    sync_api.expect(page.locator("#map-says")).to_have_text(f"{121 - inside} images")
    page.keyboard.press("z")
    said(page, "Undone")
    sync_api.expect(page.locator("#map-says")).to_have_text("121 images")
    page.locator("#lasso").focus()
    page.keyboard.press("-")
    more = lasso(page, places, zoom=0.8)  # and no farther
    assert more > inside
    sync_api.expect(page.locator("#chosen strong")).to_have_text(f"{more} selected")
    page.keyboard.press("Escape")
    page.click("text=Show all")
    assert lasso(page, places) == inside
    sync_api.expect(page.locator("#chosen strong")).to_have_text(f"{inside} selected")


def drop(page, data, kind="image/png"):
    """Drop a file on the page, as a person drags it in."""
    page.evaluate(
        """([bytes, type]) => {
            const held = new DataTransfer(), about = { dataTransfer: held, bubbles: true, cancelable: true };
            held.items.add(new File([new Uint8Array(bytes)], "mine", { type }));
            for (const kind of ["dragenter", "dragover", "drop"])
                document.body.dispatchEvent(new DragEvent(kind, about));
        }""",
        [list(data), kind],
    )


def test_an_image_of_ones_own_is_dropped_pasted_or_chosen(served, made):
    page, before = served.page("images"), served.api("api/standing")
    mine = sorted((made / "photos" / "unlabelled").glob("*.png"))[0]
    own = next(card for card in served.api("api/images")["images"] if card["file"].endswith(mine.name))
    drop(page, mine.read_bytes())
    link = page.locator("#similar-result p a")
    sync_api.expect(link).to_have_text(own["category_name"])
    first = page.locator("#similar-result .tile").first
    sync_api.expect(first).to_contain_text("100 % similar")
    assert first.locator("a").get_attribute("href") == f"/image/{own['row']}"
    assert page.locator("#similar-shown").is_visible()
    drop(page, b"hello")
    sync_api.expect(page.locator("#similar-says")).to_have_text("Not a JPEG, PNG, WebP, GIF, TIFF or BMP image.")
    assert page.locator("#similar-result").inner_text() == ""
    assert page.locator("#similar-shown").is_hidden()
    page.keyboard.press("Escape")

    page.evaluate(  # as the clipboard gives it
        """(bytes) => {
            const held = new DataTransfer();
            held.items.add(new File([new Uint8Array(bytes)], "mine.png", { type: "image/png" }));
            document.dispatchEvent(new ClipboardEvent("paste", { clipboardData: held }));
        }""",
        list(mine.read_bytes()),
    )
    sync_api.expect(link).to_have_text(own["category_name"])
    page.keyboard.press("Escape")
    page.keyboard.press("f")
    sync_api.expect(link).to_have_count(0)  # nothing of the one before
    page.set_input_files("#similar-file", str(mine))
    sync_api.expect(link).to_have_text(own["category_name"])
    with page.expect_navigation():
        link.click()
    sync_api.expect(page.locator("h1")).to_have_text(own["category_name"])
    assert served.api("api/standing") == before  # nothing was decided by it


def test_a_suggested_name_is_offered_and_taken_by_the_person_alone(browser, tmp_path):
    files = [f"{name}_{number}.png" for name in ("cat", "robin") for number in range(6)]
    (tmp_path / "photos").mkdir()
    for file in files:
        Image.new("RGB", (8, 8)).save(tmp_path / "photos" / file)
    made_up_run(tmp_path / "run", tmp_path / "photos", files, [0] * 6 + [1] * 6, 1, ["tabby", "novel-1"])
    served = Served(tmp_path, browser)
    page = served.page("category/1")
    sync_api.expect(page.locator(".suggested button")).to_have_text(["robin", "like tabby"])
    page.locator(".tile .shot").nth(0).click()  # a selected image is not what is named
    page.click(".suggested >> text=robin")
    sync_api.expect(page.locator("#ask-text")).to_have_value("robin")
    assert served.api("api/standing")["decisions"] == 0, "it is a suggestion"
    page.click("#ask-go")
    said(page, "Named novel-1 “robin”")
    sync_api.expect(page.locator(".suggested")).to_have_count(0)
    served.close()


def spoilt_run(folder):
    """Photos of three categories, two copied with less contrast, two blurred, one dark, one empty; `run` is made up."""
    rng = np.random.default_rng(0)
    files, images = [f"{number:02d}.png" for number in range(20)], []
    for _ in files:
        large = Image.fromarray(rng.integers(0, 256, (5, 5), dtype=np.uint8)).resize(
            (160, 160), Image.Resampling.BICUBIC
        )
        images.append(
            Image.fromarray((np.asarray(large) * 0.8 + 20 + rng.normal(0, 9, (160, 160))).clip(0, 255).astype("u1"))
        )
    images[3], images[7] = (images[number].point(lambda value: 0.95 * value) for number in (0, 4))
    images[9], images[13] = (images[number].filter(ImageFilter.GaussianBlur(5)) for number in (9, 13))
    images[16], images[18] = Image.new("L", (160, 160), 5), Image.new("L", (160, 160), 200)
    (folder / "photos").mkdir()
    for file, image in zip(files, images, strict=True):
        image.save(folder / "photos" / file)
    category = [0] * 4 + [1] * 4 + [2] * 12
    made_up_run(folder / "run", folder / "photos", files, category, 0, ["novel-1", "novel-2", "novel-3"])
    return {"copies": ["03.png", "07.png"]}


def test_what_was_set_aside_rounds_ago_is_seen_and_taken_back(served):
    page = served.page("images?sort=name")
    files = sorted(Run.open(served.folder / "run").clusters["file"].to_pylist())
    for tile in (1, 2, 60):
        page.locator(".tile .shot").nth(tile).click()
    page.keyboard.press("j")
    said(page, "Set 3 images aside")
    recluster(page)
    sync_api.expect(page.locator(".far a").last).to_have_text("3 set aside")
    page.goto(f"{served.address}images?sort=name")
    page.locator(".tile .shot").first.click()
    page.keyboard.press("j")
    said(page, "Set 1 image aside")
    page.click("text=4 set aside")
    photos = page.locator(".asides li")
    sync_api.expect(photos).to_have_count(4)
    sync_api.expect(page.locator(".asides .when")).to_contain_text(["round 2", "round 1", "round 1", "round 1"])
    for photo in photos.all():
        sync_api.expect(photo.locator("img")).to_have_js_property("naturalWidth", 144)
    photos.last.locator("button").click()
    said(page, "Took 1 image back")
    sync_api.expect(photos.last).to_contain_text("Comes back with Recluster")
    sync_api.expect(page.locator("h1")).to_have_text("3 photos set aside")
    page.click("#restore-all")
    said(page, "Took 3 images back")
    sync_api.expect(photos).to_have_count(3)  # the one of this round is there already
    page.keyboard.press("z")
    said(page, "Undone: took 3 images back")
    sync_api.expect(photos).to_have_count(4)
    page.click("#restore-all")
    said(page, "Took 3 images back")
    recluster(page)
    assert sorted(Run.open(served.folder / "run").clusters["file"].to_pylist()) == files
    page.goto(f"{served.address}aside")
    sync_api.expect(page.locator("h1")).to_have_text("0 photos set aside")


def test_another_tab_says_that_the_run_was_reclustered(served):
    one, two = served.page("category/3"), served.page("next")
    one.click("#act-confirm")
    said(one, "Confirmed")
    said(two, "Reloaded: something was decided in another tab.")
    recluster(one)
    said(two, "Reloaded: the run was reclustered.")


def recluster(page):
    """From the dialog, until the page shows what changed."""
    before = page.locator("body").get_attribute("data-round")
    page.click("#recluster")
    page.click("#recluster-go")
    sync_api.expect(page.locator("body")).to_have_attribute("data-round", str(int(before) + 1), timeout=120_000)


def test_two_tabs(served):
    path = "category/3"
    one, two = served.page(path), served.page(path)
    two.route("**/api/standing", lambda route: route.abort())  # it has not looked since
    one.click("#act-name")
    answer(one, "robin")
    said(one, "Named")
    two.click("#act-confirm")
    sync_api.expect(two.locator("#conflict")).to_be_visible()
    sync_api.expect(two.locator("#conflict-list")).to_contain_text("“robin”")
    assert served.api("api/standing")["decisions"] == 1
    two.click("#conflict-go")
    sync_api.expect(two.locator("h1")).to_have_text("robin")
    two.click("#act-confirm")
    said(two, "Confirmed robin")
    sync_api.expect(one.locator("#undo")).to_have_attribute("title", re.compile("Undo: confirmed robin"))  # by itself


def test_names_are_shown_harmlessly(served):
    table = Run.open(served.folder / "run").clusters.to_pydict()
    own = table["cluster"][table["file"].index(f"unlabelled/{ODD_FILE}")]
    page = served.page(f"category/{4 if own == 3 else 3}")  # another one: the image can be moved there
    page.click("#act-name")
    page.locator("#ask-text").fill(NASTY)
    sync_api.expect(page.locator("#ask-list li")).to_have_text(f"“{NASTY}”")
    page.click("#ask-go")
    said(page, f"“{NASTY}”")
    sync_api.expect(page.locator("h1")).to_have_text(NASTY)
    page.goto(served.address)
    page.check(f"[aria-label='Select {NASTY}']")
    sync_api.expect(page.locator("#chosen strong")).to_have_text(NASTY)
    page.goto(f"{served.address}?q=odd")
    page.click(".also a")
    page.locator(".tile p a").first.click()
    page.wait_for_url("**/image/*")
    assert page.locator("dd").first.text_content() == f"unlabelled/{ODD_FILE}"
    page.keyboard.press("v")
    sync_api.expect(page.locator("#ask-list")).to_contain_text(NASTY)
    page.keyboard.press("Escape")
    page.goto(f"{served.address}history")
    sync_api.expect(page.locator(".events")).to_contain_text(NASTY)
    assert page.locator("img[src=x]").count() == 0


def test_recluster_from_the_page(served):
    page = served.page("category/3")
    page.click("#act-name")
    answer(page, "robin")
    said(page, "Named")
    page.click("#recluster")
    page.click("#recluster-go")
    page.wait_for_selector(".news", timeout=120_000)
    assert "now known: robin" in page.locator(".news").text_content()
    standing = served.api("api/standing")
    assert (standing["version"], standing["round"], standing["decisions"]) == ("2.0", 2, 0)
    robin = next(card for card in served.api("api/categories?q=robin")["categories"])
    assert robin["known"]
    labels = (served.folder / "run" / "review-labels.csv").read_text()
    assert labels.startswith("file_name,label\n")
    assert ",robin\n" in labels


def test_time_left_is_shown_while_it_clusters_again(served):
    page = served.page("category/3")
    running = {"state": "running", "lines": ["embed: done"], "doing": "clustering, level 2 of 4", "seconds": 10.0}
    answers = iter([{"state": "idle", "lines": []}, running, *[{**running, "seconds_left": 30.0}] * 4])
    page.route("**/api/recluster", lambda route: route.fulfill(json=next(answers, running)))
    page.click("#recluster")
    page.click("#recluster-go")
    sync_api.expect(page.locator("#recluster-left")).to_have_text("clustering, level 2 of 4 · about 30 s left")
    assert page.locator("#recluster-bar").evaluate("bar => bar.value") == 0.25
    sync_api.expect(page.locator("#recluster-left")).to_have_text("clustering, level 2 of 4 · longer than last time")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_fault(served, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    rules = {"runOnly": ["color-contrast"]} if scheme == "dark" else {}  # all else is the same in the dark
    page = served.page(color_scheme=scheme, bypass_csp=True)  # axe is a script of another's: only the test lets it in
    steps = {
        "": "",
        "category/3": "s",
        "images?filter=all": "a",
        "image/4": "v",
        "next": "",
        "check": "",
        "aside": "",
        "map": "",
        "history": "f",
        "none": "?",
    }
    for path, key in steps.items():
        page.goto(served.address + path)
        if key:
            page.keyboard.press(key)
            page.wait_for_selector(
                {"s": "#split-go", "a": "#chosen", "v": "#ask-list li", "?": "#help-dialog", "f": "#similar-file"}[key]
            )
        response = axe.run(page, options=rules).response
        assert any(rule["id"] == "color-contrast" for rule in response["passes"]), "it has looked"
        found = response["violations"]
        serious = [
            (fault["id"], fault["nodes"][0]["html"]) for fault in found if fault["impact"] in ("serious", "critical")
        ]
        assert serious == [], path


def test_a_phone_shows_it_without_scrolling_sideways(served):
    page = served.page(viewport={"width": 360, "height": 740})
    for path in ("", "category/3", "images", "image/4", "next", "check", "aside", "map", "history"):
        page.goto(served.address + path)
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= 360, path
    assert json.loads(page.evaluate("JSON.stringify(matchMedia('(max-width: 40rem)').matches)"))


@pytest.fixture
def swallowed(tmp_path, browser):
    """A known category that swallowed two others, and three more of usual size."""
    rng, sizes = np.random.default_rng(0), (60, 15, 15, 15)
    category = np.repeat(np.arange(4), sizes)
    files = [f"{row:03d}.png" for row in range(len(category))]
    (tmp_path / "photos").mkdir()
    kind = np.concatenate([np.tile([0, 4, 5], 20), category[60:]])  # what is in the photos; sparrows have the labels
    for file, number in zip(files, kind.tolist(), strict=True):
        Image.effect_noise((32, 32), 20).point(lambda grey, n=number: grey // 2 + 20 * n).save(
            tmp_path / "photos" / file
        )
    names = ["sparrow", "wren", "novel-1", "novel-2"]
    run = made_up_run(tmp_path / "run", tmp_path / "photos", files, category, 2, names)
    features = 3 * np.eye(8)[kind] + rng.normal(0, 0.4, (len(kind), 8))
    np.save(run.folder / "embeddings.npy", features.astype(np.float32))
    reseal(run.folder)
    server = Served(tmp_path, browser)
    yield server
    server.close()


def test_a_category_that_swallowed_others_is_offered_for_a_split_into_as_many(swallowed):
    page = swallowed.page("next")
    idea = page.locator(".idea", has_text="Split? sparrow")
    said_of_it = "settles about 15 images 4.0 times as large as usual: looks like 3 categories"
    sync_api.expect(idea.locator(".facts")).to_have_text(said_of_it)
    idea.get_by_role("button", name="Show parts").click()
    page.wait_for_url("**/category/0#split=3")
    sync_api.expect(page.locator("#split-go")).to_have_text("Split into these 3")
    page.click("#split-go")
    said(page, "Split sparrow into parts of 20, 20 and 20")
    page = swallowed.page("next")
    sync_api.expect(page.locator(".idea", has_text="Split?")).to_have_count(0)


def test_the_key_of_a_suggested_split_shows_its_parts(swallowed):
    page = swallowed.page("next")
    page.locator(".idea", has_text="Split? sparrow").locator("button").first.focus()
    page.keyboard.press("s")
    page.wait_for_url("**/category/0#split=3")
    sync_api.expect(page.locator("#split-go")).to_have_text("Split into these 3")
