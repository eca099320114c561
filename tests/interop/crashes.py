#!/usr/bin/env python3
"""Real clients through the proxy, whose real server is killed (`kill -9`) in the middle of their calls.

    crashes.py --server COMMAND --proxy COMMAND --client NAME=COMMAND... [--restart]
    crashes.py --proxy COMMAND --client NAME=COMMAND...    # the proxy starts the server itself

COMMAND is one shell word; `{url}` in that of the proxy is the server's address, in that of a client the
proxy's. `--restart` starts the server again at once, at the same address.

Each call must end with its result, or with one clear error of the proxy, within LIMIT seconds, and its client must be
closed within as many more, DELETE included. A server that the proxy has started itself is known to be dead at once: each
call ends with the error within AT_ONCE seconds, which says how the process ended, and the next call is served again. Prints `ok CLIENT/CALL` or `FAIL CLIENT/CALL: why`, and at the end
`done N`. run.py runs it.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

from run import Process, exit_code, stop

LIMIT = 12.0  # seconds
AT_ONCE = 2.0  # seconds
BEGIN = 60.0  # for all clients to start and their calls to reach the server, or for another to start, in seconds
LOST = -31002  # the proxy's code for a call that was lost with its server: the outcome is unknown
LOOK_AWAY = 0.02  # seconds

CALLS = {
    "python1.9": ("talking", "talking-delete", "silent", "silent-delete"),
    "python1.12": ("talking", "talking-delete", "silent", "silent-delete"),
    "python1.30": ("talking", "talking-delete", "silent", "silent-delete"),
    "typescript1.32": ("talking", "talking-delete", "silent", "silent-delete"),
    "python": ("talking", "silent", "task"),
    "typescript": ("talking", "silent"),
}


class Told:
    """What a client has told, with the time at which it was seen."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.seen = 0
        self.words: dict[tuple[str, str], tuple[float, str]] = {}

    def look(self) -> None:
        lines = self.process.lines
        while self.seen < len(lines):
            what, _, rest = lines[self.seen].partition(" ")
            call, _, rest = rest.partition(" ")
            self.seen += 1
            self.words[what, call] = (time.monotonic(), rest)


def wait(clients: dict[str, Told], done: Callable[[], bool], seconds: float) -> None:
    """Looks until it is done, or for so long."""
    deadline = time.monotonic() + seconds
    while not done() and time.monotonic() < deadline:
        time.sleep(LOOK_AWAY)
        for told in clients.values():
            told.look()


def have(clients: dict[str, Told], what: str) -> Callable[[], bool]:
    return lambda: all((what, call) in told.words for name, told in clients.items() for call in CALLS[name])


def verdicts(clients: dict[str, Told], killed: float, is_child: bool) -> Iterator[tuple[str, str | None]]:
    """Each call's name, and what is wrong with how it ended."""
    for name, told in clients.items():
        for call in CALLS[name]:
            wrong = fault(told, call, killed, AT_ONCE if is_child else LIMIT)
            if wrong is None and is_child:
                _, how = told.words["ended", call]
                wrong = None if "SIGKILL" in how else f"it does not say how the process ended: {how}"
            yield f"{name}/{call}", wrong


def fault(told: Told, call: str, killed: float, limit: float) -> str | None:
    working, ended, left = (told.words.get((what, call)) for what in ("working", "ended", "left"))
    if working is None or working[0] > killed:
        return "the call was not under way when its server was killed"
    if ended is None:
        return f"the call did not end within {limit:.0f} s"
    when, how = ended
    if when < killed:
        return f"the call ended before its server was killed: {how}"
    if when - killed > limit:
        return f"the call took {when - killed:.1f} s to end: {how}"
    code, _, words = how.partition(" ")
    if how != "result" and code != str(LOST):
        return f"no error of a call that was lost, but {how}"
    if how != "result" and not json.loads(words).strip():
        return "the error says nothing"
    if left is None or left[0] - when > LIMIT:
        return f"the call ended after {when - killed:.1f} s, the client was not closed within {LIMIT:.0f} s more"
    if astray := told.words.get(("astray", call)):
        return f"there was another answer to the call: {astray[1]}"
    return None


def started_below(pid: int) -> list[int]:
    """The processes below this one that are no program of ours."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended meanwhile
            continue
    below = {pid}
    while more := {child for child, parent in parents.items() if parent in below} - below:
        below |= more
    ours = os.readlink(f"/proc/{pid}/exe")
    return [child for child in below if os.readlink(f"/proc/{child}/exe") != ours]


def serves(program: str, url: str) -> str | None:
    """What is wrong with how a call is answered."""
    command = [program, "call", url, "add", '{"a": 2, "b": 3}']
    said = subprocess.run(command, capture_output=True, text=True, timeout=BEGIN, check=False)
    return None if (said.returncode, said.stdout.strip()) == (0, "5") else f"a call after it: {said}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server")
    parser.add_argument("--proxy", required=True)
    parser.add_argument("--client", action="append", required=True, metavar="NAME=COMMAND")
    parser.add_argument("--restart", action="store_true")
    parser.add_argument("--times", action="store_true", help="say how long after the crash each call ended, and how")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))

    with tempfile.TemporaryDirectory(prefix="crashes-") as folder:
        logs = Path(folder)
        try:
            server, command = None, options.proxy
            if options.server:
                server = Process("server", shlex.split(options.server), logs)
                url = server.endpoint()
                command = command.replace("{url}", url)
            proxy = Process("proxy", shlex.split(command), logs)
            through = proxy.endpoint()
            commands = dict(client.split("=", 1) for client in options.client)
            clients = {
                name: Told(Process(name, shlex.split(command.replace("{url}", through)), logs))
                for name, command in commands.items()
            }
            wait(clients, have(clients, "working"), BEGIN)

            killed = time.monotonic()
            if server is None:
                for pid in started_below(proxy.child.pid):
                    os.kill(pid, signal.SIGKILL)
            else:
                server.signal(signal.SIGKILL)
            again = None
            if options.restart:
                server.wait(LIMIT)
                at = ["--port", str(urlsplit(url).port)]
                again = Process("server-again", [*shlex.split(options.server), *at], logs)
            wait(clients, have(clients, "ended"), killed + LIMIT + 1 - time.monotonic())
            wait(clients, have(clients, "left"), LIMIT)

            found = list(verdicts(clients, killed, server is None))
            if server is None:
                found.append(("proxy/serves-again", serves(shlex.split(options.proxy)[0], through)))
            if again is not None:
                again.endpoint()  # or the restart was none
            if proxy.child.poll() is not None:
                found.append(("proxy/survives", f"it ended with code {proxy.child.returncode}"))
            if options.times:
                for name, told in clients.items():
                    for (what, call), (when, how) in told.words.items():
                        print(f"# {name}/{call} {what} {when - killed:.2f} s {how}")
            if any(why for _, why in found):
                for process in Process.everyone:
                    print("\n".join(process.tail()), file=sys.stderr)
        finally:
            stop(Process.everyone)
    return exit_code(found)


if __name__ == "__main__":
    sys.exit(main())
