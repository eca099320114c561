#!/usr/bin/env python3
"""Real clients whose proxy ends in the middle of their tasks, and is started again at its address, over its store.

    restarts.py --server COMMAND --proxy COMMAND --client NAME=COMMAND... [--drain] [--resumable]

COMMAND is one shell word; `{url}` in that of the proxy is the server's address, in that of a client the proxy's, and
`{folder}` there is where it finds out what has happened.

The proxy is killed (`kill -9`), or with `--drain` told to stop, long enough before a task could end; it is away then
until all calls have ended at the server. Each handle must go on: what had ended is served; with `--resumable` the
others end with their own results, and each call was made once; without, each of them fails with LOST. A proxy that
drains leaves all of them to the next, says so in its last line, and its server hears of no end. Prints `ok CLIENT/TASK`
or `FAIL CLIENT/TASK: why`, and at the end `done N`. run.py runs it.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from crashes import LOST, Told
from recorded import Exchange, Recorder
from run import Process, exit_code, stop

BEGIN = 60.0  # for all clients to start, and for their tasks to come so far, in seconds
LIMIT = 20.0  # for all tasks to end once the proxy is back, in seconds
WORK = 8.0  # that of the longest call, in seconds
AWAY = 1.0  # in seconds, beyond what the calls take
DRAIN = "300ms"
ANYWHERE = "127.0.0.1:0"  # where the proxy is told to listen
LOOK_AWAY = 0.02  # seconds

KINDS = ("done", "work", "ask", "late")
CALLERS = {
    "python1.30": ("python1.30",),
    "python": ("python", "fastmcp"),
    "typescript1.32": ("typescript1.32",),
    "typescript": ("typescript", "typescript-older"),
}
# What they show of a task that failed is its statusMessage.
WITHOUT_CODE = ("typescript-older",)


def wait(told: list[Told], done: tuple[str, ...], names: list[str], seconds: float) -> None:
    """Looks until all of them have said one of these, or for so long."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for each in told:
            each.look()
        if all(any((word, name) in each.words for each in told for word in done) for name in names):
            return
        time.sleep(LOOK_AWAY)


def heard(told: list[Told], what: str, name: str) -> tuple[float, str] | None:
    return next((each.words[what, name] for each in told if (what, name) in each.words), None)


def fault(told: list[Told], name: str, ended: float, is_resumable: bool) -> str | None:
    """What is wrong with how a task went on."""
    if broken := heard(told, "broken", name):
        return json.loads(broken[1])
    working, end = heard(told, "working", name), heard(told, "ended", name)
    if working is None or working[0] > ended:
        return "the task was not far enough when the proxy ended"
    if end is None:
        return f"the task did not end within {LIMIT:.0f} s"
    if end[0] < ended:
        return f"the task ended before the proxy did: {end[1]}"
    if is_resumable or name.endswith("-done"):
        want = json.dumps(f"{name} <{name}>" if name.endswith(("-ask", "-late")) else f"slow {name} is done")
        return None if end[1] == want else f"it ended with {end[1]}, not with {want}"
    code, _, words = end[1].partition(" ")
    if code != ("undefined" if name.startswith(WITHOUT_CODE) else str(LOST)):
        return f"no error of a call that was lost, but {end[1]}"
    return None if "may have run" in json.loads(words) else f"it does not say that the call may have run: {words}"


def label(exchange: Exchange) -> str | None:
    """Which of the calls it is."""
    if not exchange.key().startswith("tools/call"):
        return None
    given = json.loads(exchange.request[2])["params"]["arguments"]
    return given.get("label") or given.get("question")


