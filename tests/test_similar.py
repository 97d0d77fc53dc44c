"""Images that are not of the run, sent to the review page: what is like them, where they belong, what is refused."""

import io
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from commands import contents, digit_photos
from review_runs import small_run
from selex import Config, discover, load
from selex.data.decode import MAX_SENT
from selex.review.core.decisions import Decision
from selex.review.core.session import Review
from selex.review.server.app import create_app, schema_of
from selex.review.server.guard import LARGEST_IMAGE, Door
from selex.runs.sorter import Sorter

PATH = "/api/similar"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A run of digits, in whitened features, so that those that are compared are not those that are kept."""
    home = tmp_path_factory.mktemp("home")
    digit_photos(home / "photos", per_digit=15)
    config = Config.of(str(home / "photos"), categories=5, backbone="pixels", adapt="on")
    discover(config, home / "run", store=home / "store")
    return home


@pytest.fixture
def review(home, tmp_path):
    shutil.copytree(home / "run", tmp_path / "run")
    review = Review(tmp_path / "run")
    yield review
    review.ledger.close()


@pytest.fixture
def client(review):
    app = create_app(review, Door(8760))
    yield TestClient(app, base_url="http://127.0.0.1:8760")
    app.state.views.eye.close()


def post(client, body, kind="image/png"):
    return client.post(PATH, content=body, headers={"content-type": kind})


def test_an_image_of_the_run_is_most_like_itself_and_sorted_as_predict_does(client, home, review):
    files = [home / "photos" / review.results.files[row] for row in (0, 20, 50, 70)]
    expected = load(home / "run").predict([str(file) for file in files], store=home / "new-store")
    for file, nearest, confidence in zip(files, expected["nearest"], expected["confidence"], strict=True):
        found = post(client, file.read_bytes()).json()
        first = found["similar"][0]
        assert (home / "photos" / first["file"], first["similarity"]) == (file, 1.0)
        assert [card["similarity"] for card in found["similar"]] == sorted(
            (card["similarity"] for card in found["similar"]), reverse=True
        )
        assert (found["category"]["name"], found["confidence"]) == (nearest, pytest.approx(confidence, abs=1e-4))


def test_similar_images_are_those_of_largest_cosine(client, home, review):
    row = 33
    features = np.array(review.embeddings, dtype=np.float64)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    best = np.argsort(-(features @ features[row]))[:24]
    found = post(client, (home / "photos" / review.results.files[row]).read_bytes()).json()["similar"]
    assert [card["row"] for card in found] == best.tolist()


def test_the_category_is_the_one_there_is_now(client, home, review):
    file = (home / "photos" / review.results.files[70]).read_bytes()
    was = post(client, file).json()["category"]["id"]
    other = (was + 1) % 5
    review.decide(Decision("merge", categories=(other, was), name="both"), review.version)
    found = post(client, file).json()
    assert (found["category"]["id"], found["category"]["name"]) == (other, "both")
    assert found["runner_up"] != "both"


def test_nothing_that_is_sent_is_kept(client, tmp_path):
    before = contents(tmp_path)
    file = io.BytesIO()
    Image.effect_noise((60, 60), 90).save(file, "PNG")
    assert post(client, file.getvalue(), "application/octet-stream").json()["fits"] is False
    assert contents(tmp_path) == before


def png(width, height):
    file = io.BytesIO()
    Image.new("1", (width, height)).save(file, "PNG")
    return file.getvalue()


@pytest.mark.filterwarnings("ignore:Image size:PIL.Image.DecompressionBombWarning")  # as the server does
def test_what_is_no_image_or_too_large_is_one_clear_line(client, home, review, monkeypatch):
    monkeypatch.setattr("selex.runs.sorter.decode", lambda *given: pytest.fail("it was decoded"))
    good = (home / "photos" / review.results.files[0]).read_bytes()
    bodies = {
        b"": "not a JPEG",
        b"hello": "not a JPEG",
        b"<svg/>": "not a JPEG",
        png(10_000, 10_000): "too large: 10000",
    }
    assert MAX_SENT < 10_000 * 10_000
    for body, words in bodies.items():
        answer = post(client, body)
        assert (answer.status_code, list(answer.json())) == (422, ["detail"])
        assert answer.json()["detail"].startswith(words)
    monkeypatch.undo()
    assert post(client, good[: len(good) // 2]).json()["detail"].startswith("truncated or damaged")
    assert post(client, b"x" * (LARGEST_IMAGE + 1)).status_code == 413
    assert post(client, good, "text/plain").status_code == 415
    assert post(client, good, "application/json").status_code == 415
    assert client.post(PATH, content=iter([good]), headers={"content-type": "image/png"}).status_code == 200
    assert client.post("/api/decisions", content=good, headers={"content-type": "image/png"}).status_code == 415
    headers = {"content-type": "image/png", "origin": "http://evil.example"}
    assert client.post(PATH, content=good, headers=headers).status_code == 403


def test_weights_that_are_not_there_are_one_clear_line(tmp_path, home, client, monkeypatch):
    good = next((home / "photos").rglob("*.png")).read_bytes()
    bare = Review(small_run(tmp_path / "bare").folder)  # a run without a model
    answer = post(TestClient(create_app(bare, Door(8760)), base_url="http://127.0.0.1:8760"), good)
    assert answer.status_code == 503
    assert "\n" not in answer.json()["detail"]
    monkeypatch.setattr("selex.models.network.Backbone.fingerprint", lambda self: "others")
    answer = post(client, good)
    assert (answer.status_code, answer.json()["detail"]) == (
        503,
        "backbone pixels has other weights here than when the run was made; put the original file back",
    )
    monkeypatch.undo()
    assert post(client, good).status_code == 200  # once they are there again


def test_the_description_says_how_an_image_is_sent():
    described = schema_of()["paths"][PATH]["post"]
    assert {"image/jpeg", "image/png"} < described["requestBody"]["content"].keys()
    assert {"200", "401", "403", "411", "413", "415", "422", "503"} <= described["responses"].keys()


def test_many_images_keep_no_page_waiting_and_the_end_waits_for_what_is_looked_at(review, home, monkeypatch):
    looking, go, plain = threading.Event(), threading.Event(), Sorter.look

    def slow(self, files):
        looking.set()
        assert go.wait(60)
        return plain(self, files)

    monkeypatch.setattr(Sorter, "look", slow)
    good = (home / "photos" / review.results.files[0]).read_bytes()
    app = create_app(review, Door(8760))
    with TestClient(app, base_url="http://127.0.0.1:8760") as client, ThreadPoolExecutor(60) as pool:
        asked = [pool.submit(post, client, good) for _ in range(50)]
        assert looking.wait(60)
        assert client.get("/api/standing").status_code == 200
        ending = pool.submit(app.state.views.eye.close)
        assert not ending.done()
        go.set()
        ending.result(20)
        answers = [one.result() for one in asked]
    assert {answer.status_code for answer in answers} <= {200, 422}
    assert 200 in {answer.status_code for answer in answers}, "the one that was looked at"
    assert {answer.json()["detail"] for answer in answers if answer.status_code == 422} <= {
        "the server is shutting down"
    }
