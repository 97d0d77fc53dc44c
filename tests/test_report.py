"""`selex report`: what the page says, against the run it is of; hostile names; size; contrast."""

import base64
import csv
import hashlib
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from commands import contents, digit_photos, refused, reseal, selex
from html_pages import parse
from selex import Config, Run, discover
from selex.checksums import stamped_line
from selex.data.decode import thumbnail
from selex.metrics import matched
from selex.report.categories import build_tree, find_categories, find_label_errors, novel_by_confidence
from selex.report.curves import training_charts
from selex.report.facts import read_facts
from selex.report.html import write_report
from selex.report.map import HEIGHT, ICONS, LETTERS, WIDTH, draw_map, pushed_apart, with_room
from selex.runs.results import Results
from selex.runs.writer import RunWriter

CSS = (Path(__file__).parent.parent / "src/selex/report/templates/report.css").read_text()
NASTY = "<img src=x onerror=alert(1)>\"'&amp;\u202e\n{{ 7*7 }} 名"


def make(folder, **more):
    """A finished run of digits below a folder, and their true digits."""
    truth = digit_photos(folder / "photos")
    config = Config.of(str(folder / "photos"), **{"categories": 5, "backbone": "pixels", **more})
    return discover(config, folder / "run", store=folder / "store"), truth


KNOWN = ("digit 0", "digit 1", "digit 2")


def write_truth(path, truth):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("file", "label"), *truth.items()])
    return path


def page_of(run, **more):
    out = run.folder.parent / "page.html"
    return parse(write_report(run, out, **more).read_text(encoding="utf-8"))


def as_shown(value):
    """A probability as the page shows it: never quite 100 %."""
    return f"{100 * min(value, 0.99):.0f} %"


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """A home folder with photos, a run of them and the truth; nobody changes it."""
    home = tmp_path_factory.mktemp("digits")
    _, truth = make(home)
    write_truth(home / "truth.csv", {file: f"digit {digit}" for file, digit in truth.items()})
    return home


@pytest.fixture(scope="module")
def run(digits):
    return Run.open(digits / "run")


@pytest.fixture(scope="module")
def page(digits, run):
    return page_of(run, truth=digits / "truth.csv")


@pytest.fixture
def home(digits, tmp_path):
    """A copy of the home folder, to change."""
    shutil.copytree(digits, tmp_path / "home")
    config = tmp_path / "home/run/config.json"
    config.write_text(config.read_text().replace(str(digits), str(tmp_path / "home")))
    reseal(config.parent)
    return tmp_path / "home"


def test_the_command_writes_one_file_and_changes_nothing_else(home):
    before = contents(home)
    done = selex("report", "run", cwd=home)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("wrote run/report.html (")
    after = contents(home)
    written = after.pop("run/report.html")
    assert after == before
    assert selex("report", "run", "--out", "again.html", cwd=home).returncode == 0
    assert (home / "again.html").read_bytes() == written, "the same run gives the same page"
    selex("report", "run", "--truth", "truth.csv", cwd=home)
    assert (home / "run/report.html").read_bytes() != written, "a report replaces a report"


def test_the_paragraph_says_what_was_found(run, page):
    text, table = page.one("p", "lead").text, run.clusters.to_pydict()
    in_known, labelled = sum(table["known"]), sum(table["labelled"])
    assert text.startswith("60 images were sorted into 5 categories.")
    assert f"3 were known from {labelled} labelled images, and {in_known} of the images are there now" in text
    assert f"the other {60 - in_known} are in 2 novel categories." in text
    first, last = [card.one("h3").text for card in page.one(id="new").all("article")]
    sizes = {name: table["category"].count(name) for name in (first, last)}
    assert f"category is {first} ({sizes[first]} images), the least confident is {last} ({sizes[last]} images)" in text


def test_a_card_shows_size_confidence_typical_and_borderline_images(run, page):
    table = run.clusters.to_pydict()
    for name in run.hierarchy["names"]:
        rows = [row for row, category in enumerate(table["category"]) if category == name]
        card = next(card for card in page.all("article") if card.one("h3").text == name)
        assert card.one("p", "facts").text.startswith(f"{len(rows)} images")
        folded = [image for fold in card.all("details") for image in fold.all("img")]
        shown = [image.attributes["alt"] for image in card.all("img")][: -len(folded) or None]
        near = sorted(rows, key=lambda row: table["distance"][row])
        assert shown[:8] == [table["file"][row] for row in near[:8]]
        assert [image.attributes["alt"] for image in folded] == [table["file"][row] for row in near], "all of them"
        rest = sorted((row for row in near[8:] if not table["labelled"][row]), key=lambda row: table["confidence"][row])
        assert shown[8:] == [table["file"][row] for row in rest[:4]]
        captions = [caption.text for caption in card.all("figcaption")]
        assert captions == [f"{as_shown(table['confidence'][row])}, or {table['runner_up'][row]}" for row in rest[:4]]
        mean = np.mean([table["confidence"][row] for row in rows])
        value = card.one("span", "meter-value").text
        known = "is-known" in card.classes
        assert value == as_shown(mean) if known else f"confidence {as_shown(mean)}" in card.text


