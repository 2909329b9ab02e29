"""Servers on one core, and clients on another core, which use plain sockets in threads."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SERVER_CORE, CLIENT_CORE = 0, 1
BENCHMARKS = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Reply:
    """A response, and the seconds until it arrived."""

    status: int
    headers: dict[str, str]
    body: bytes
    seconds: float


def request_bytes(path: str, fields: object) -> bytes:
    """A whole request with a JSON body."""
    body = json.dumps(fields).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


class Connection:
    """The connection of one client; a ConnectionError if it is closed before the response."""

    def __init__(self, port: int, timeout: float = 120.0) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def ask(self, request: bytes) -> Reply:
        """Send a request and read its response."""
        begin = time.perf_counter()
        self.socket.sendall(request)
        received = b""
        while b"\r\n\r\n" not in received:
            received += self._receive()
        head, _, rest = received.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        parts, left = [rest], int(headers["content-length"]) - len(rest)
        while left > 0:
            parts.append(self._receive())
            left -= len(parts[-1])
        return Reply(int(first[9:12]), headers, b"".join(parts), time.perf_counter() - begin)

    def _receive(self) -> bytes:
        part = self.socket.recv(1 << 20)
        if not part:
            raise ConnectionResetError("the connection was closed before the end of the response")
        return part


def ask(port: int, request: bytes) -> Reply:
    """Send one request on a new connection."""
    with Connection(port) as connection:
        return connection.ask(request)


def get(port: int, path: str) -> str:
    """The text at a path of a server."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as response:
        return str(response.read().decode())


def in_threads(count: int, run: Callable[[int], None]) -> list[threading.Thread]:
    """Call a function with 0, 1, 2 …, each in its own thread."""
    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    return threads


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which this share of the values lies."""
    return sorted(values)[min(int(share * len(values)), len(values) - 1)] if values else float("nan")


@dataclass
class Load:
    """The measurements of clients that send one request after the other."""

    wall: float = 0.0
    texts: int = 0
    latencies: list[float] = field(default_factory=list)

    def sentences(self) -> float:
        """Texts per second."""
        return self.texts / self.wall

    def requests(self) -> float:
        """Requests per second."""
        return len(self.latencies) / self.wall

    def milliseconds(self, share: float) -> float:
        """The time in which this share of the requests was answered."""
        return quantile(self.latencies, share) * 1e3


def closed_loop(port: int, texts: list[str], clients: int, per_request: int, seconds: float, **more: object) -> Load:
    """Run clients that each send their next request when they have a response."""
    load, lock = Load(), threading.Lock()
    next_text, begin = 0, time.perf_counter()

    def client(_: int) -> None:
        nonlocal next_text
        with Connection(port) as connection:
            while time.perf_counter() < begin + seconds:
                with lock:
                    first, next_text = next_text, next_text + per_request
                chosen = [texts[(first + i) % len(texts)] for i in range(per_request)]
                reply = connection.ask(request_bytes("/embed", {"inputs": chosen, **more}))
                assert reply.status == 200, reply
                with lock:
                    load.latencies.append(reply.seconds)
                    load.texts += per_request

    for thread in in_threads(clients, client):
        thread.join()
    load.wall = time.perf_counter() - begin
    return load


@contextmanager
def running(command: Sequence[str | Path], port: int, **env: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server with one thread on its core; the block begins when /health gives 200."""
    process = subprocess.Popen(
        command,
        env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", **env},
        cwd=BENCHMARKS,
        preexec_fn=lambda: os.sched_setaffinity(0, {SERVER_CORE}),
    )
    try:
        for _ in range(600):
            assert process.poll() is None, f"the server ended: {command}"
            try:
                get(port, "/health")
                break
            except OSError:
                time.sleep(0.2)
        yield process
    finally:
        process.terminate()
        process.wait(60)


@contextmanager
def busy_core(processes: int, seconds: float) -> Iterator[None]:
    """Run other programs on the server's core, for at most this number of seconds."""
    code = f"import time\nend = time.time() + {seconds}\nwhile time.time() < end: pass"
    started = [
        subprocess.Popen(["python3", "-c", code], preexec_fn=lambda: os.sched_setaffinity(0, {SERVER_CORE}))
        for _ in range(processes)
    ]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def megabytes(pid: int) -> float:
    """The resident memory of a process."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


def open_files(pid: int) -> int:
    """The number of open files and connections of a process."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def counters(port: int, name: str) -> dict[str, float]:
    """The values of a metric of `elmo serve` by its labels."""
    found = re.findall(rf"^{name}\{{(.*)\}} (\S+)$", get(port, "/metrics"), re.MULTILINE)
    return {labels: float(value) for labels, value in found}


def table(*rows: Sequence[Any]) -> None:
    """Print a table in Markdown; the first row is its head."""
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    print("\n".join([lines[0], "| --- " + "| ---: " * (len(rows[0]) - 1) + "|", *lines[1:]]) + "\n", flush=True)
