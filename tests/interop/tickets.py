#!/usr/bin/env python3
"""Real clients that know no tasks, with the time-outs they come with, and a tool that is slower than those.

    tickets.py --setup                            # install the clients, once: venvs and node_modules
    tickets.py --deferral target/release/deferral # about two minutes; run.py --setup comes before

Each client calls the tool on a route with tickets and on one without. The model is a script that knows the text of the
last answer alone: which tool to call next, and with what, it reads there. With tickets each client must end with the
tool's own result, the tool having been begun once; without, it must die or live as CLIENTS says. Prints one line for
each check, `ok CLIENT/NAME` or `FAIL CLIENT/NAME: why`, and at the end `N passed, M failed`.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import venv
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from run import HERE, Process, digest, install, installed, stop

FOLDER = HERE / "tickets"
TURNS = 60  # calls by one model before it is given up


@dataclass(frozen=True)
class Client:
    home: str  # a venv, or node
    dies: bool  # without tickets, by a tool of 75 s


CLIENTS = {
    "python1.30": Client("server", dies=False),
    "typescript1.32": Client("node", dies=True),
    "langchain": Client("langchain", dies=False),
    "langchain-sessions": Client("langchain", dies=False),
    "pydantic-ai": Client("pydantic-ai", dies=False),
    "openai-agents": Client("openai-agents", dies=True),
    "mcp-use": Client("mcp-use", dies=False),
    "google-adk": Client("google-adk", dies=False),
    "ai-sdk": Client("node", dies=False),
    "langchain-js": Client("node", dies=True),
    "inspector": Client("node", dies=True),
}
HOMES = sorted({client.home for client in CLIENTS.values()} - {"server", "node"})


def interpreter(home: str, options: argparse.Namespace) -> str | Path:
    if home == "node":
        return options.node
    return options.cache / (".venv-server" if home == "server" else f".venv-tickets-{home}") / "bin" / "python"


def setup(options: argparse.Namespace) -> None:
    for home in HOMES:
        folder, pins = options.cache / f".venv-tickets-{home}", FOLDER / f"requirements-{home}.txt"
        want, stamp = digest(pins), folder / "installed"
        if installed(stamp, want):
            continue
        print(f"# installing {pins.name} into {folder}", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=True)
        install([folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--requirement", pins])
        stamp.write_text(want)
    want = digest(FOLDER / "package.json", FOLDER / "package-lock.json")
    stamp = FOLDER / "node_modules" / ".installed"
    if not installed(stamp, want):
        print(f"# installing package-lock.json into {FOLDER / 'node_modules'}", flush=True)
        install(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"], cwd=FOLDER)
        stamp.write_text(want)


# --- the model -----------------------------------------------------------------------------------


def told_to_call(text: str) -> dict[str, Any] | None:
    """What the text says to call next: "call the tool NAME with {JSON}". Knows no name, and no argument of ours."""
    if not (found := re.search(r"call the tool (\S+) with (?=\{)", text)):
        return None
    arguments, _ = json.JSONDecoder().raw_decode(text, found.end())
    return {"name": found[1], "arguments": arguments}


@dataclass
class Talk:
    """What a model and its tools said."""

    tools: list[str]
    turns: list[tuple[str, dict[str, str], float]]  # the tool, what it said or how it died, after how many seconds

    def last(self) -> dict[str, str]:
        return self.turns[-1][1]


def talk(name: str, url: str, options: argparse.Namespace, logs: Path) -> Talk:
    home = CLIENTS[name].home
    program = FOLDER / ("clients.mjs" if home == "node" else "clients.py")
    with (logs / f"{name}-{url.rsplit('/', 1)[1]}.log").open("wb") as log:
        child = subprocess.Popen(
            [interpreter(home, options), program, name, url],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip
        try:
            return conversation(name, child, options)
        finally:
            child.stdin.close()
            try:
                child.wait(5)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def conversation(name: str, child: subprocess.Popen[str], options: argparse.Namespace) -> Talk:
    tools = answer(child)
    said = Talk(tools, [])
    # The one call that the model makes of itself.
    called: dict[str, Any] | None = {"name": "survey", "arguments": {"about": name, "seconds": options.slow}}
    while called and len(said.turns) < TURNS:
        began = time.monotonic()
        child.stdin.write(json.dumps(called) + "\n")
        child.stdin.flush()
        got = answer(child)
        said.turns.append((called["name"], got, time.monotonic() - began))
        called = told_to_call(unescaped(got.get("said", "")))
    return said


def unescaped(text: str) -> str:
    """Some hand the model a list of blocks, or the whole result, as JSON, which a model reads as easily."""
    try:
        return "\n".join(strings(json.loads(text)))
    except ValueError:
        return text


def strings(value: Any) -> list[str]:
    if isinstance(value, dict):
        value = list(value.values())
    return [text for each in value for text in strings(each)] if isinstance(value, list) else [str(value)]


def answer(child: subprocess.Popen[str]) -> Any:
    """The next line that is an answer: some clients write other things there, too."""
    for line in child.stdout:
        if line.startswith(("[", "{")):
            try:
                return json.loads(line)
            except ValueError:
                pass
    raise RuntimeError(f"the client ended with code {child.wait()}")


# --- checks --------------------------------------------------------------------------------------


def why_not(name: str, talked: Talk, with_tickets: bool, options: argparse.Namespace) -> str | None:
    last = talked.last()
    done = re.search(r'\\?"about\\?":\s*\\?"' + re.escape(name), last.get("said", ""))
    if with_tickets:
        if not done:
            return f"no result of the tool's: {last}"
        if not re.search(r'\\?"begun\\?":\s*1\b', last["said"]):
            return f"the tool was begun again: {last}"
        if len(talked.turns) > 1:
            return None
        return "it was given no ticket"
    if options.slow < 75 or CLIENTS[name].dies != bool(done):
        return None
    return f"it {'lives' if done else 'dies'}, other than expected: {last}"


def check(name: str, urls: dict[str, str], options: argparse.Namespace, logs: Path) -> list[tuple[str, str | None]]:
    found = []
    for route, url in urls.items():
        try:
            talked = talk(name, url, options, logs)
            why = why_not(name, talked, route == "tickets", options)
            turns = ", ".join(f"{tool} {seconds:.0f} s" for tool, _, seconds in talked.turns)
            print(f"# {name}/{route}: {turns}; at last {json.dumps(talked.last(), ensure_ascii=False)[:400]}", flush=True)
        except (RuntimeError, OSError) as error:
            log = logs / f"{name}-{url.rsplit('/', 1)[1]}.log"
            why = f"{error}: {log.read_text(errors='replace')[-1500:]}"
        found.append((f"{name}/{route}", why))
    return found


def configuration(upstreams: list[str], options: argparse.Namespace, file: Path) -> Path:
    """Tickets on one route, for openai-agents in less than its 5 s; none on the other."""
    agents = [{"header": "X-Agent", "value": "openai-agents", "after": "4s"}]
    everybody = [{"client": "*"}]
    tickets = {"for": agents + everybody}
    if options.wait:
        tickets["wait"] = options.wait
    routes = [
        {"path": "/tickets", "upstream": {"url": upstreams[0]}, "held": {"ticket": options.ticket}, "tickets": tickets},
        {"path": "/none", "upstream": {"url": upstreams[1]}},
    ]
    file.write_text(json.dumps({"routes": routes}))
    return file


def run(options: argparse.Namespace, logs: Path) -> int:
    server = [interpreter("server", options), FOLDER / "server.py"]
    upstreams = [Process(f"server-{number}", server, logs).endpoint() for number in (1, 2)]
    file = configuration(upstreams, options, logs / "tickets.yaml")
    proxy = Process(
        "proxy", [options.deferral, "serve", "--listen", "127.0.0.1:0", "--admin", "off", "--config", file], logs
    )
    base = proxy.endpoint().rsplit("/", 1)[0]
    urls = {route: f"{base}/{route}" for route in ("tickets", "none")}
    names = [name for name in CLIENTS if not options.only or name in options.only.split(",")]
    failed = 0
    # All at once: they only wait. Each with tickets and without, too.
    with ThreadPoolExecutor(2 * len(names)) as pool:
        jobs = [pool.submit(check, name, {route: url}, options, logs) for name in names for route, url in urls.items()]
        found = [each for job in jobs for each in job.result()]
    for name, why in found:
        failed += why is not None
        print(f"FAIL {name}: {why}" if why else f"ok {name}", flush=True)
    print(f"{len(found) - failed} passed, {failed} failed")
    return 1 if failed or not found else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--deferral", type=Path, help="the proxy's program")
    parser.add_argument("--setup", action="store_true", help="install the clients first, where they are missing")
    parser.add_argument("--cache", type=Path, default=HERE, help="where the venvs are (default: beside this file)")
    parser.add_argument("--node", default="node", help="Node >= 20")
    parser.add_argument("--only", help="only these clients, with commas between them")
    parser.add_argument("--slow", type=int, default=75, help="how long the tool takes, in seconds (default: 75)")
    parser.add_argument("--ticket", default="45s", help="after how long a ticket is given (default: 45s)")
    parser.add_argument("--wait", help="how long a result is waited for at a time")
    options = parser.parse_args()
    options.cache = options.cache.resolve()
    if options.setup:
        setup(options)
    if not options.deferral:
        return 0
    options.deferral = options.deferral.resolve()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    try:
        with tempfile.TemporaryDirectory(prefix="tickets-") as logs:
            return run(options, Path(logs))
    finally:
        stop(Process.everyone)


if __name__ == "__main__":
    sys.exit(main())