def test_report_and_review_agree_on_what_is_most_alike(run, page, tmp_path):
    pytest.importorskip("fastapi")
    from selex.review.core.session import Review
    from selex.review.server.views import Views

    shutil.copytree(run.folder, tmp_path / "run")
    views = Views(Review(tmp_path / "run"))
    for card in page.all("article"):
        neighbour = views.category(int(card.attributes["id"].removeprefix("category-"))).neighbours[0]
        assert f"most similar: {neighbour.name}" in card.one("p", "facts").text


def test_images_on_the_page_are_the_photos_encoded_anew(run, page):
    image = page.one(id="new").all("img")[0]
    kind, _, data = image.attributes["src"].partition(",")
    assert kind == "data:image/jpeg;base64"
    assert base64.b64decode(data) == thumbnail(str(run.root / image.attributes["alt"]), 320, 76)


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """Runs of the same photos that ended in different ways."""
    folders = {}
    for refine in ("none", "proportional", "balanced"):
        folders[refine] = tmp_path_factory.mktemp(refine)
        make(folders[refine], refine=refine)
    return folders


def softened(ended, refine, softer, tmp_path):
    """The facts of a run at so many times its temperature, its features, and the odds of all categories by offsets.

    Confidence is not lowered in known categories: these odds are of distances alone.
    """
    shutil.copytree(ended[refine], tmp_path / "home")
    path = tmp_path / "home/run/model/model.json"
    about = json.loads(path.read_text())
    path.write_text(json.dumps({**about, "temperature": about["temperature"] * softer, "share": 1.0, "shift": 0.0}))
    reseal(tmp_path / "home/run")
    facts = read_facts(Run.open(tmp_path / "home/run"))
    features = facts.model.maps.transform(np.load(tmp_path / "home/run/embeddings.npy").astype(np.float64))
    judged = facts.model.assigner(features, facts.category)
    offsets = facts.model.assigner.offsets
    assert (offsets is None) == (refine == "none")
    less = np.zeros(len(facts.names)) if offsets is None else offsets.astype(np.float64)
    return replace(facts, confidence=judged.confidence.astype(np.float64)), features, less


def odds_of(facts, row, centers, less):
    return (less - ((row - centers) ** 2).sum(1)) / facts.model.assigner.temperature


@pytest.mark.parametrize("softer", [1, 300])
def test_loo_confidence_is_confidence_with_the_centre_worked_out_without_the_image(ended, tmp_path, softer):
    """At the temperature of the run, where confidence is near 1, and at one where it is not."""
    facts, features, less = softened(ended, "none", softer, tmp_path)
    for row in range(60):
        own = facts.category[row]
        others = [other for other in range(60) if facts.category[other] == own and other != row]
        centers = facts.model.assigner.centers.astype(np.float64)
        centers[own] = features[others].mean(0)
        odds = odds_of(facts, features[row], centers, less)
        weights = np.exp(odds - odds.max())
        assert facts.loo_confidence[row] == pytest.approx(weights[own] / weights.sum(), abs=2e-3)


@pytest.mark.parametrize("softer", [1, 30])
@pytest.mark.parametrize("refine", ["proportional", "balanced"])
def test_loo_confidence_counts_what_categories_count_for(ended, tmp_path, refine, softer):
    """Where images take part in several categories: the own centre n / (n - 1) times as far, offsets as they are."""
    facts, features, less = softened(ended, refine, softer, tmp_path)
    centers = facts.model.assigner.centers.astype(np.float64)
    for row in range(60):
        own, size = facts.category[row], facts.sizes[facts.category[row]]
        odds = odds_of(facts, features[row], centers, less)
        others = np.delete(np.arange(len(odds)), own)
        assert facts.runner_up[row] == others[odds[others].argmax()]
        assert facts.log_odds_margin[row] == pytest.approx(odds[own] - odds[others].max(), abs=1e-3)
        odds[own] -= (
            ((features[row] - centers[own]) ** 2).sum()
            * ((size / (size - 1)) ** 2 - 1)
            / (facts.model.assigner.temperature)
        )
        weights = np.exp(odds - odds.max())
        assert facts.loo_confidence[row] == pytest.approx(weights[own] / weights.sum(), abs=2e-3)


