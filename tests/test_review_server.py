"""The server of the review page: pages, their JSON twins, decisions, and who is let in."""

import json
import re
import shutil
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from commands import refused, reseal, selex
from review_runs import made_up_run, small_run
from selex.io import locked
from selex.review.core.ledger import FILE
from selex.review.core.session import Review
from selex.review.server.app import create_app, schema_of
from selex.review.server.cards import natural
from selex.review.server.guard import Door
from selex.review.server.pages import THREADS
from selex.review.server.serve import door_for

NASTY = "<img src=x onerror=alert(1)>\"'&"
ODD_FILE = 'a "quoted" <b>\nnew line é 日本 %2e%2e.png'


@pytest.fixture
def folder(tmp_path):
    return small_run(tmp_path, images=True).folder


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A client of a run that many examples share."""
    return client_of(Review(small_run(tmp_path_factory.mktemp("shared")).folder))


def client_of(review, door=None):
    return TestClient(create_app(review, door or Door(8760)), base_url="http://127.0.0.1:8760")


@pytest.fixture
def client(review):
    return client_of(review)


def decide(client, kind, version=None, **fields):
    version = version or client.get("/api/standing").json()["version"]
    return client.post("/api/decisions", json={"version": version, "kind": kind, **fields})


PAGES = {
    "/": "/api/categories",
    "/?sort=name&filter=novel": "/api/categories?sort=name&filter=novel",
    "/category/3": "/api/categories/3",
    "/images?filter=unsure": "/api/images?filter=unsure",
    "/image/5": "/api/images/5",
    "/next": "/api/suggestions",
    "/history": "/api/history",
}


@pytest.mark.parametrize("page", PAGES)
def test_every_page_names_its_json_twin(client, page):
    html = client.get(page)
    assert html.status_code == 200
    twin = re.search(r'rel="alternate" type="application/json" href="([^"]+)"', html.text)[1].replace("&amp;", "&")
    assert twin == PAGES[page]
    assert client.get(twin).json()["standing"]["version"] == "1.0"


def test_categories_are_ordered_filtered_and_found(client):
    def names(**query):
        return [card["name"] for card in client.get("/api/categories", params=query).json()["categories"]]

    cards = client.get("/api/categories").json()["categories"]
    assert [card["size"] for card in cards] == sorted((card["size"] for card in cards), reverse=True)
    assert names(sort="name") == ["known-0", "known-1", "novel-1", "novel-2", "novel-3"]
    sure = {card["name"]: card["confidence"] for card in cards}
    assert names(sort="confidence") == sorted(sure, key=sure.get)
    assert set(names(filter="known")) == {"known-0", "known-1"}
    assert set(names(filter="novel")) == {"novel-1", "novel-2", "novel-3"}
    assert names(filter="changed") == []
    decide(client, "name", category=4, name="Robin")
    assert names(filter="changed") == names(q="ROB") == ["Robin"]
    assert set(names(level=2, cluster=0)) == {"known-0", "known-1"}
    assert client.get("/api/categories?q=003").json()["files"] == 1
    assert [image["file"] for image in client.get("/api/images?q=003").json()["images"]] == ["003.png"]


def test_the_tree_has_the_levels(client):
    tree = client.get("/api/categories?level=2&cluster=1").json()["tree"]
    assert {(node["cluster"], node["known"], node["categories"], node["open"]) for node in tree} == {
        (0, True, 2, False),
        (1, False, 3, True),
    }


def test_a_category_shows_its_doubtful_images_first_and_its_neighbours(client, review):
    page = client.get("/api/categories/3").json()
    sure = [image["confidence"] for image in page["images"]]
    assert sure == sorted(sure)
    assert page["total"] == (review.results.category == 3).sum()
    assert len(page["neighbours"]) == 4
    likeness = [other["similarity"] for other in page["neighbours"]]
    assert likeness == sorted(likeness, reverse=True)


def test_the_whole_round_of_decisions(client):
    size = {card["id"]: card["size"] for card in client.get("/api/categories").json()["categories"]}
    done = decide(client, "name", category=3, name="robin").json()
    assert (done["summary"], done["missed"]) == ("named novel-2 “robin”", [])
    parts = client.get("/api/categories/3/parts?parts=2").json()
    assert sum(part["size"] for part in parts["parts"]) == size[3]
    assert decide(client, "split", category=3, parts=[parts["parts"][1]["rows"]]).status_code == 200
    assert client.get("/api/categories/5").json()["total"] == parts["parts"][1]["size"]
    assert decide(client, "merge", categories=[3, 5]).status_code == 200
    assert client.get("/api/categories/5").status_code == 404
    assert client.get("/category/5").status_code == 404
    standing = client.get("/api/standing").json()
    assert standing["undo"] == f"merged novel-4 into robin ({size[3]} images)"
    for _ in range(3):
        standing = client.post("/api/undo", json={"version": standing["version"]}).json()["standing"]
    assert (standing["decisions"], standing["undo"], standing["redo"]) == (0, None, True)
    assert client.post("/api/undo", json={"version": standing["version"]}).status_code == 422
    redone = client.post("/api/redo", json={"version": standing["version"]}).json()
    assert redone["summary"] == "redone: named novel-2 “robin”"
    events = client.get("/api/history").json()["events"]
    assert [event["kind"] for event in events] == ["redo", "undo", "undo", "undo", "decide", "decide", "decide"]


def test_a_moved_image_says_where_it_was(client):
    decide(client, "move", rows=[3], category=0)
    (image,) = client.get("/api/images?filter=changed").json()["images"]
    assert (image["row"], image["category_name"], image["was"]) == (3, "known-0", "novel-2")
    assert "was novel-2" in client.get("/images?filter=changed").text


def test_two_tabs_never_disagree_silently(client):
    assert decide(client, "name", category=3, name="robin", version="1.0").status_code == 200
    other = decide(client, "name", category=4, name="wren", version="1.0")
    assert other.json()["missed"] == ["named novel-2 “robin”"]
    same = decide(client, "confirm", category=3, version="1.0")
    assert same.status_code == 409
    assert same.json()["missed"] == ["named novel-2 “robin”", "named novel-3 “wren”"]
    assert client.get("/api/standing").json()["decisions"] == 2


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({"kind": "name", "category": 3, "name": "known-0"}, "already"),
        ({"kind": "name", "category": 3}, "give category and name"),
        ({"kind": "guess"}, "kind"),
        ({"kind": "set_aside", "rows": [0], "path": "/etc/passwd"}, "path"),
        ({"kind": "set_aside", "rows": ["../../etc/passwd"]}, "rows"),
        ({"kind": "move", "rows": [4000], "category": 0}, "there are images 0 to 39"),
        ({"kind": "move", "rows": [-1], "category": 0}, "greater than or equal to 0"),
        ({"kind": "set_aside", "rows": [10**30]}, "less than 2147483648"),
        ({"kind": "set_aside", "rows": [2**31 - 1]}, "there are images 0 to 39"),
    ],
)
def test_wrong_decisions_are_refused_with_a_reason(client, body, word):
    answer = client.post("/api/decisions", json={"version": "1.0", **body})
    assert answer.status_code == 422
    assert word in json.dumps(answer.json())
    assert client.get("/api/standing").json()["version"] == "1.0"


NUMBERS = st.one_of(st.integers(-3, 45), st.integers(), st.floats(), st.none(), st.text(max_size=3))
VALUES = st.one_of(NUMBERS, st.lists(NUMBERS, max_size=3), st.lists(st.lists(NUMBERS, max_size=2), max_size=2))
FIELD_NAMES = st.sampled_from(["category", "categories", "rows", "parts", "name", "kind", "version", "more"])


@given(
    st.dictionaries(FIELD_NAMES, VALUES), st.sampled_from(["name", "merge", "split", "move", "confirm", "set_aside"])
)
def test_whatever_is_sent_is_answered(shared, body, kind):
    content = json.dumps({"version": "1.0", "kind": kind, **body})
    answer = shared.post("/api/decisions", content=content, headers={"content-type": "application/json"})
    assert answer.status_code in (200, 400, 409, 422), answer.text
    assert shared.get("/").status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/thumb/../../etc/passwd",
        "/thumb/..%2f..%2fetc%2fpasswd",
        "/picture/%2Fetc%2Fpasswd",
        "/static/..%2f..%2fetc%2fpasswd",
        "/static/x/..%2f..%2fetc%2fpasswd",
        "/static/../app.py",
        "/image/..%2f..%2fetc%2fpasswd",
        "/../../etc/passwd",
        "/thumb/-1",
        "/thumb/40",
        "/thumb/99999999999999999999999",
    ],
)
def test_no_path_of_a_request_reaches_the_disk(client, path):
    answer = client.get(path)
    assert answer.status_code in (404, 422)
    assert "root:" not in answer.text


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8760", "127.0.0.1:1", "127.0.0.1:8760.evil.example", "", "192.168.0.7:8760"]
)
def test_a_foreign_host_is_refused(client, host):
    answer = client.get("/", headers={"host": host})
    assert (answer.status_code, "Host" in answer.text) == (403, True)


@pytest.mark.parametrize("host", ["127.0.0.1:8760", "localhost:8760", "[::1]:8760"])
def test_this_machine_has_several_names(client, host):
    assert client.get("/api/standing", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1:8760", "http://127.0.0.1:8761"])
def test_a_foreign_origin_is_refused(client, origin):
    body = {"version": "1.0", "kind": "set_aside", "rows": [0]}
    assert client.post("/api/decisions", json=body, headers={"origin": origin}).status_code == 403
    assert client.get("/api/standing", headers={"origin": origin}).status_code == 403
    assert client.get("/api/standing").json()["version"] == "1.0"
    assert client.post("/api/decisions", json=body, headers={"origin": "http://127.0.0.1:8760"}).status_code == 200


def test_what_other_sites_can_send_unasked_is_refused(client):
    body = json.dumps({"version": "1.0", "kind": "set_aside", "rows": [0]})
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        assert client.post("/api/decisions", content=body, headers={"content-type": kind}).status_code == 415
    for headers in ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, {"sec-fetch-site": "same-site"}):
        assert client.get("/thumb/0", headers=headers).status_code == 403
    assert client.get("/", headers={"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}).status_code == 200
    assert client.put("/api/decisions", json={}).status_code == 405
    assert (
        client.post(
            "/api/decisions", content=b"[" * (9 << 20), headers={"content-type": "application/json"}
        ).status_code
        == 413
    )


def test_every_answer_keeps_other_sites_out(client):
    script = re.search(r'<script type="module" src="([^"]+)"', client.get("/").text)[1]
    assert "immutable" in client.get(script).headers["cache-control"]
    for path in ("/", "/api/standing", "/thumb/0", script, "/none"):
        headers = client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert headers["referrer-policy"] == "no-referrer"


def test_away_from_this_machine_a_token_is_needed(review):
    door = door_for("0.0.0.0", 8760)
    client = client_of(review, door)
    client.follow_redirects = False
    assert len(door.token) >= 32
    assert (
        client.get("/").status_code
        == client.get("/?token=wrong").status_code
        == client.get("/thumb/0").status_code
        == 401
    )
    assert client.get("/", headers={"authorization": f"Bearer {door.token}"}).status_code == 200
    assert (
        client.get("/", headers={"host": "evil.example:8760", "authorization": f"Bearer {door.token}"}).status_code
        == 403
    )
    answer = client.get(f"/images?filter=set_aside&token={door.token}")
    assert (answer.status_code, answer.headers["location"]) == (303, "/images?filter=set_aside")
    assert "HttpOnly" in answer.headers["set-cookie"]
    assert "SameSite=strict" in answer.headers["set-cookie"]
    assert (
        client.get(
            "/", headers={"host": "192.168.0.7:8760", "cookie": answer.headers["set-cookie"].split(";")[0]}
        ).status_code
        == 200
    )
    assert (
        client.get(f"http://127.0.0.1:8760//evil.example?token={door.token}")
        .headers["location"]
        .startswith("/evil.example")
    )
    assert door_for("127.0.0.1", 1).token is door_for("localhost", 1).token is door_for("::1", 1).token is None


class Tags(HTMLParser):
    """What is in a page: tags that load or run something, and where they point."""

    def __init__(self):
        super().__init__()
        self.found, self.text = [], []

    def handle_starttag(self, tag, attributes):
        self.found += [
            (tag, name, value)
            for name, value in attributes
            if name in ("src", "href", "action", "style") or name.startswith("on")
        ]

    def handle_data(self, data):
        self.text.append(data)


def nasty_client(tmp_path):
    (tmp_path / "photos").mkdir()
    names = ["a", NASTY, "novel-1"]
    files = [ODD_FILE, *(f"{NASTY.replace('/', '')}{row}.png" for row in range(8))]
    made_up_run(tmp_path / "run", tmp_path / "photos", files, np.arange(9) % 3, 2, names)
    return client_of(Review(tmp_path / "run"))


@pytest.mark.parametrize(
    "page",
    ["/", "/category/1", "/images", "/image/0", "/next", "/history", "/?q=%3Cimg%20src%3Dx", f"/images?q={NASTY}"],
)
def test_names_of_files_and_categories_are_text_everywhere(tmp_path, page):
    client = nasty_client(tmp_path)
    assert decide(client, "name", category=2, name=f"{NASTY} 2").status_code == 200
    assert decide(client, "set_aside", rows=[3]).status_code == 200
    html = client.get(page)
    assert html.status_code == 200
    tags = Tags()
    tags.feed(html.text)
    for tag, name, value in tags.found:
        assert not name.startswith("on"), (tag, name)
        assert name != "style", "the policy lets no style attribute through"
        assert value.startswith(("/", "#")), f"{tag} {name} leaves this server: {value}"
    assert "<script>" not in html.text
    if page in ("/", "/history"):
        assert NASTY in "".join(tags.text)
    if page == "/image/0":
        assert ODD_FILE in "".join(tags.text)


def test_photos_that_are_gone_are_grey_and_noted(tmp_path):
    run = small_run(tmp_path, images=True)
    shutil.rmtree(tmp_path / "photos")
    client = client_of(Review(run.folder))
    assert "The photos are not where they were" in client.get("/api/standing").json()["note"]
    assert "grey squares stand for them" in client.get("/").text
    answer = client.get("/thumb/0")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "image/jpeg")
    assert "max-age=60" in answer.headers["cache-control"], "they may come back"
    assert client.get("/picture/0").status_code == 200


def test_thumbnails_are_made_once(client, monkeypatch):
    first = client.get("/thumb/3")
    assert "max-age" in first.headers["cache-control"]
    monkeypatch.setattr("selex.review.server.pages.thumbnail", lambda path, side: pytest.fail("made again"))
    assert client.get("/thumb/3").content == first.content


def test_export_from_the_page_has_the_decisions(client, folder):
    decide(client, "name", category=3, name="robin")
    decide(client, "set_aside", rows=[0])
    written = client.post("/api/export", json={"to": "csv"}).json()
    lines = (folder / "exports" / "csv-1.2.csv").read_text().splitlines()
    assert written["path"] == str(folder / "exports" / "csv-1.2.csv")
    assert written["images"] == len(lines) - 1 == 39
    assert any(",robin," in line for line in lines)
    assert client.post("/api/export", json={"to": "folders"}).json()["categories"] == 5
    assert len(list((folder / "exports" / "folders-1.2" / "robin").iterdir())) > 0
    assert client.post("/api/export", json={"to": "csv"}).json()["path"].endswith("csv-1.2-2.csv")
    assert client.post("/api/export", json={"to": "../../x"}).status_code == 422
    assert client.post("/api/export", json={"to": "csv", "out": "/tmp/x"}).status_code == 422


def test_the_schema_describes_every_api_route(client):
    found = client.get("/openapi.json").json()
    assert found["paths"].keys() == schema_of()["paths"].keys()
    for path, methods in found["paths"].items():
        for method, about in methods.items():
            assert about["description"], path
            answer = about["responses"]["200"]["content"]["application/json"]["schema"]
            assert answer["$ref"].startswith("#/components/schemas/"), (method, path)
    assert client.get("/docs").status_code == 404, "its page would load scripts from elsewhere"


WRONG = {
    ("post", "/api/decisions"): [
        ({"json": {"version": f"1.{'9' * 5000}", "kind": "set_aside", "rows": [0]}}, 409),
        ({"json": {"version": "9" * 5000 + ".0", "kind": "set_aside", "rows": [0]}}, 409),
        ({"content": '{"version": "1.0", "kind": "set_aside", "rows": [' + "9" * 5000 + "]}"}, 400),
        ({"content": b"\xff"}, 400),
        ({"content": "{"}, 422),
        ({"json": {"version": "1.0", "kind": "set_aside", "rows": [400]}}, 422),
        ({"content": "{}", "headers": {"content-type": "text/plain"}}, 415),
        ({"content": "{}", "headers": {"transfer-encoding": "chunked"}}, 422),
        ({"content": "{}", "headers": {"content-length": "9" * 5000}}, 413),
        ({"json": {}, "headers": {"host": "evil.example"}}, 403),
    ],
    ("post", "/api/undo"): [({"json": {"version": f"1.{'9' * 5000}"}}, 409), ({"json": {"version": "1.0"}}, 422)],
    ("post", "/api/export"): [({"json": {"to": "nowhere"}}, 422), ({"content": b"\xff"}, 400)],
    ("get", "/api/categories/{category}"): [({"category": 10**30}, 404), ({"category": "9" * 5000}, 422)],
    ("get", "/api/categories/{category}/parts"): [({"category": 99}, 404), ({"category": 0, "parts": 10**30}, 422)],
    ("get", "/api/images/{row}"): [({"row": -1}, 404), ({"row": 10**30}, 404), ({"row": "9" * 5000}, 422)],
    ("get", "/api/rows"): [({"category": 10**30}, 404), ({"filter": "x"}, 422)],
    ("get", "/api/history"): [({"round": 10**30}, 404), ({"page": 0}, 422)],
    ("get", "/api/categories"): [({"q": "x" * 201}, 422), ({"level": 10**30, "cluster": 10**30}, 200)],
    ("get", "/api/standing"): [({}, 200)],
}


@pytest.mark.parametrize("route", WRONG, ids=" ".join)
def test_the_schema_says_which_errors_there_are(client, folder, route):
    method, path = route
    described = schema_of()["paths"][path][method]["responses"]
    for values, status in WRONG[route]:  # type: ignore[attr-defined]
        if method == "get":
            answer = client.get(path.format_map({key: str(value) for key, value in values.items()}), params=values)
        else:
            kept = {"content-type": "application/json"} | values.get("headers", {})
            answer = client.post(path, **values | {"headers": kept})
        assert answer.status_code == status, (values, answer.text)
        (kind,) = described[str(status)]["content"]
        assert answer.headers["content-type"].startswith(kind)
    (folder / "clusters.parquet").unlink()
    answer = client.request(method, path.format_map({"category": "0", "row": "0"}), json={"version": "1.0"})
    assert answer.status_code in (503, 422)
    assert str(answer.status_code) in described


def test_names_are_sorted_as_people_count():
    huge = "9" * 5000
    names = ["b", f"a{huge}", "a10", "a2", "a02", "a", f"a1{huge}"]
    assert sorted(names, key=natural) == ["a", "a2", "a02", "a10", f"a{huge}", f"a1{huge}", "b"]


def test_the_server_needs_no_torch(folder):
    code = "\n".join(
        [
            "import sys; from pathlib import Path",
            "from selex.review.server.app import create_app; from selex.review.server.guard import Door",
            "from selex.review.core.session import Review",
            f"app = create_app(Review(Path({str(folder)!r})), Door(1)); app.state.views.category(3)",
            "assert not {'torch', 'sklearn', 'timm'} & set(sys.modules), 'heavy'",
        ]
    )
    import subprocess

    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "no such run folder"),
        (["photos"], "is not a run folder"),
        (["half"], "has no results yet"),
        (["run", "--host", "no.such.host.invalid"], "--host no.such.host.invalid"),
    ],
)
def test_a_mistake_is_one_line(tmp_path, folder, arguments, message):
    shutil.copytree(folder, tmp_path / "half")
    reseal(tmp_path / "half", files={})
    (folder / "review.sqlite").unlink(missing_ok=True)
    if arguments[0] == "run":
        Review(folder).ledger.close()  # there is a ledger already: a refusal leaves nothing new
    refused(message, "review", *arguments, "--no-browser", cwd=tmp_path)


def test_a_port_in_use_is_one_line(tmp_path, folder):
    Review(folder).ledger.close()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        refused("cannot be used", "review", "run", "--no-browser", "--port", taken.getsockname()[1], cwd=tmp_path)


def test_an_export_after_review_has_the_corrections(tmp_path, review):
    found = selex("export", "run", "--to", "csv", "--out", "before.csv", cwd=tmp_path)
    assert "decision" not in found.stdout
    client = client_of(review)
    decide(client, "name", category=3, name="robin")
    done = selex("export", "run", "--to", "csv", "--out", "after.csv", cwd=tmp_path)
    assert "with 1 decision from `selex review`" in done.stdout
    assert ",robin," in (tmp_path / "after.csv").read_text()
    selex("export", "run", "--to", "csv", "--out", "found.csv", "--as-found", cwd=tmp_path)
    assert (tmp_path / "found.csv").read_bytes() == (tmp_path / "before.csv").read_bytes()


def test_all_images_of_a_list(client, review):
    listed = client.get("/api/images?filter=undecided").json()
    rows = client.get("/api/rows?filter=undecided").json()
    assert len(rows["rows"]) == listed["total"]
    assert rows["standing"]["version"] == "1.0"
    of_one = client.get("/api/rows?category=1").json()["rows"]
    assert sorted(of_one) == np.flatnonzero(review.state.category == 1).tolist()
    assert client.get("/api/rows?q=01").json()["rows"] == [1, *range(10, 20)]
    assert client.get("/api/rows?category=99").status_code == 404


def test_nothing_is_decided_while_the_run_is_written(client, folder):
    with locked(folder) as ours:
        assert ours
        answer = decide(client, "confirm", category=0)
        assert (answer.status_code, "being reclustered" in answer.json()["detail"]) == (422, True)
        assert client.get("/").status_code == 200
    assert decide(client, "confirm", category=0).status_code == 200


def test_a_run_or_a_ledger_that_is_gone_is_said_so(client, folder):
    (folder / FILE).unlink()
    answer = decide(client, "confirm", category=0)
    assert (answer.status_code, "start `selex review` again" in answer.json()["detail"]) == (503, True)
    shutil.rmtree(folder)
    assert decide(client, "confirm", version="1.0", category=0).status_code == 503
    page = client.get("/")
    assert (page.status_code, page.headers["content-type"]) == (503, "text/plain; charset=utf-8")
    assert page.text.startswith("error: ")


def test_the_page_answers_while_days_are_read_from_photos(client, monkeypatch):
    reading, go = threading.Event(), threading.Event()

    def slow(path):
        reading.set()
        assert go.wait(60)
        return "2024-05-31", ""

    monkeypatch.setattr("selex.review.core.metadata.taken", slow)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(client.get, "/api/images?since=2024-05-01")
        assert reading.wait(60)
        assert client.get("/api/categories").status_code == 200  # and does not wait for the days
        assert not asked.done()
        go.set()
        assert asked.result().json()["total"] == 40


def checked(client):
    """What was found, once it is."""
    end = time.monotonic() + 60
    while (found := client.get("/api/check").json())["state"] == "running":
        assert time.monotonic() < end
        time.sleep(0.02)
    return found


def test_a_check_of_the_round_before_that_fails_late_is_none_of_this_one(client, review, tmp_path, monkeypatch):
    began, go = threading.Event(), threading.Event()

    def fail_late(path):
        began.set()
        assert go.wait(60)
        raise ValueError("late")

    with monkeypatch.context() as patched:
        patched.setattr("selex.review.server.checks.measure", fail_late)
        client.post("/api/check", json={})
        old = client.app.state.views._checks._look
        assert began.wait(60)
        new = small_run(tmp_path / "new", n=44, images=True)  # the run is done again, with other results
        for path in ("clusters.parquet", "clusters.csv", "hierarchy.json", "embeddings.npy"):
            shutil.copy(new.folder / path, review.run.folder / path)
        reseal(review.run.folder)
    client.post("/api/check", json={})
    assert checked(client)["state"] == "done"
    go.set()
    end = time.monotonic() + 60
    while not old.failed:
        assert time.monotonic() < end
        time.sleep(0.02)
    found = checked(client)
    assert (found["state"], found["failed"], found["total"]) == ("done", None, 44)


@pytest.mark.parametrize("path", ["/thumb/0", "/picture/0"])
def test_the_page_answers_while_many_photos_are_waited_for(review, monkeypatch, path):
    """As photos on a disk that sleeps are: more of them than there are threads."""
    waiting, go = threading.Semaphore(0), threading.Event()

    def slow(*given):
        waiting.release()
        assert go.wait(60)
        return b"jpeg"

    monkeypatch.setattr("selex.review.server.pages.thumbnail", slow)
    monkeypatch.setattr("selex.review.server.pages.picture", slow)
    with client_of(review) as client, ThreadPoolExecutor(60) as pool:  # one loop for all, as the server has
        asked = [pool.submit(client.get, path) for _ in range(60)]
        assert all(waiting.acquire(timeout=60) for _ in range(THREADS))
        assert client.get("/api/categories").status_code == 200
        assert not any(one.done() for one in asked)
        go.set()
        assert {one.result().content for one in asked} == {b"jpeg"}
