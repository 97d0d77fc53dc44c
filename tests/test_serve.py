"""`selex serve`: images posted, categories answered, and what is refused."""

import base64
import http.client
import io
import json
import re
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from PIL import Image
from starlette.testclient import TestClient

from commands import contents, discovered_digits, refused
from selex import load
from selex.review.server import serve as serving
from selex.review.server.guard import ROOM, Door, Room
from selex.review.server.serve import door_for, listen, server_of
from selex.runs.sorter import BATCH, Sorter
from selex.serve import BODIES, create_app

ASKED = ("category", "known", "confidence", "nearest", "runner_up", "distance", "fits", "mark")
PAGE = Path(__file__).parent.parent / "docs" / "serve.md"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return discovered_digits(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def sorter(home):
    sorter = Sorter(load(home / "run"))
    yield sorter
    sorter.close()


@pytest.fixture(scope="module")
def client(sorter):
    return TestClient(create_app(sorter, Door(8770)), base_url="http://127.0.0.1:8770")


@pytest.fixture(scope="module")
def photos(home):
    """New photos in several formats, one of them turned by its EXIF; the last is of something else."""
    folder = home / "new"
    folder.mkdir()
    chosen = sorted((home / "photos" / "unlabelled").iterdir())[::20]
    kinds = ("png", "jpg", "webp", "gif", "bmp", "tiff")
    for path, kind in zip(chosen, kinds, strict=True):
        Image.open(path).convert("RGB").resize((90, 120)).save(folder / f"{path.stem}.{kind}")
    turned = Image.Exif()
    turned[0x0112] = 6
    Image.open(chosen[0]).convert("RGB").resize((800, 500)).save(folder / "turned.jpg", exif=turned)
    Image.effect_noise((60, 60), 90).save(folder / "zz noise.png")
    return sorted(folder.iterdir())


@pytest.fixture(scope="module")
def expected(home, photos):
    """What `selex predict` says of them."""
    found = load(home / "run").predict([str(photo) for photo in photos], store=home / "new-store")
    rows = zip(*(found[name] for name in ASKED), strict=True)
    return [dict(zip(ASKED, row, strict=True)) for row in rows]


def same(answer, row):
    assert list(answer) == list(ASKED)
    numbers = ("confidence", "distance")
    assert {k: v for k, v in answer.items() if k not in numbers} == {k: v for k, v in row.items() if k not in numbers}
    assert [answer[name] for name in numbers] == pytest.approx([row[name] for name in numbers], abs=1e-5)


def post(client, body, kind="image/jpeg", path="/predict"):
    return client.post(path, content=body, headers={"content-type": kind})


def test_an_image_is_answered_as_predict_does(client, photos, expected):
    assert any(row["mark"] == "unlike any" for row in expected)
    assert any(row["fits"] for row in expected)
    for kind in ("image/jpeg", "application/octet-stream"):  # what it is called does not matter
        for photo, row in zip(photos, expected, strict=True):
            answer = post(client, photo.read_bytes(), kind)
            assert answer.status_code == 200, answer.text
            same(answer.json(), row)


def test_several_images_are_answered_in_their_order(client, photos, expected):
    order = [3, 0, 3, *range(len(photos))]
    images = [base64.b64encode(photos[number].read_bytes()).decode() for number in order]
    answer = client.post("/predict/batch", json={"images": images}).json()
    assert list(answer) == ["predictions"]
    for found, number in zip(answer["predictions"], order, strict=True):
        same(found, expected[number])


def test_images_that_come_together_go_through_the_network_together(home, photos, expected, monkeypatch):
    sizes, gate, plain = [], threading.Event(), Sorter._sorted

    def slowly(self, batch):
        sizes.append(len(batch))
        assert gate.wait(60)
        return plain(self, batch)

    monkeypatch.setattr(Sorter, "_sorted", slowly)
    sorter = Sorter(load(home / "run"))
    client = TestClient(create_app(sorter, Door(8770)), base_url="http://127.0.0.1:8770")
    clients = 2 * BATCH  # one of them is let in first, the others wait behind it
    with ThreadPoolExecutor(clients) as pool:
        numbers = [row % len(photos) for row in range(clients)]
        answers = [pool.submit(post, client, photos[number].read_bytes()) for number in numbers]
        timer = threading.Timer(2.0, gate.set)
        timer.start()
        for answer, number in zip(answers, numbers, strict=True):
            same(answer.result().json(), expected[number])
        timer.join()
    sorter.close()
    assert sum(sizes) == clients
    assert max(sizes) > 8
    assert max(sizes) <= BATCH


def test_a_failure_is_told_to_all_who_wait_and_the_next_is_sorted(home, photos, monkeypatch):
    plain = Sorter._sorted

    def fail(self, batch):
        monkeypatch.setattr(Sorter, "_sorted", plain)
        raise MemoryError("no memory")

    monkeypatch.setattr(Sorter, "_sorted", fail)
    sorter = Sorter(load(home / "run"))
    with pytest.raises(MemoryError):
        sorter.sort([photos[0].read_bytes()])
    assert len(sorter.sort([photos[0].read_bytes()])) == 1
    sorter.close()


def test_what_there_is(client, home):
    names = [{"name": name, "known": row < 3} for row, name in enumerate(load(home / "run").names)]
    assert client.get("/categories").json() == {"categories": names}
    health = client.get("/healthz").json()
    assert (health["status"], health["backbone"], health["device"]) == ("ok", "pixels", "cpu")
    paths = client.get("/openapi.json").json()["paths"]
    assert set(paths) == {"/predict", "/predict/batch", "/categories", "/healthz"}
    assert client.get("/docs").status_code == 404
    assert "curl --data-binary @photo.jpg" in client.get("/").text, "who opens the address is told what to do"


def half(photo):
    data = photo.read_bytes()
    return data[: len(data) // 2]


@pytest.mark.filterwarnings("ignore:Image size:PIL.Image.DecompressionBombWarning")  # as the server does
def test_what_is_no_image_is_one_clear_line(client, photos):
    jpeg = next(photo for photo in photos if photo.name == "turned.jpg")
    no_image = "not a JPEG, PNG, WebP, GIF, TIFF or BMP image"
    for body in (b"", b"hello", b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"\x89PNG\r\n\x1a\n", bytes(1000)):
        answer = post(client, body)
        assert answer.status_code == 422, body
        assert list(answer.json()) == ["detail"]
        assert "\n" not in answer.json()["detail"]
    assert post(client, b"hello").json() == {"detail": no_image}
    assert post(client, half(jpeg)).json()["detail"].startswith("truncated or damaged")
    large = io.BytesIO()
    Image.new("1", (10_000, 10_000)).save(large, "PNG")
    assert "too large" in post(client, large.getvalue()).json()["detail"]
    good = base64.b64encode(jpeg.read_bytes()).decode()
    bodies = {
        "image 1 is not base64": {"images": [good, "€"]},
        "image 0 is not base64": {"images": ["A"]},
        f"image 1: {no_image}": {"images": [good, base64.b64encode(b"hello").decode()]},
        "images: List should have at least 1 item after validation, not 0": {"images": []},
        "images: List should have at most 64 items after validation, not 65": {"images": [good] * 65},
        "images: Field required": {},
    }
    for detail, given in bodies.items():
        answer = client.post("/predict/batch", json=given)
        assert (answer.status_code, answer.json()) == (422, {"detail": detail})
    damaged = {"images": [good, good, base64.b64encode(half(jpeg)).decode()]}
    assert client.post("/predict/batch", json=damaged).json()["detail"].startswith("image 2: truncated or damaged")
    for body, status in {b"{": 422, b"": 422, b"\xff": 400}.items():
        answer = post(client, body, "application/json", "/predict/batch")
        assert (answer.status_code, "\n" in answer.json()["detail"]) == (status, False)
    assert post(client, b"{", "application/json", "/predict/batch").json() == {"detail": "the body is not JSON"}
    answer = post(client, b"{}", "application/json")
    assert (answer.status_code, "Content-Type: image/… or" in answer.text) == (415, True), "JSON goes to /predict/batch"
    assert post(client, jpeg.read_bytes(), path="/predict/batch").status_code == 415


def test_who_and_how_much_may_be_sent_is_limited(client, sorter, photos):
    body = photos[0].read_bytes()
    assert post(client, body, "text/plain").status_code == 415
    assert post(client, body, "multipart/form-data; boundary=x").status_code == 415
    assert post(client, b"x" * (BODIES.largest + 1)).status_code == 413
    assert client.post("/predict", content=iter([body]), headers={"content-type": "image/png"}).status_code == 200
    headers = {"content-type": "image/png", "origin": "http://evil.example"}
    assert client.post("/predict", content=body, headers=headers).status_code == 403
    outside = door_for("0.0.0.0", 8770)
    for_all = TestClient(create_app(sorter, outside), base_url="http://127.0.0.1:8770")
    assert for_all.get("/healthz").status_code == 401
    assert post(for_all, body).status_code == 401
    headers = {"content-type": "image/png", "authorization": f"Bearer {outside.token}"}
    assert for_all.post("/predict", content=body, headers=headers).status_code == 200


def test_more_bytes_than_there_is_room_for_wait_outside(client, sorter, photos):
    """Requests that are being answered hold so many bytes at most; others are told to come again."""
    inside, go, body = threading.Event(), threading.Event(), photos[0].read_bytes()

    async def slow(scope, receive, send):
        inside.set()
        await __import__("anyio").to_thread.run_sync(go.wait, 20)
        await client.app(scope, receive, send)

    small = TestClient(Room(slow, most=len(body) + 10), base_url="http://127.0.0.1:8770")
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(post, small, body)
        assert inside.wait(60)
        busy = post(small, body)
        assert (busy.status_code, busy.headers["retry-after"]) == (503, "1")
        go.set()
        assert first.result().status_code == 200
    assert post(small, body).status_code == 200
    assert BODIES.largest < ROOM


@pytest.fixture
def served(sorter, monkeypatch):
    """A server in a thread, with little patience; its port."""
    monkeypatch.setattr(serving, "SECONDS", 0.5)
    listener = listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    server = server_of(create_app(sorter, Door(port)))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    yield port
    server.should_exit = True
    thread.join(60)
    assert not thread.is_alive()
    listener.close()


LARGE = {
    "whole": lambda: b"x" * (40 << 20),
    "in chunks": lambda: (b"x" * (1 << 20) for _ in range(40)),
}


@pytest.mark.parametrize("body", LARGE.values(), ids=LARGE)
@pytest.mark.parametrize("connection", ["close", "keep-alive"])
@pytest.mark.parametrize("path", ["/predict", "/predict/batch"])
def test_who_sends_too_much_is_told_so(served, monkeypatch, path, connection, body):
    """Also a client that reads no answer before it has sent everything, such as `urllib`."""
    monkeypatch.setattr(serving, "SECONDS", 60)
    kind = "image/png" if path == "/predict" else "application/json"
    asking = http.client.HTTPConnection("127.0.0.1", served, timeout=60)
    headers = {"content-type": kind, "connection": connection}
    asking.request("POST", path, body(), headers, encode_chunked=True)
    answer = asking.getresponse()
    assert (answer.status, answer.read()) == (413, b"refused: the body is too large: send at most 32 MB\n")
    asking.close()


def test_who_asks_before_sending_too_much_sends_nothing(served):
    with socket.create_connection(("127.0.0.1", served), timeout=60) as connection:
        head = f"POST /predict HTTP/1.1\r\nHost: 127.0.0.1:{served}\r\nContent-Type: image/png\r\n"
        connection.sendall(f"{head}Expect: 100-continue\r\nContent-Length: {40 << 20}\r\n\r\n".encode())
        assert connection.recv(20).startswith(b"HTTP/1.1 413")


def test_who_dawdles_is_hung_up_on(served):
    with socket.create_connection(("127.0.0.1", served), timeout=60) as connection:
        head = f"POST /predict HTTP/1.1\r\nHost: 127.0.0.1:{served}\r\nContent-Type: image/png\r\n"
        connection.sendall(f"{head}Content-Length: 1000\r\n\r\nabc".encode())
        assert connection.recv(100) == b""


@pytest.mark.filterwarnings("ignore")  # of schemathesis
def test_requests_made_of_the_description_are_answered_as_described(served):
    import schemathesis
    from hypothesis import HealthCheck, Phase, given, settings

    described = schemathesis.openapi.from_url(f"http://127.0.0.1:{served}/openapi.json")
    answers = {}
    for found in described.get_all_operations():
        operation = found.ok()

        @settings(max_examples=15, database=None, derandomize=True, deadline=None,
                  suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.generate])  # fmt: skip
        @given(request=operation.as_strategy())
        def ask(request):
            answer = request.call(timeout=60)
            answers.setdefault(request.path, set()).add(answer.status_code)
            assert str(answer.status_code) in request.operation.definition.raw["responses"]

        ask()
    assert len(answers) == 4
    assert all(status < 500 for of_one in answers.values() for status in of_one)
    assert answers["/healthz"] == {200}


def test_the_command_serves_until_it_is_stopped_and_writes_nothing(home, photos, expected, tmp_path):
    before = contents(home)
    log = tmp_path / "log.jsonl"
    command = [sys.executable, "-m", "selex", "--log-json", log, "serve", "run", "--port", "0", "--device", "cpu"]
    server = subprocess.Popen(command, cwd=home, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout.readline() == "loading the network of run; this takes a few seconds\n"
        port = int(re.search(r"serving: http://127.0.0.1:(\d+)/$", server.stdout.readline())[1])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("POST", "/predict", photos[0].read_bytes(), {"content-type": "image/png"})
        same(json.load(connection.getresponse()), expected[0])
        connection.close()
        example = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[1]
        example = example.replace(":8770", f":{port}").replace("photo.jpg", str(photos[0]))
        names = {}
        exec(compile(example, "docs/serve.md", "exec"), names)
        same(names["found"], expected[0])
    finally:
        server.send_signal(signal.SIGINT)
        assert server.wait(60) == 0
        assert server.stdout.read().endswith("\nThe server has ended.\n")
        server.stdout.close()
    assert contents(home) == before
    said = [json.loads(line).get("message", "").split(":")[0] for line in log.read_text().splitlines()]
    assert said[1:3] == ["loading the network of run; this takes a few seconds", "serving"]
    assert said[-2:] == ["The server has ended.", ""]


def test_what_cannot_be_served(home):
    refused("nowhere: no such run folder", "serve", "nowhere", cwd=home)
    refused("'--port'", "serve", "run", "--port", 99999, cwd=home)
    refused("--host evil..", "serve", "run", "--host", "evil..", cwd=home)