@pytest.mark.parametrize("refine", ["none", "proportional", "balanced"])
def test_the_page_says_how_the_clustering_ended(ended, refine):
    text = page_of(Run.open(ended[refine] / "run")).one(id="about").text
    assert "balanced, best of 3, features whitened by 0.5" in text
    assert f"by 0.5, soft refinement ({refine})" in text or refine == "none"
    assert ("soft refinement" in text) == (refine != "none")


def test_the_page_says_what_was_chosen_and_not_that_it_was_left_open(run, page):
    chosen = [entry["refine"] for entry in run.metrics if entry["step"] == "cluster"]
    assert chosen == ["proportional"]  # of 12 labels too few were held out to tell
    assert run.config.cluster.refine == "auto"
    assert "soft refinement (proportional)" in page.one(id="about").text


@pytest.mark.parametrize("odd", [1e308, -1e308, 10**400, 5e-324, "x", None, [1], True])
def test_a_log_that_says_odd_things(home, odd):
    run = RunWriter(home / "run")
    for epoch, loss in ((0, 0.5), (1, odd), (odd, 0.25)):
        run.log(step="epoch", epoch=epoch, loss=loss)
    run.log(step="cluster", time=odd, refine=odd)
    assert page_of(run).one(id="about")


def test_a_run_of_before_says_nothing_of_it(home):
    """Its steps have no such entry."""
    path = home / "run/metrics.jsonl"
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    older = [{key: value for key, value in entry.items() if key not in ("refine", "crc32")} for entry in entries]
    path.write_text("".join(map(stamped_line, older)))
    assert "soft in the end" not in page_of(Run.open(home / "run")).text


def test_new_categories_are_ranked_by_mean_loo_confidence(run, page):
    facts = read_facts(run)
    means = {facts.names[number]: facts.loo_confidence[facts.members[number]].mean() for number in (3, 4)}
    cards = page.one(id="new").all("article")
    assert [card.one("h3").text for card in cards] == sorted(means, key=means.get, reverse=True)
    assert [card.one("span", "meter-value").text for card in cards] == [
        as_shown(means[card.one("h3").text]) for card in cards
    ]


def test_blocks_of_rows_do_not_show(run, monkeypatch):
    whole = read_facts(run)
    monkeypatch.setattr("selex.report.facts._BLOCK", 7)
    monkeypatch.setattr("selex.runs.run.ROWS", 7)
    parts = read_facts(run)
    for name in ("loo_penalty", "log_odds_margin", "loo_confidence"):
        assert np.array_equal(getattr(parts, name), getattr(whole, name)), name
    assert list(parts.paths) == [whole.paths[row] for row in range(len(whole.paths))]


def test_an_image_alone_in_its_category_is_the_least_sure(tmp_path):
    made, _ = make(tmp_path, categories=30)
    facts = read_facts(made)
    order = novel_by_confidence(find_categories(facts, []))
    alone = [category.loo_confidence for category in order if category.size == 1]
    assert len(alone) > 3
    assert set(alone) == {0.0}
    assert [category.loo_confidence for category in order][-len(alone) :] == alone
    assert page_of(made).one("p", "lead").text.startswith("60 images were sorted into 30 categories.")


def test_wrong_labels_are_found_and_the_right_one_is_suggested(tmp_path):
    photos = tmp_path / "photos"
    digit_photos(photos, per_digit=30)
    zero, two = (sorted((photos / f"digit {digit}").iterdir())[0] for digit in (0, 2))
    zero.rename(photos / "digit 2" / zero.name)
    two.rename(photos / "digit 0" / two.name)
    made = discover(Config.of(str(photos), categories=5, backbone="pixels"), tmp_path / "run", store=tmp_path / "store")
    shown = page_of(made).one("ul", "errors").all("li")
    said = {item.one("span", "file").text: [link.text for link in item.all("a")] for item in shown[:2]}
    assert said == {f"digit 2/{zero.name}": ["digit 2", "digit 0"], f"digit 0/{two.name}": ["digit 0", "digit 2"]}
    card = next(card for card in page_of(made).one(id="known").all("article") if card.one("h3").text == "digit 0")
    assert "1 label to check" in card.text


