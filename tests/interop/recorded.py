#!/usr/bin/env python3
"""The same session of a real SDK client straight to its server and through the proxy, byte by byte.

    recorded.py --server COMMAND --proxy COMMAND --client COMMAND [--edits none|tasks] [--show]

The client is a program that runs one scripted session against a URL. It runs twice, each time with a
server started for it, and through recorders, which are TCP forwarders that write down what passes:

    straight:           client ── A ── server
    through the proxy:  client ── B ── proxy ── C ── server

What the client sees at B must be what it sees at A, and what the server is sent at C must be what it
is sent at A, but for the edits listed below, each with its reason. Before that is compared, what must
differ between any two runs is put out of the way: NORMALISED says what. A COMMAND is one string, with
`{url}` where the address goes of what it talks to; servers and proxy say `listening on URL`.

Prints `ok NAME` or `FAIL NAME: why` for each exchange of the session, and `done N` at the end.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

SESSION_SECONDS = 40
STOP_SECONDS = 5
CHUNK = 65536

# --- what is compared, and what is not -----------------------------------------------------------

NORMALISED = """
session ids     the value of `Mcp-Session-Id`, wherever it stands: a server draws it at random
times           the value of `Date`, and a server's `: ping - TIME` comments, which come by the clock
ends            whether the end of a stream was seen: clients leave as soon as they have their answer
boundaries      how a body is cut into chunks and packets, and with it Content-Length or chunked
connections     which of them a request takes, their order, and what they say of themselves: HOP
ports           that of `Host`, which is where somebody connects to
names           the case of header names, and their order where names differ (RFC 9110, 5.1 and 5.3)

Nothing else: not the ids of events, which these servers number; not the ids of requests, which count
from 0 on both sides; and not the reason phrase of a status line.
"""

# Of one connection, not of the message (RFC 9110, 7.6.1; RFC 9112, 6 and 9).
HOP = {"connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "content-length"}


@dataclass
class Edit:
    """A difference that is meant. It is taken away, after which nothing may differ."""

    name: str
    why: str
    made_by_proxy: bool  # what it takes away is what the proxy put in, or else what it left out
    take: Callable[["Exchange"], int]  # changes one exchange; says how often
    least: int = 1  # it must have been found so often, or it is no edit any more


@dataclass
class Exchange:
    """A request and its answer, whole."""

    began: float
    request: tuple[str, dict[str, list[str]], bytes]  # request line, headers, body
    answer: tuple[str, dict[str, list[str]], bytes] | None = None  # status line, headers, body

    def key(self) -> str:
        """What is asked, in one word: the same in both runs. The id is the client's own."""
        method = self.request[0].split()[0]
        if method != "POST":
            return " after ".join([method, *self.request[1].get("last-event-id", [])])
        try:
            message = json.loads(self.request[2])
        except ValueError:
            return "POST unreadable"
        name = message.get("method", "answer")
        tool = message.get("params", {}).get("name") if name == "tools/call" else None
        number = f" {message['id']}" if "id" in message else ""
        return f"{name}{number}{f' {tool}' if tool else ''}"


def drop(headers: dict[str, list[str]], *names: str) -> int:
    return sum(headers.pop(name, None) is not None for name in names)


def take_bytes(pattern: bytes, method: str) -> Callable[[Exchange], int]:
    """Take these bytes out of the answers to that method, or to any if it is empty."""

    def take(exchange: Exchange) -> int:
        if exchange.answer is None or not exchange.key().startswith(method):
            return 0
        line, headers, body = exchange.answer
        body, count = re.subn(pattern, b"", body)
        exchange.answer = (line, headers, body)
        return count

    return take


