"""Downloads from a server on this machine that answers a few requests and then stops."""

from __future__ import annotations

import hashlib
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from elmokit.compat import tfhub
from elmokit.compat.allennlp import ConfigurationError, ElmoEmbedder
from elmokit.compat.load import cached_as, local_path
from elmokit.errors import DamagedFileError, ElmoError

BODY = bytes(range(256)) * 9000  # more than two blocks


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.seen.append(self.path)
        if self.path.startswith("/missing"):
            self.send_error(404, "Not Found")
            return
        if self.path.startswith("/moved"):
            self.send_response(302)
            self.send_header("Location", self.server.leads_to)
            self.end_headers()
            return
        self.send_response(200)
        if "unsized" not in self.path:
            self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()
        self.wfile.write(BODY[: len(BODY) // 2] if "cut" in self.path else BODY)

    def log_message(self, *args):
        pass


@pytest.fixture
def server(tmp_path, monkeypatch):
    """The address of the server; `server.seen` lists what was asked for."""
    monkeypatch.setenv("ELMOKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    http = HTTPServer(("127.0.0.1", 0), Handler)
    http.seen, http.timeout, http.leads_to = [], 5, "/weights.hdf5"
    http.address = f"http://127.0.0.1:{http.server_port}"

    def answer():
        for _ in range(4):
            if stopping.is_set():
                break
            http.handle_request()

    stopping = threading.Event()
    thread = threading.Thread(target=answer)
    thread.start()
    yield http
    stopping.set()
    http.socket.shutdown(2)
    thread.join(10)
    http.server_close()
    assert not thread.is_alive()


def cached(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache").iterdir()) if (tmp_path / "cache").exists() else []


@pytest.mark.parametrize("path", ["a/b.json", "en", "someone/elmo-is@v2", "hf://someone/elmo", Path("~/b.json")])
def test_paths_and_names_pass_through(path):
    assert local_path(path) is path


def test_downloads_once(server, tmp_path):
    url = f"{server.address}/some/folder/weights.hdf5"
    path = local_path(url)
    assert path.read_bytes() == BODY
    assert path.name.endswith("-weights.hdf5")
    assert local_path(url) == path
    assert server.seen == ["/some/folder/weights.hdf5"]
    assert cached(tmp_path) == [path]


def test_a_redirect_and_a_file_of_unknown_size(server):
    assert local_path(f"{server.address}/moved").read_bytes() == BODY
    assert local_path(f"{server.address}/unsized.bin").read_bytes() == BODY


def test_one_name_at_two_addresses_is_two_files():
    one, two = cached_as("https://a.org/x/options.json"), cached_as("https://a.org/y/options.json")
    assert one != two
    assert one.parent == two.parent
    long = cached_as("https://a.org/" + "é/%2e%2e/ü" * 200 + "?key=value")
    assert len(long.name.encode()) < 200
    assert long.parent == one.parent


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("missing.json", "the server answered 404 Not Found"),
        ("cut.hdf5", f"only {len(BODY) // 2} of {len(BODY)} bytes arrived"),
    ],
)
def test_a_failed_download_leaves_nothing(server, tmp_path, place, reason):
    url = f"{server.address}/{place}"
    with pytest.raises(ElmoError) as error:
        local_path(url)
    assert str(error.value) == f"{url} could not be downloaded ({reason}): download the file by hand and pass its path"
    assert cached(tmp_path) == []


def test_a_failed_download_is_tried_again(server, tmp_path):
    with pytest.raises(ElmoError, match="404"):
        local_path(f"{server.address}/missing.json")
    assert local_path(f"{server.address}/there.json").read_bytes() == BODY
    assert len(cached(tmp_path)) == 1


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:1/weights.hdf5", "https://[broken", "https://", "https://127.0.0.1:99999/x", "https://a b/c"],
)
def test_an_address_that_answers_nothing(tmp_path, monkeypatch, url):
    monkeypatch.setenv("ELMOKIT_CACHE", str(tmp_path / "cache"))
    with pytest.raises(ElmoError, match=r"download the file by hand and pass its path$"):
        local_path(url)
    assert cached(tmp_path) == []


@pytest.mark.parametrize("url", ["http://a.org/weights.hdf5", "HTTP://127.0.0.1.a.org/x", "http://localhost@a.org/x"])
def test_plain_http_is_refused_without_a_digest(tmp_path, monkeypatch, url):
    monkeypatch.setenv("ELMOKIT_CACHE", str(tmp_path / "cache"))
    for end in ("", "#sha256=12", "#md5=" + "0" * 64):
        with pytest.raises(ElmoError, match=r"use https://, or end the address in #sha256="):
            local_path(url + end)
    assert cached(tmp_path) == []


def test_a_redirect_to_plain_http_is_refused(server, tmp_path, monkeypatch):
    """127.0.0.2 is this machine too, and not one of the names that are trusted."""
    monkeypatch.setenv("no_proxy", "127.0.0.1,127.0.0.2")
    with HTTPServer(("127.0.0.2", 0), Handler) as other:
        other.seen, other.timeout = [], 5
        server.leads_to = f"http://127.0.0.2:{other.server_port}/weights.hdf5"
        thread = threading.Thread(target=other.handle_request)
        thread.start()
        with pytest.raises(ElmoError, match=r"127\.0\.0\.2:[0-9]+/weights.hdf5 could be replaced in transit"):
            local_path(f"{server.address}/moved")
        thread.join(10)
    assert cached(tmp_path) == []


def test_the_digest_of_an_address_is_checked(server, tmp_path):
    url, digest = f"{server.address}/weights.hdf5", hashlib.sha256(BODY).hexdigest()
    with pytest.raises(ElmoError, match=f"its sha256 is {digest}"):
        local_path(f"{url}#sha256={'0' * 64}")
    assert cached(tmp_path) == []
    assert local_path(f"{url}#sha256={digest}").read_bytes() == BODY


@pytest.mark.parametrize("load", [tfhub.Module, lambda url: ElmoEmbedder(weight_file=url)], ids=["tfhub", "allennlp"])
def test_a_damaged_download_does_not_stay_in_the_cache(server, tmp_path, load):
    for _ in range(2):
        with pytest.raises(ElmoError, match="removed from the cache") as caught:
            load(f"{server.address}/weights.hdf5")
        assert isinstance(caught.value, DamagedFileError | ConfigurationError)
        assert cached(tmp_path) == []
    assert len(server.seen) == 2


def test_a_whole_download_stays_in_the_cache(server, tmp_path):
    """Its options are missing, which is not the fault of the file."""
    with pytest.raises(ElmoError):
        tfhub.Module(f"{server.address}/notes.txt")
    assert len(cached(tmp_path)) == 1


def test_other_schemes_are_refused():
    with pytest.raises(ElmoError, match="must begin with https"):
        local_path("s3://allennlp/models/elmo/weights.hdf5")


def test_a_cache_that_cannot_be_made(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ELMOKIT_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(ElmoError, match="ELMOKIT_CACHE"):
        local_path("http://127.0.0.1:1/weights.hdf5")