@pytest.mark.parametrize("refine", ["none", "proportional", "balanced"])
def test_label_errors_are_rows_nearer_to_another_centre(tmp_path, refine):
    """Nearer by what clusters are told apart by: features whitened, squared distances less offsets."""
    photos = tmp_path / "photos"
    digit_photos(photos)
    zero, two = (sorted((photos / f"digit {digit}").iterdir())[0] for digit in (0, 2))
    zero.rename(photos / "digit 2" / zero.name)
    two.rename(photos / "digit 0" / two.name)
    config = Config.of(str(photos), categories=5, backbone="pixels", refine=refine)
    facts = read_facts(discover(config, tmp_path / "run", store=tmp_path / "store"))
    assigner, expected = facts.model.assigner, set()
    for row in np.flatnonzero(facts.labelled):
        own, n = facts.category[row], facts.sizes[facts.category[row]]
        away = ((facts.whitened([row]).astype(np.float64) - assigner.centers) ** 2).sum(1)
        away[own] *= (n / (n - 1)) ** 2
        away -= 0 if assigner.offsets is None else assigner.offsets
        if away.argmin() != own:
            expected.add((row, own, away.argmin()))
    assert len(expected) == 2
    assert {(error.row, error.label, error.suggested) for error in find_label_errors(facts)} == expected


def test_the_tree_holds_every_category_once_below_its_parents(run, page):
    facts, levels = read_facts(run), run.hierarchy["levels"]
    leaves = [leaf.one("a").text for leaf in page.one("ul", "tree").all("li", "leaf")]
    assert sorted(leaves) == sorted(facts.names)
    root = build_tree(facts, find_categories(facts, []))
    together = {frozenset(leaf.number for leaf in child.leaves) for child in root.children}
    assert together == {
        frozenset(number for number, parent in enumerate(levels[0]["parents"]) if parent == group)
        for group in set(levels[0]["parents"])
    }
    assert root.images == 60
    assert (root.known, root.new) == (3, 2)


def test_one_level_has_no_tree_and_no_labels_have_no_known_part(tmp_path):
    digit_photos(tmp_path / "all")
    (tmp_path / "photos").mkdir()
    for path in list((tmp_path / "all").rglob("*.png")):
        path.rename(tmp_path / "photos" / path.name)
    config = Config.of(str(tmp_path / "photos"), categories=4, backbone="pixels", levels=1)
    made = discover(config, tmp_path / "run", store=tmp_path / "store")
    plain = page_of(made)
    assert {section.attributes["id"] for section in plain.all("section")} == {"found", "new", "map", "sizes", "about"}
    assert "No image was labelled, so all of them are novel." in plain.one("p", "lead").text
    ids = {element.attributes["id"] for element in plain.walk() if "id" in element.attributes}
    assert {link.attributes["href"][1:] for link in plain.all("a")} <= ids


def test_links_lead_to_parts_of_the_page(page):
    ids = [element.attributes["id"] for element in page.walk() if "id" in element.attributes]
    assert len(ids) == len(set(ids))
    assert {link.attributes["href"] for link in page.all("a")} <= {f"#{name}" for name in ids}
    for element in page.walk():
        assert element.attributes.get("aria-labelledby", ids[0]) in ids


def test_training_curves_are_drawn_from_what_was_logged(home):
    run = RunWriter(home / "run")
    assert page_of(run).all(id="training") == []
    for epoch in range(3):
        run.log(
            step="epoch",
            epoch=epoch,
            loss=5.0 - epoch,
            sse=1.5,
            smallest=1,
            median=12.0,
            largest=20,
            odd=0.5,
            all=0.25 * epoch,
        )
    charts = page_of(run).one(id="training").all("figure", "chart")
    titles = [chart.one("figcaption").text for chart in charts]
    assert titles == ["Loss and its parts", "Cluster sizes", "Accuracy, where the truth is known", "odd"]
    assert [len(chart.all("polyline")) for chart in charts] == [2, 3, 1, 1]
    label = charts[0].all("svg", role="img")[0].attributes["aria-label"]
    assert label == "Loss and its parts, by epoch. Last values: loss 3, sse 1.5"