# src/manual/passthrough.md, "Between a legacy client and a legacy server", has the same list in words.
TO_THE_SERVER = [
    Edit(
        "the client's Accept-Encoding",
        "what is coded could not be watched",
        False,
        lambda exchange: drop(exchange.request[1], "accept-encoding"),
    ),
    Edit(
        "Accept-Encoding: identity",
        "without it any coding would be allowed (RFC 9110, 12.5.3)",
        True,
        lambda exchange: drop(exchange.request[1], "accept-encoding")
        if exchange.request[1].get("accept-encoding") == ["identity"]
        else 0,
    ),
    Edit(
        "Via",
        "a request that comes back to the proxy is known by it (RFC 9110, 7.6.3)",
        True,
        lambda exchange: drop(exchange.request[1], "via"),
    ),
]
TASKS_CAPABILITY = rb',"tasks":\{"cancel":\{\},"list":\{\},"requests":\{"tools":\{"call":\{\}\}\}\}(?=\})'
COMMENTS = Edit(
    "comments on a silent stream",
    "what is on the way cuts connections that say nothing for long",
    True,
    take_bytes(rb"(?m)^:\n\n", ""),
    0,  # a session is seldom long enough
)
TO_THE_CLIENT = {
    "none": [COMMENTS],
    "tasks": [
        COMMENTS,
        Edit(
            "tasks capability",
            "a client of 2025-11-25 may run the tools of a server without tasks as tasks",
            True,
            take_bytes(TASKS_CAPABILITY, "initialize"),
        ),
        Edit(
            "taskSupport",
            "each tool says that it may be called as a task",
            True,
            take_bytes(rb',"execution":\{"taskSupport":"optional"\}(?=\})', "tools/list"),
        ),
    ],
}


# --- recording -----------------------------------------------------------------------------------


