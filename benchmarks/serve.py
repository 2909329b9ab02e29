"""`elmo serve` under load: beside `Elmo.encode` on the same sentences, and beside a plain FastAPI handler of MiniLM.

    python benchmarks/serve.py [--model en] [--dtype int8] [--clients 1 8 64] [--seconds 5] [--peer]

The server has one core and one thread, the client another core. `Elmo.encode` has the server's core to itself, before
and after. Each cell is one run; vectors are compared with those of `Elmo.encode` to the bit before the first.
CPU is that of the server's process for one sentence: it tells the two apart also on a busy machine.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from peers.environments import BENCHMARKS, FASTAPI
from speed import machine, sentences

from elmokit import Elmo
from elmokit.serve.encodings import normalised

SERVER_CORE, CLIENT_CORE = 0, 1
_HEAD = b"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
WORDS = BENCHMARKS.parent / "src" / "elmokit" / "models" / "en" / "vocab.txt"


@dataclass(frozen=True)
class Load:
    """What one run measured."""

    requests: float
    """Answered per second."""
    texts: float
    latencies: list[float]
    cpu: float
    """Seconds of the server's CPU for each text."""
    refused: int

    def quantile(self, share: float) -> float:
        """Milliseconds in which this share of the requests was answered."""
        return sorted(self.latencies)[min(int(share * len(self.latencies)), len(self.latencies) - 1)] * 1e3


class Shared(Iterator[bytes]):
    """An iterator that several threads may use."""

    def __init__(self, items: Iterator[bytes]) -> None:
        self._items, self._lock = items, threading.Lock()

    def __next__(self) -> bytes:
        with self._lock:
            return next(self._items)


def one_client(port: int, bodies: Iterator[bytes], end: float, latencies: list[float], statuses: list[int]) -> None:
    """Send one request after the other on one connection."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while time.perf_counter() < end:
            body = next(bodies)
            begin = time.perf_counter()
            connection.sendall(_HEAD % len(body) + body)
            answer = b""
            while b"\r\n\r\n" not in answer:
                answer += connection.recv(1 << 20)
            head, _, rest = answer.partition(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
            assert length is not None
            left = int(length[1]) - len(rest)
            while left > 0:
                left -= len(connection.recv(1 << 20))
            statuses.append(int(head[9:12]))
            if statuses[-1] == 200:
                latencies.append(time.perf_counter() - begin)
            else:
                time.sleep(0.05)


def cpu_seconds(pid: int) -> float:
    """The CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def megabytes(pid: int) -> float:
    """The memory of a process."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


def measure(pid: int, port: int, texts: list[str], clients: int, per_request: int, seconds: float, more: str) -> Load:
    """Load a server for some seconds."""

    def bodies() -> Iterator[bytes]:
        at = 0
        while True:
            chosen = [texts[(at + i) % len(texts)] for i in range(per_request)]
            at += per_request
            yield json.dumps({"inputs": chosen, **json.loads(more)}).encode()

    latencies: list[float] = []
    statuses: list[int] = []

    def run() -> float:
        stream, begin = Shared(bodies()), time.perf_counter()
        clients_running = [
            threading.Thread(target=one_client, args=(port, stream, begin + seconds, latencies, statuses))
            for _ in range(clients)
        ]
        for client in clients_running:
            client.start()
        for client in clients_running:
            client.join()
        return time.perf_counter() - begin

    before = cpu_seconds(pid)
    wall = run()
    done = statuses.count(200)
    assert done, f"no request was answered: {set(statuses)}"
    cpu = (cpu_seconds(pid) - before) / (done * per_request)
    return Load(done / wall, done * per_request / wall, latencies, cpu, len(statuses) - done)


@contextmanager
def running(command: list[str], port: int) -> Iterator[int]:
    """A server on its core, until it answers /health."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, env=env, cwd=BENCHMARKS, preexec_fn=lambda: os.sched_setaffinity(0, {SERVER_CORE})
    )
    try:
        for _ in range(600):
            assert process.poll() is None, f"the server ended: {command}"
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=30):
                    break
            except OSError:
                time.sleep(0.2)
        yield process.pid
    finally:
        process.terminate()
        process.wait(60)