def test_epochs_that_were_done_again_count_once_and_odd_values_are_left_out():
    def entry(epoch, loss):
        return {"step": "epoch", "epoch": epoch, "loss": loss}

    crashed = [entry(0, 9.0), entry(1, 8.0), entry(2, 7.0), entry(1, 4.0), {"step": "embed", "count": 3}]
    (chart,) = training_charts([*crashed, entry(2, float("nan")), entry(3, 2.0), entry("x", 1.0), entry(4, None)])
    (line,) = chart.lines
    heights = [float(point.split(",")[1]) for point in line.points.split()]
    assert len(heights) == 3, "epochs 0, 1 and 3"
    assert heights == sorted(heights), "9, 4, 2: lower and lower, so farther down"
    assert line.last == 2.0
    (again,) = training_charts([entry(0, 9.0), entry(1, 8.0), entry(0, 3.0)])[0].lines
    assert (again.last, len(again.points.split())) == (3.0, 1), "done again from the start: what was before is gone"
    assert training_charts([{"step": "embed", "seconds": 3.0}]) == []


def test_the_estimate_is_drawn(tmp_path):
    made, _ = make(tmp_path, categories=None)
    found = made.hierarchy["estimate"]
    text = page_of(made)
    assert f"probably between {found['low']} and {found['high']}." in text.one("p", "lead").text
    chart = text.one(id="about").one("figure", "chart")
    assert len(chart.one("polyline").attributes["points"].split()) == len(made.hierarchy["curve"])


def test_report_and_review_place_categories_by_the_same_numbers(run, monkeypatch):
    from selex.report import map as drawing
    from selex.review.server import maps

    seen = []

    def place(centers):
        seen.append(centers)
        return np.ones((len(centers), 2))

    for module in (drawing, maps):
        monkeypatch.setattr(module, "place_categories", place)
    draw_map(read_facts(run))
    results = Results.read(run)
    maps.places_of(results, run.embeddings, np.arange(len(results)))
    assert len(seen) == 2
    assert np.array_equal(*seen)


def test_the_map_keeps_pictures_and_names_apart_and_images_inside(run):
    facts = read_facts(run)
    found = draw_map(facts)
    assert (found.drawn, found.total) == (60, 60)
    assert len(facts.names) <= ICONS
    places = np.array([(place.x, place.y) for place in found.places])
    wide = np.array([max(44, 6.8 * min(LETTERS, len(name))) for name in facts.names])
    for a in range(len(places)):
        for b in range(a):
            x, y = np.abs(places[a] - places[b])
            assert x > (wide[a] + wide[b]) / 2 - 2 or y > 54
    dots = [tuple(map(int, dot)) for place in found.places for dot in re.findall(r"M(\d+) (\d+)h0", place.dots)]
    assert len(dots) == 60
    assert all(0 < x < WIDTH and 0 < y < HEIGHT for x, y in dots)
    assert draw_map(facts) == found


@pytest.mark.parametrize("letters", [1, 10])
def test_pictures_and_names_that_lie_on_each_other_are_pushed_apart(letters):
    rng, wide = np.random.default_rng(0), max(44, 6.8 * letters)
    for crowded in (rng.uniform([50, 50], [950, 570], (25, 2)), np.full((6, 2), 600.0)):
        places = pushed_apart(crowded, [letters] * len(crowded))
        x, y = np.abs(places[:, None] - places[None])[~np.eye(len(places), dtype=bool)].T
        assert ((x > wide - 3) | (y > 53)).all()
        assert (places >= [wide / 2, 20]).all()
        assert (places <= [WIDTH - wide / 2, HEIGHT - 36]).all()
    apart = np.array([[100.0, 100.0], [800.0, 500.0]])
    assert (pushed_apart(apart, [letters, letters]) == apart).all()


def test_names_on_a_map_of_many_do_not_cover_each_other():
    rng = np.random.default_rng(0)
    places, letters, sizes = (
        rng.uniform([0, 0], [WIDTH, HEIGHT], (300, 2)),
        rng.integers(3, 18, 300),
        rng.integers(1, 99, 300),
    )
    named = np.flatnonzero(with_room(places, letters.tolist(), sizes))
    assert sizes.argmax() in named
    assert 40 < len(named) < 300
    for one in named:
        for other in named[named > one]:
            x, y = np.abs(places[one] - places[other])
            assert x > 6.8 * (letters[one] + letters[other]) / 2 or y > 15


def test_the_title_can_be_set(home):
    done = selex("report", "run", "--title", " Birds  of <b>Kent</b> ", cwd=home)
    assert done.returncode == 0
    page = parse((home / "run/report.html").read_text(encoding="utf-8"))
    assert page.one("h1").text == "Birds of <b>Kent</b>"
    assert page.all("title")[0].text == "Birds of <b>Kent</b>: 5 categories"
    refused("a report needs a title", "report", "run", "--title", "  ", "--out", "other.html", cwd=home)