class Recorder:
    """Forwards TCP connections to one address, and keeps what passes, with the time of each piece."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.target = (parts.hostname, parts.port)
        self.connections: list[Connection] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = parts._replace(netloc=f"127.0.0.1:{self.listener.getsockname()[1]}").geturl()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            connection = Connection()
            self.connections.append(connection)
            try:
                server = socket.create_connection(self.target)
            except OSError:
                client.close()
                continue
            for source, sink, pieces in ((client, server, connection.up), (server, client, connection.down)):
                threading.Thread(target=pump, args=(source, sink, pieces), daemon=True).start()

    def exchanges(self) -> list[Exchange]:
        found = [exchange for connection in self.connections for exchange in connection.exchanges()]
        return sorted(found, key=lambda exchange: exchange.began)


def pump(source: socket.socket, sink: socket.socket, pieces: list[tuple[float, bytes]]) -> None:
    try:
        while piece := source.recv(CHUNK):
            pieces.append((time.monotonic(), piece))
            sink.sendall(piece)
    except OSError:
        pass
    for end in (sink, source):
        try:
            # The other direction goes on: a client may have said all, and still wait.
            end.shutdown(socket.SHUT_WR if end is sink else socket.SHUT_RD)
        except OSError:
            pass


@dataclass
class Connection:
    """Both directions of one connection, as they came."""

    up: list[tuple[float, bytes]] = field(default_factory=list)
    down: list[tuple[float, bytes]] = field(default_factory=list)

    def exchanges(self) -> list[Exchange]:
        requests, answers = Reader(self.up), Reader(self.down)
        found = []
        while (request := requests.message(True)) is not None:
            began, line, headers, body = request
            exchange = Exchange(began, (line, headers, body))
            found.append(exchange)
            # Nobody here pipelines, so the next answer is to this request.
            if (answer := answers.message(False)) is None:
                break
            exchange.answer = answer[1:]
        return found


class Reader:
    """HTTP/1.1 messages out of one direction of a connection."""

    def __init__(self, pieces: list[tuple[float, bytes]]) -> None:
        self.pieces = list(pieces)
        self.data = b"".join(piece for _, piece in self.pieces)
        self.place = 0

    def when(self) -> float:
        passed = 0
        for moment, piece in self.pieces:
            passed += len(piece)
            if passed > self.place:
                return moment
        return 0.0

    def message(self, request: bool) -> tuple[float, str, dict[str, list[str]], bytes] | None:
        """When it began, first line, headers, and the body without its framing, as far as it came."""
        began = self.when()
        end = self.data.find(b"\r\n\r\n", self.place)
        if end < 0:
            return None
        first, *lines = self.data[self.place : end].decode("latin-1").split("\r\n")
        headers: dict[str, list[str]] = {}
        for line in lines:
            name, _, value = line.partition(":")
            headers.setdefault(name.lower(), []).append(value.strip())
        self.place = end + 4
        if headers.get("transfer-encoding", [""])[-1].lower() == "chunked":
            body = self.chunks()
        elif "content-length" in headers:
            length = int(headers["content-length"][0])
            body = self.data[self.place : self.place + length]
            self.place += length
        elif request or first.split()[1] in ("204", "304"):
            body = b""
        else:  # until the connection ends
            body = self.data[self.place :]
            self.place = len(self.data)
        return began, first, headers, body

    def chunks(self) -> bytes:
        body = b""
        while True:
            end = self.data.find(b"\r\n", self.place)
            if end < 0:
                self.place = len(self.data)
                return body
            size = int(self.data[self.place : end].split(b";")[0], 16)
            body += self.data[end + 2 : end + 2 + size]
            self.place = end + 2 + size + 2
            if size == 0:
                return body


# --- comparing -----------------------------------------------------------------------------------


def session_ids(exchanges: list[Exchange]) -> list[str]:
    found: list[str] = []
    for exchange in exchanges:
        for headers in (exchange.request[1], exchange.answer[1] if exchange.answer else {}):
            found += [value for value in headers.get("mcp-session-id", []) if value not in found]
    return found


def normalise(exchanges: list[Exchange]) -> None:
    ids = session_ids(exchanges)

    def text(value: str) -> str:
        for place, session in enumerate(ids):
            value = value.replace(session, f"<session {place}>")
        return value

    def clean(headers: dict[str, list[str]]) -> dict[str, list[str]]:
        kept = {name: [text(value) for value in values] for name, values in headers.items() if name not in HOP}
        if "date" in kept:
            kept["date"] = ["<date>"] * len(kept["date"])
        if "host" in kept:
            kept["host"] = [re.sub(r":\d+$", ":<port>", value) for value in kept["host"]]
        return dict(sorted(kept.items()))

    for exchange in exchanges:
        line, headers, body = exchange.request
        exchange.request = (line, clean(headers), text(body.decode("latin-1")).encode("latin-1"))
        if exchange.answer is not None:
            line, headers, body = exchange.answer
            body = re.sub(rb"(?m)^: ping - [^\r\n]+(\r?\n){2}", b"", body)
            exchange.answer = (line, clean(headers), text(body.decode("latin-1")).encode("latin-1"))


def paired(exchanges: list[Exchange]) -> dict[str, Exchange]:
    """Each under its key, numbered where a key comes again."""
    found: dict[str, Exchange] = {}
    for exchange in exchanges:
        key, again = exchange.key(), 2
        while (name := key if again == 2 and key not in found else f"{key} #{again}") in found:
            again += 1
        found[name] = exchange
    return found


def difference(straight: object, proxied: object, what: str) -> str | None:
    """Where two things begin to differ, in words; none where they are the same."""
    if straight == proxied:
        return None
    if isinstance(straight, bytes) and isinstance(proxied, bytes):
        place = next(
            (at for at, (one, other) in enumerate(zip(straight, proxied)) if one != other),
            min(len(straight), len(proxied)),
        )
        around = slice(max(0, place - 60), place + 120)
        return f"{what} differs at byte {place}: straight …{straight[around]!r}… proxied …{proxied[around]!r}…"
    if isinstance(straight, dict) and isinstance(proxied, dict):
        for name in {**straight, **proxied}:
            if straight.get(name) != proxied.get(name):
                return f"{what} `{name}`: straight {straight.get(name)}, proxied {proxied.get(name)}"
    return f"{what}: straight {straight!r}, proxied {proxied!r}"


class Report:
    def __init__(self) -> None:
        self.count = self.failed = 0

    def say(self, name: str, why: str | None) -> None:
        self.count += 1
        self.failed += why is not None
        name = name.replace(" ", "-")
        print(f"FAIL {name}: {' '.join(why.split())}" if why else f"ok {name}", flush=True)


def compare(
    report: Report, side: str, straight: list[Exchange], proxied: list[Exchange], edits: list[Edit], part: str
) -> None:
    """One verdict for each exchange, one for each edit, and one that no exchange is missing."""
    counts = {edit.name: sum(map(edit.take, proxied if edit.made_by_proxy else straight)) for edit in edits}
    one, other = paired(straight), paired(proxied)
    missing = [f"not through the proxy: {name}" for name in one if name not in other]
    missing += [f"only through the proxy: {name}" for name in other if name not in one]
    report.say(f"{side}/the same exchanges", "; ".join(missing) or None)
    for name in one:
        if name not in other:
            continue
        mine, theirs = getattr(one[name], part), getattr(other[name], part)
        if mine is None or theirs is None:
            report.say(f"{side}/{name}", None if mine is theirs else f"straight {mine}, proxied {theirs}")
            continue
        report.say(
            f"{side}/{name}",
            difference(mine[0], theirs[0], "the first line")
            or difference(mine[1], theirs[1], "the header")
            or difference(mine[2], theirs[2], "the body"),
        )
    for edit in edits:
        fine = counts[edit.name] >= edit.least
        report.say(f"{side}/edit {edit.name}", None if fine else f"found {counts[edit.name]} times: {edit.why}")


# --- running -------------------------------------------------------------------------------------


class Listening:
    """A program that says where it listens; ended when we are done with it."""

    def __init__(self, command: str, url: str = "") -> None:
        words = [word.format(url=url) for word in shlex.split(command)]
        self.child = subprocess.Popen(words, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
        line = self.child.stdout.readline().decode().strip()
        if not line.startswith("listening on http://"):
            raise SystemExit(f"{words[0]} said {line!r}, not where it listens")
        self.url = line.removeprefix("listening on ")

    def __enter__(self) -> str:
        return self.url

    def __exit__(self, *_: object) -> None:
        self.child.terminate()
        try:
            self.child.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()


def run_client(command: str, url: str) -> str | None:
    """What went wrong."""
    words = [word.format(url=url) for word in shlex.split(command)]
    done = subprocess.run(words, stdout=subprocess.PIPE, timeout=SESSION_SECONDS, stdin=subprocess.DEVNULL)
    time.sleep(0.3)  # for the last bytes to pass
    return None if done.returncode == 0 else done.stdout.decode(errors="replace").strip().replace("\n", "; ")


def belongs(exchange: Exchange, sessions: set[str]) -> bool:
    said = exchange.request[1].get("mcp-session-id", [])
    given = exchange.answer[1].get("mcp-session-id", []) if exchange.answer else []
    return bool(sessions & {*said, *given})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", required=True, help="starts the server")
    parser.add_argument("--proxy", required=True, help="starts the proxy in front of {url}")
    parser.add_argument("--client", required=True, help="runs the session against {url}")
    parser.add_argument("--edits", choices=TO_THE_CLIENT, default="none", help="which edits of answers are meant")
    parser.add_argument("--show", action="store_true", help="print what was recorded through the proxy, as it came")
    options = parser.parse_args()
    report = Report()

    with Listening(options.server) as server:
        a = Recorder(server)
        report.say("session/straight", run_client(options.client, a.url))
    with Listening(options.server) as server:
        c = Recorder(server)
        with Listening(options.proxy, c.url) as proxy:
            b = Recorder(proxy)
            report.say("session/through the proxy", run_client(options.client, b.url))
    straight, seen, sent = a.exchanges(), b.exchanges(), c.exchanges()

    if options.show:
        for exchange in seen:
            print("#", exchange.key(), *exchange.request, *(exchange.answer or ["no answer"]), sep="\n#    ")
    # What the proxy asks the server for itself is not this client's: it has sessions of its own for that.
    ours = set(session_ids(seen))
    sent = [each for each in sent if belongs(each, ours)]
    for exchanges in (straight, seen, sent):
        normalise(exchanges)
    compare(report, "client", straight, seen, TO_THE_CLIENT[options.edits], "answer")
    compare(report, "server", straight, sent, TO_THE_SERVER, "request")
    print(f"done {report.count}", flush=True)
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