def on_the_wire(
    wire: list[Exchange], names: list[str], is_resumable: bool, ended: float, again: float
) -> Iterator[tuple[str, str | None]]:
    """What the server was told."""
    made = {name: [each for each in wire if label(each) == name] for name in names}
    often = {name: len(calls) for name, calls in made.items() if len(calls) != 1}
    yield "server/each-call-is-made-once", f"calls by name: {often}" if often else None
    if not is_resumable:
        return
    live = {name: calls[0] for name, calls in made.items() if calls and not name.endswith("-done")}
    sessions = {session for call in live.values() for session in call.request[1].get("mcp-session-id", [])}
    ids = [json.loads(call.request[2])["id"] for call in live.values()]

    def is_end(exchange: Exchange) -> bool:
        # What a client asks for beside its tasks it may take back.
        if exchange.key() == "notifications/cancelled":
            return json.loads(exchange.request[2])["params"]["requestId"] in ids
        is_delete = exchange.request[0].startswith("DELETE") and exchange.began < again
        return bool(is_delete and sessions.intersection(exchange.request[1].get("mcp-session-id", [])))

    told = [f"{each.key()} {each.began - ended:.2f} s after: {each.request[2]!r}" for each in wire if is_end(each)]
    yield "server/hears-of-no-end", f"it was told {told}" if told else None


def drained(log: Path, tasks: int) -> str | None:
    """What is wrong with the last line of a proxy that has stopped."""
    last = log.read_text(errors="replace").splitlines()[-1]
    said = {name: int(number) for name, number in re.findall(r"\b(tasks_released|tasks_lost|calls_lost)=(\d+)", last)}
    want = {"tasks_released": tasks, "tasks_lost": 0, "calls_lost": 0}
    return None if said == want else f"its last line is {last}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", required=True)
    parser.add_argument("--proxy", required=True)
    parser.add_argument("--client", action="append", required=True, metavar="NAME=COMMAND")
    parser.add_argument("--drain", action="store_true")
    parser.add_argument("--resumable", action="store_true", help="the server keeps what it says")
    parser.add_argument("--show", action="store_true", help="say what the clients told, and what the server was")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    found: list[tuple[str, str | None]] = []

    with tempfile.TemporaryDirectory(prefix="restarts-") as logs:
        folder = Path(logs)
        (folder / "proxy.yaml").write_text(json.dumps({"drain": DRAIN}))
        try:
            recorder = Recorder(Process("server", shlex.split(options.server), folder).endpoint())
            command = shlex.split(options.proxy.replace("{url}", recorder.url))
            command += ["--store", f"disk:{folder}/store", "--config", f"{folder}/proxy.yaml"]
            first = Process("proxy", command, folder)
            url = first.endpoint()
            commands = dict(client.split("=", 1) for client in options.client)
            told = [
                Told(Process(name, shlex.split(words.replace("{url}", url).replace("{folder}", logs)), folder))
                for name, words in commands.items()
            ]
            names = [f"{caller}-{kind}" for name in commands for caller in CALLERS[name] for kind in KINDS]
            wait(told, ("ready", "broken"), names, BEGIN)
            (folder / "go").touch()
            wait(told, ("working", "broken"), names, BEGIN)

            ended = time.monotonic()
            first.signal(signal.SIGTERM if options.drain else signal.SIGKILL)
            if not first.wait(LIMIT):
                found.append(("proxy/ends", f"it did not within {LIMIT:.0f} s"))
            if options.drain:
                left = sum(not name.endswith("-done") for name in names)
                found.append(("proxy/leaves-them-to-the-next", drained(first.log, left)))
                time.sleep(max(0.0, ended + WORK + AWAY - time.monotonic()))
            at = urlsplit(url).netloc
            second = Process("proxy-again", [at if word == ANYWHERE else word for word in command], folder)
            second.endpoint()
            again = time.monotonic()
            (folder / "again").touch()
            wait(told, ("ended", "broken"), names, LIMIT)

            found += [(name, fault(told, name, ended, options.resumable)) for name in names]
            wire = recorder.exchanges()
            found += on_the_wire(wire, names, options.resumable, ended, again)
            if second.child.poll() is not None:
                found.append(("proxy/survives", f"it ended with code {second.child.returncode}"))
            if options.show:
                for each in told:
                    for (what, name), (when, how) in each.words.items():
                        print(f"# {name} {what} {when - ended:.2f} s {how}")
                for each in wire:
                    print(f"# {each.began - ended:.2f} s {each.key()} {each.answer and each.answer[0]}")
            if any(why for _, why in found):
                for process in Process.everyone:
                    print("\n".join(process.tail()), file=sys.stderr)
        finally:
            stop(Process.everyone)
    return exit_code(found)


if __name__ == "__main__":
    sys.exit(main())