def test_progress_counts_steps_of_which_images_are_the_last(run, tmp_path):
    told = []
    write_report(run, tmp_path / "page.html", progress=lambda done, total: told.append((done, total)))
    assert told[:4] == [(step, 4) for step in range(4)]
    images = len(told) - 4
    assert images > 10
    assert told[4:] == [(3 + done / images, 4) for done in range(1, images + 1)]


def test_all_images_of_a_category_are_on_the_page_where_there_is_room(run, tmp_path, monkeypatch):
    table = run.clusters.to_pydict()
    for room, word in ((1200, "All"), (50, "10 of")):
        monkeypatch.setattr("selex.report.html.MOST_SMALL", room)
        for card in page_of(run).all("article"):
            size = table["category"].count(card.one("h3").text)
            if size > 10:
                fold = card.one("details")
                assert fold.one("summary").text == f"{word} {size} images"
                assert len(fold.all("img")) == (size if word == "All" else 10)
    monkeypatch.setattr("selex.report.html.MOST_SMALL", 30)
    assert page_of(run).one(id="new").all("details") == []


def test_of_many_images_the_map_draws_some_and_says_so(run, monkeypatch):
    monkeypatch.setattr("selex.report.map.MOST_DOTS", 30)
    assert "of the 60 images are drawn, evenly from all categories" in page_of(run).one(id="map").text
    found = draw_map(read_facts(run))
    assert 20 <= found.drawn <= 30
    assert all(place.dots for place in found.places)


def test_scores_are_those_of_evaluate(digits, page):
    done = selex("evaluate", "run/clusters.csv", "--truth", "truth.csv", "--json", cwd=digits)
    scores = json.loads(done.stdout)
    shown = {item.one("dt").text: item.one("dd").text for item in page.one(id="truth").one("dl").all("div")}
    parts = {"all": "all", "of known categories": "known", "of novel categories": "novel"}
    for name, key in parts.items():
        assert shown[name] == f"{100 * scores[key]:.1f} %"
    assert (shown["NMI"], shown["ARI"]) == (f"{scores['nmi']:.3f}", f"{scores['ari']:.3f}")
    assert page.one(id="truth").all("p")[0].text.startswith(f"{scores['rows']} unlabelled images with a true category")


def test_failure_cases_are_the_surest_mistakes(digits, run, tmp_path):
    table = run.clusters.to_pydict()
    with (digits / "truth.csv").open(newline="") as file:
        true = {row["file"]: row["label"] for row in csv.DictReader(file)}
    free = [row for row in range(60) if not table["labelled"][row]]
    for row in free[::7]:  # whatever was found, these are wrong
        true[table["file"][row]] = "digit 0" if true[table["file"][row]] != "digit 0" else "digit 4"
    names, found = np.array([true[table["file"][row]] for row in free]), np.array(table["cluster"])[free]
    wrong = [row for row, right in zip(free, matched(names, found), strict=True) if not right]
    surest = sorted(wrong, key=lambda row: -table["confidence"][row])
    sides = [[row for row in surest if (true[table["file"][row]] in KNOWN) == side] for side in (True, False)]
    expected = [table["file"][row] for side in sides for row in side[:8]]
    shown = page_of(run, truth=write_truth(tmp_path / "truth.csv", true)).one(id="failures").all("figure")
    assert len(expected) >= 3
    assert [figure.one("img").attributes["alt"] for figure in shown] == expected
    assert all(true[figure.one("img").attributes["alt"]] in figure.one("figcaption").text for figure in shown)


def test_confusion_counts_every_scored_image(digits, run, page):
    table = run.clusters.to_pydict()
    with (digits / "truth.csv").open(newline="") as file:
        true = {row["file"]: row["label"] for row in csv.DictReader(file)}
    free = [row for row in range(60) if not table["labelled"][row]]
    sides = page.one("table", "sides").all("td")
    expected = [
        sum((true[table["file"][row]] in KNOWN) == side and table["known"][row] == place for row in free)
        for side in (True, False)
        for place in (1, 0)
    ]
    assert [int(cell.text.split()[0]) for cell in sides] == expected
    cells = page.one("table", "cells")
    assert sum(int(cell.text) for cell in cells.one("tbody").all("td") if cell.text) == len(free)
    found = [link.text for link in cells.one("thead").all("a")]
    for line in cells.one("tbody").all("tr"):
        for name, cell in zip(found, line.all("td"), strict=True):
            count = sum(
                true[table["file"][row]] == line.one("th").text and table["category"][row] == name for row in free
            )
            assert (cell.text or "0") == str(count)