def encode_alone(elmo: Elmo, texts: list[str]) -> tuple[float, float, float]:
    """`Elmo.encode` on the server's core: sentences per second, CPU seconds for each, milliseconds for one alone."""
    os.sched_setaffinity(0, {SERVER_CORE})
    elmo.encode(texts, output="sentence")
    wall, cpu = time.perf_counter(), time.process_time()
    elmo.encode(texts, output="sentence")
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    single = []
    for text in texts:
        begin = time.perf_counter()
        elmo.encode([text], output="sentence")
        single.append(time.perf_counter() - begin)
    os.sched_setaffinity(0, {CLIENT_CORE})
    return len(texts) / wall, cpu / len(texts), sorted(single)[len(single) // 2] * 1e3


def check_bits(elmo: Elmo, port: int, texts: list[str]) -> None:
    """The server's vectors are those of `Elmo.encode`."""
    body = json.dumps({"inputs": texts, "encoding_format": "base64"}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/embed", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as response:
        found = [np.frombuffer(base64.b64decode(each), "<f4") for each in json.load(response)]
    want = [normalised(row) for row in elmo.encode(texts, output="sentence")]
    assert all(a.tobytes() == b.tobytes() for a, b in zip(found, want, strict=True)), "the vectors differ"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="en")
    parser.add_argument("--dtype")
    parser.add_argument("--clients", type=int, nargs="*", default=[1, 8, 64])
    parser.add_argument("--texts", type=int, nargs="*", default=[1, 32], help="per request")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each run")
    parser.add_argument("--port", type=int, default=18765)
    parser.add_argument("--peer", action="store_true", help="also measure FastAPI with a model of MiniLM's shape")
    parser.add_argument("--minilm", help="folder of all-MiniLM-L6-v2 for the peer [random weights]")
    given = parser.parse_args()
    torch.set_num_threads(1)
    for name, fact in machine.facts("cpu", 1).items():
        print(f"{name}: {fact}")
    text = sentences.read(None)
    texts = [" ".join(tokens) for tokens in text.drawn(400, seed=1)]
    elmo = Elmo.load(given.model, dtype=given.dtype, device="cpu")
    tokens = sum(len(elmo.tokenize(each)) for each in texts)
    print(f"sentences: {len(texts)} of {text.source}, {tokens / len(texts):.1f} tokens each\n")
    print("| | texts per request | clients | requests/s | sentences/s | p50 ms | p99 ms | CPU ms per sentence |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")

    def row(name: str, load: Load, clients: int, per_request: int) -> None:
        cells = [f"{load.requests:,.1f}", f"{load.texts:,.0f}", f"{load.quantile(0.5):,.1f}"]
        cells += [f"{load.quantile(0.99):,.1f}", f"{load.cpu * 1e3:.2f}"]
        print(f"| {name} | {per_request} | {clients} | {' | '.join(cells)} |", flush=True)

    rate, cpu, single = encode_alone(elmo, texts)
    print(f"| Elmo.encode | – | – | – | {rate:,.0f} | {single:.1f} (one alone) | – | {cpu * 1e3:.2f} |", flush=True)
    dtype = ["--dtype", given.dtype] if given.dtype else []
    servers = {
        "elmo serve": (
            [sys.executable, "-m", "elmokit", "serve", given.model, "--port", str(given.port), *dtype],
            '{"encoding_format": "base64"}',
        )
    }
    if given.peer:
        peer = [str(FASTAPI.make()), "-m", "peers.fastapi_minilm", str(given.port), str(WORDS)]
        servers["FastAPI, MiniLM"] = (peer + ([given.minilm] if given.minilm else []), "{}")
    memory: list[str] = []
    for name, (command, more) in servers.items():
        with running(command, given.port) as pid:
            if name == "elmo serve":
                check_bits(elmo, given.port, texts)
            measure(pid, given.port, texts, 4, 8, 1.0, more)
            before = megabytes(pid)
            for per_request in given.texts:
                for clients in given.clients:
                    load = measure(pid, given.port, texts, clients, per_request, given.seconds, more)
                    row(name, load, clients, per_request)
            memory.append(f"{name}: {before:.0f} MB before the runs, {megabytes(pid):.0f} after them")
    rate, cpu, single = encode_alone(elmo, texts)
    print(f"| Elmo.encode again | – | – | – | {rate:,.0f} | {single:.1f} (one alone) | – | {cpu * 1e3:.2f} |")
    print("\n" + "\n".join(memory))


if __name__ == "__main__":
    main()