def test_names_are_shown_as_they_are_and_never_run(tmp_path):
    truth = digit_photos(tmp_path / "photos")
    photos = (tmp_path / "photos").rename(tmp_path / 'ph<b>"otos')
    (photos / "digit 0").rename(photos / NASTY)
    odd = photos / "unlabelled" / f"{NASTY}.png"
    sorted((photos / "unlabelled").iterdir())[0].rename(odd)
    (photos / "unlabelled" / f"bad {NASTY}.png").write_bytes(b"no image")
    made = discover(Config.of(str(photos), categories=5, backbone="pixels"), tmp_path / "run", store=tmp_path / "store")
    RunWriter(made.folder).log(step="epoch", epoch=0, **{NASTY: 1.0})
    names = {file.replace("digit 0/", f"{NASTY}/"): f"{digit}{NASTY}" for file, digit in truth.items()}
    hostile = page_of(made, truth=write_truth(tmp_path / "truth.csv", names))
    assert len(hostile.all("script")) == 1
    attributes = {name for element in hostile.walk() for name in element.attributes}
    assert not [name for name in attributes if name.startswith("on")]
    assert all(image.attributes["src"].startswith("data:") for image in hostile.all("img"))
    assert hostile.one("h1").raw == 'ph<b>"otos'
    assert NASTY in [card.one("h3").raw for card in hostile.one(id="known").all("article")]
    shown = {image.attributes["alt"] for image in hostile.all("img")}
    assert any(name.startswith(f"{NASTY}/") for name in shown)
    assert f"bad {NASTY}.png" in hostile.one(id="about").raw
    assert f"1{NASTY}" in hostile.one(id="truth").raw
    assert NASTY in hostile.one(id="training").raw


def test_the_page_asks_nothing_of_the_network(page):
    links = [
        value
        for element in page.walk()
        for name, value in element.attributes.items()
        if name in ("src", "href", "srcset", "action", "data", "poster", "xlink:href")
    ]
    assert len(links) > 50
    assert [link for link in links if not link.startswith(("#", "data:"))] == []
    assert "url(" not in CSS
    assert "@import" not in CSS
    policy = next(meta for meta in page.all("meta") if "http-equiv" in meta.attributes).attributes["content"]
    digest = base64.b64encode(hashlib.sha256(page.one("script").raw.encode()).digest()).decode()
    assert policy.startswith(
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    )


def test_paths_of_the_machine_are_not_on_the_page(tmp_path):
    truth = digit_photos(tmp_path / "photos")
    (tmp_path / "photos/unlabelled/bad.png").write_bytes(b"no image")
    labels = [(file, f"digit {digit}" if "unlabelled" not in file else "") for file, digit in truth.items()]
    rows = [(tmp_path / "photos" / file, label) for file, label in [*labels, ("unlabelled/bad.png", "")]]
    with (tmp_path / "table.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("file_name", "label"), *rows])
    config = Config.of(str(tmp_path / "table.csv"), categories=5, backbone="pixels")
    made = discover(config, tmp_path / "run", store=tmp_path / "store")
    out = write_report(made, tmp_path / "page.html").read_text()
    assert str(tmp_path) not in out
    assert {"unlabelled/", "table.csv", "bad.png"} <= set(re.findall(r"unlabelled/|table\.csv|bad\.png", out))


def test_two_hundred_categories_stay_below_ten_megabytes(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "benchmarks"))
    from report_size import make_run

    made = make_run(tmp_path / "made", n=6000, k=200, photos=20, dims=32)
    out = write_report(made, tmp_path / "page.html")
    assert 2e6 < out.stat().st_size < 10e6
    large = parse(out.read_text())
    assert len(large.all("article")) == 200
    assert all(len(card.all("img")) >= 8 for card in large.all("article"))
    assert min(int(image.attributes["width"]) for image in large.one(id="new").all("img")) >= 80


def test_photos_that_are_gone_are_grey_and_noted(home):
    before = parse(write_report(Run.open(home / "run"), home / "page.html").read_text())
    assert before.all("p", "note") == []
    gone = before.one(id="new").all("img")[0].attributes["alt"]
    (home / "photos" / gone).unlink()
    done = selex("report", "run", cwd=home)
    assert done.returncode == 0
    assert done.stderr.startswith("note: 1 of ")
    after = parse((home / "run/report.html").read_text())
    image = after.one(id="new").all("img")[0]
    assert base64.b64decode(image.attributes["src"].partition(",")[2]) == thumbnail("", 320, 76)
    assert "could not be read and are grey" in after.one("p", "note").text


def test_bad_input_is_one_line_and_nothing_is_written(home):
    refused("no such run folder", "report", "nowhere", cwd=home)
    refused("is not a run folder", "report", "photos", cwd=home)
    refused("no such file", "report", "run", "--truth", "none.csv", cwd=home)
    refused("the folder none does not exist", "report", "run", "--out", "none/page.html", cwd=home)
    refused("is inside the folder of photos", "report", "run", "--out", "photos", cwd=home)
    refused("is an input", "report", "run", "--out", "truth.csv", "--truth", "truth.csv", cwd=home)
    (home / "mine.html").write_text("<p>mine</p>")
    refused("is not what this command writes", "report", "run", "--out", "mine.html", cwd=home)
    (home / "other.csv").write_text("file,label\nnobody.png,cat\n")
    refused("has no true category for any unlabelled image", "report", "run", "--truth", "other.csv", cwd=home)
    refused("cannot be written", "report", "run", cwd=home, file_limit=100_000)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("clusters.parquet", b"PAR1 no", "clusters.parquet: not a readable parquet file"),
        ("embeddings.npy", b"no", "embeddings.npy: cannot be read"),
        ("model/model.json", b"{}", "model: cannot be read"),
        ("hierarchy.json", b"[]", "hierarchy.json: cannot be read"),
        ("hierarchy.json", b"{}", "hierarchy.json: is not a hierarchy of selex (KeyError: 'names')"),
        ("hierarchy.json", b'{"levels": [{"sizes": [60], "parents": null}]}', "hierarchy.json: is not a hierarchy"),
    ],
)
def test_a_damaged_run_is_refused(home, name, data, message):
    (home / "run" / name).write_bytes(data)
    refused(f"{name}: is damaged, or of another run", "report", "run", cwd=home)
    reseal(home / "run")  # a stranger's run may be well sealed and make no sense
    refused(message, "report", "run", cwd=home)


def test_files_that_do_not_belong_together_are_refused(home):
    np.save(home / "run/embeddings.npy", np.zeros((3, 768), np.float32))
    reseal(home / "run")
    refused("has shape (3, 768), the clusters table 60 rows", "report", "run", cwd=home)


def test_an_unfinished_run_is_refused(home):
    for name in json.loads((home / "run/config.json").read_text())["files"]:
        (home / "run" / name).unlink()
    reseal(home / "run")
    refused("has no results yet", "report", "run", cwd=home)


def themes():
    """The colours of the page in light and in dark, by name."""
    blocks = re.findall(r":root \{(.*?)\}", CSS, re.S)
    light, dark = (dict(re.findall(r"--([\w-]+): (#\w{6})", block)) for block in blocks[:2])
    assert set(light) == set(dark)
    return {"light": light, "dark": dark}


def contrast(one, other):
    """The contrast ratio of two colours as WCAG 2 defines it."""

    def luminance(colour):
        parts = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
        return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722]

    high, low = sorted([luminance(one), luminance(other)], reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_contrast_is_enough_in_light_and_dark(theme):
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    colours = themes()[theme]
    grounds = ("page", "card", "track")
    text = [(front, back) for front in ("text", "muted", "known", "new") for back in grounds]
    text += [("text", back) for back in ("note", *(f"shade-{shade}" for shade in range(1, 6)))]
    drawn = [(front, back) for front in ("known", "new", "third", "muted") for back in ("page", "card")]
    assert [pair for pair in text if contrast(*(colours[name] for name in pair)) < 4.5] == []
    assert [pair for pair in drawn if contrast(*(colours[name] for name in pair)) < 3] == []


def test_every_colour_of_the_page_is_one_of_those():
    rest = re.sub(r":root \{.*?\}", "", CSS, flags=re.S)
    assert re.findall(r"#[0-9a-fA-F]{3,8}\b|rgb|hsl|\b(?:white(?!-)|black|grey|gray|red|blue)\b", rest) == []
    assert set(re.findall(r"var\(--([\w-]+)\)", rest)) == set(themes()["light"])


def test_a_truth_with_other_names_than_the_labels_is_pointed_out(digits, tmp_path):
    run = Run.open(digits / "run")
    names = dict.fromkeys(run.clusters["file"].to_pylist(), "one")
    page = page_of(run, truth=write_truth(tmp_path / "truth.csv", names))
    assert "None of the true categories has the name of a known category" in page.one(id="truth").text
