#!/usr/bin/env python3
"""Real SDK clients through the proxy, against real and unmodified SDK servers.

    run.py --setup                          # install the SDKs and some servers: venvs and node_modules
    run.py --deferral target/debug/deferral # run the checks
    run.py --direct                         # the checks that hold without a proxy, without one

Each pair of a client and a server gets a server and a proxy of its own; where the server speaks over stdio, the
proxy starts it; each `recorded` one runs a
session twice and compares the bytes (recorded.py); below each `crashed` one, which has all clients of
today, the server is killed in mid-call (crashes.py); each `restarted` one has all that know tasks, and its proxy ends
in the middle of them (restarts.py); each `published` one is a server that others wrote
(published.py). Prints one line for each check, `ok PAIR/NAME` or
`FAIL PAIR/NAME: why`, and at the end `N passed, M failed`; exits with 1 when one failed. Needs nothing
but the standard library, Node >= 20 and npm.
"""

from __future__ import annotations

import argparse
import ctypes
import fnmatch
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import venv
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
START_SECONDS = 30  # for a server or a proxy to say that it listens
PAIR_SECONDS = 150  # for one client to finish its checks
INSTALL_SECONDS = 600
STOP_SECONDS = 5
AFTER = "300ms"

VENVS = {
    "server": "requirements-server.txt",  # SDK 1.30, whose client is used too
    "client": "requirements-client.txt",  # SDK 2.x
    "client-1.12": "requirements-client-1.12.txt",
    "client-1.9": "requirements-client-1.9.txt",
    "fastmcp2": "requirements-fastmcp2.txt",  # FastMCP 2.14, with SDK 1.30
    "published": "requirements-published.txt",  # servers from PyPI
}
PACKAGES = ("typescript", "published")  # where there is a package.json: the SDKs, and servers from npm


@dataclass(frozen=True)
class Client:
    """A program with checks, and the groups of them that run through a proxy and straight to a server."""

    command: list[str]  # the first word is one of VENVS, or node
    groups: str
    direct: str
    revision: str = "2025-11-25"  # the newest with a handshake that it speaks
    extra: tuple[str, ...] = ()  # groups that run only when named


OLDER_PYTHON = ["python/older", "--revision"]
CLIENTS = {
    "python": Client(
        ["client", "python/client.py"],
        "modern,core,tasks,fastmcp,legacy,questions,task-questions",
        "legacy,core,questions",
        extra=("extra",),
    ),
    "typescript": Client(
        ["node", "typescript/client.mjs"],
        "modern,core,tasks,legacy,legacy-tasks,questions,task-questions",
        "legacy,core,questions",
        extra=("extra",),
    ),
    "python1.30": Client(
        ["server", *OLDER_PYTHON, "2025-11-25"], "plain,asking,tasks,task-questions,bare", "plain,asking"
    ),
    "python1.12": Client(["client-1.12", *OLDER_PYTHON, "2025-06-18"], "plain,asking,older", "plain,asking,older", "2025-06-18"),
    "python1.9": Client(["client-1.9", *OLDER_PYTHON, "2025-03-26"], "plain,older", "plain,older", "2025-03-26"),
    "typescript1.32": Client(["node", "typescript/older.mjs"], "plain,asking,tasks,task-questions", "plain,asking"),
    "fastmcp2.14": Client(["fastmcp2", *OLDER_PYTHON, "2025-11-25"], "fastmcp2", ""),
}
# Those whose server is killed in mid-call; crashes.py knows what each does.
CRASHED = {
    "python1.9": ["client-1.9", "python/crash.py", "{url}"],
    "python1.12": ["client-1.12", "python/crash.py", "{url}"],
    "python1.30": ["server", "python/crash.py", "{url}"],
    "typescript1.32": ["node", "typescript/crash.mjs", "{url}", "1.x"],
    "python": ["client", "python/crash.py", "{url}"],
    "typescript": ["node", "typescript/crash.mjs", "{url}", "2.x"],
}
# Those whose proxy ends in the middle of their tasks; restarts.py knows what each has.
RESTARTED = {
    "python1.30": ["server", "python/restart.py", "{url}", "{folder}"],
    "typescript1.32": ["node", "typescript/restart.mjs", "{url}", "{folder}", "1.x"],
    "python": ["client", "python/restart.py", "{url}", "{folder}"],
    "typescript": ["node", "typescript/restart.mjs", "{url}", "{folder}", "2.x"],
}
SERVERS = {"python": ["server", "python/server.py"], "typescript": ["node", "typescript/server.mjs"]}


@dataclass(frozen=True)
class Program:
    """A server of the same tools over stdio, which the proxy starts itself."""

    command: list[str]
    revision: str = "2025-11-25"  # the newest it speaks
    lacks: frozenset[str] = frozenset()  # groups that need what its SDK has not yet
    asks: bool = True
    only: str = ""  # parts of the names of the checks to run; all


# Tasks for older clients are those of 2025-11-25, which a server that speaks no such revision keeps them from.
NO_OLDER_TASKS = frozenset({"legacy-tasks"})
NO_ELICITATION = NO_OLDER_TASKS | {"questions", "task-questions", "asking"}
# Everything runs in front of one of them. In front of the others one check or two of each thing that can go through.
CORE = ",".join((
    "plain/", "older/", "legacy/", "fastmcp/", "lists", "fast-call", "slow-call", "call-get-result", "stream-of-a-call",
    "progress-of-a-held", "progress-lasts", "stream-with-progress", "error", "fail", "cancel", "large-result",
    "of-every-kind", "question-of-a-held", "question-in-a", "as-the-guide-says", "asked-becomes-a-task",
))  # fmt: skip
PROGRAMS = {
    "stdio-typescript": Program(["node", "typescript/server.mjs", "--stdio"]),
    "stdio-python1.30": Program(["server", "python/server.py", "--stdio"], only=CORE),
    "stdio-fastmcp": Program(["client", "python/fast.py"], only=CORE),
    "stdio-python1.12": Program(
        ["client-1.12", "python/server.py", "--stdio"], "2025-06-18", NO_OLDER_TASKS, only=CORE
    ),
    "stdio-python1.9": Program(
        ["client-1.9", "python/server.py", "--stdio"], "2025-03-26", NO_ELICITATION, asks=False, only=CORE
    ),
}


@dataclass(frozen=True)
class Expected:
    """Checks that fail for a reason of the server's, and with what words."""

    checks: str
    words: str
    why: str


NO_SCHEMAS = "SDK 1.9 knows no output schemas and no structured content"
DIES = "SDK 1.9 ends its session once a call is cancelled"
EXPECTED = [
    Expected("*-stdio-python1.9/core/lists", "NoneType|reading 'properties'", NO_SCHEMAS),
    Expected("*-stdio-python1.9/core/fast-call", "the structured content: got (None|undefined)", NO_SCHEMAS),
    Expected("python-stdio-python1.9/core/slow-call-is-held", "the structured content: got None", NO_SCHEMAS),
    Expected("*-stdio-python1.9/tasks/slow-call-becomes-a-task", "structured content: got (None|undefined)", NO_SCHEMAS),
    Expected("*-stdio-python1.9/fastmcp/call-tool-follows-its-task", "the structured content: got None", NO_SCHEMAS),
    Expected("typescript1.32-stdio-python1.9/plain/calls", "the structured content: got undefined", NO_SCHEMAS),
    Expected("*-stdio-python1.9/*/a-notification-cancels", "process ended .*: exit status: 1", DIES),
    # The SDK 2.x client may have closed its own streams over it when it says so.
    Expected("*-stdio-python1.9/core/closing-a-held-call-cancels-the-work", "process ended|BrokenResourceError", DIES),
    Expected("*-stdio-python1.9/tasks/cancel-reaches-the-server", "got .failed., want .completed.|process ended", DIES),
    Expected("python-stdio-python1.9/fastmcp/cancel-reaches-the-server", "process ended .*: exit status: 1", DIES),
]

# A process is shared until it has asked something, and what it asks then is refused where it could be for several
# (src/manual/processes.md): so one call asks alone, before there are others.
FIRST_QUESTION = """
deferral=$0 url=$1; shift
"$deferral" call "$url" ask '{"question": "First?"}' --answer 'elicitation-1={"answer": "yes"}' >&2 && exec "$@"
"""


@dataclass(frozen=True)
class Plan:
    """A pair to run. The groups are the client's own but where they are named."""

    name: str
    client: str
    server: str
    flags: tuple[str, ...] = ()
    groups: str | None = None
    direct: str | None = None
    edits: str | None = None  # a recorded session, in which recorded.py takes these edits for meant
    only: str = ""  # parts of the names of the checks to run; all
    mode: str = "auto"  # the proxy's
    crash: tuple[str, ...] | None = None  # a server that is killed below all of CRASHED: what crashes.py is told
    restart: tuple[str, ...] | None = None  # a proxy that ends below all of RESTARTED: what restarts.py is told
    published: bool = False  # a server of published.py
    terminal: bool = False  # `deferral call` itself, on a terminal: terminal.py has servers of its own


def recorded(client: str, server: str, *flags: str, mode: str = "auto") -> Plan:
    edits = "tasks" if mode == "auto" and client in ("python1.30", "typescript1.32") else "none"
    name = "-".join(["recorded", client, server, *(flag.strip("-") for flag in flags)])
    if mode != "auto":
        name += f"-{mode}"
    return Plan(name, client, server, flags, groups="session", direct="", edits=edits, mode=mode)


def crashed(server: str, *flags: str, crash: tuple[str, ...] = ()) -> Plan:
    name = "-".join(["crashed", server, *(flag.strip("-") for flag in (*flags, *crash))])
    return Plan(name, "python1.30", server, flags, groups="crash", direct="", crash=crash)


def restarted(server: str, *flags: str, drain: tuple[str, ...] = ()) -> Plan:
    name = "-".join(["restarted", server, *(flag.strip("-") for flag in (*flags, *drain))])
    return Plan(name, "python1.30", server, flags, groups="restart", direct="", restart=(*flags, *drain))


OLDER_CLIENTS = ("python1.30", "typescript1.32")  # whose tasks are those of 2025-11-25


def groups_at(client: str, program: Program) -> str:
    """The client's groups without those that need what the program has not."""
    groups = CLIENTS[client].groups
    if client in OLDER_CLIENTS and program.revision < "2025-11-25":
        groups = CLIENTS[client].direct
    return ",".join(group for group in groups.split(",") if group not in program.lacks)


# The longest first.
PLANS = [
    *(
        Plan(f"{client}-{server}", client, server)
        for client in ("python1.30", "typescript1.32", "python", "typescript", "python1.12", "python1.9", "fastmcp2.14")
        for server in SERVERS
    ),
    Plan("fastmcp2.14-stdio-typescript", "fastmcp2.14", "stdio-typescript", direct=""),
    *(
        Plan(f"{client}-{server}", client, server, groups=groups_at(client, program), direct="", only=program.only)
        for client in ("python", "typescript", "python1.30", "typescript1.32", "python1.12", "python1.9")
        for server, program in PROGRAMS.items()
    ),
    *(
        crashed(server, *flags, crash=crash)
        for flags in (("--resumable",), ())
        for crash in ((), ("--restart",))
        for server in SERVERS
    ),
    *(
        restarted(server, *flags, drain=drain)
        for flags, drain in ((("--resumable",), ("--drain",)), (("--resumable",), ()), ((), ()))
        for server in SERVERS
    ),
    *(
        Plan(f"published-{server}", "python1.30", server, groups="published", direct="", published=True)
        for server in ("everything", "filesystem", "git", "memory", "time")
    ),
    *(crashed(server) for server in PROGRAMS),
    *(
        Plan(f"{client}-{server}-resumable", client, server, ("--resumable",), "resuming,task-resuming", "resuming")
        for client, server in (("python1.30", "typescript"), ("typescript1.32", "python"))
    ),
    *(
        Plan(f"{client}-{server}-tasks", client, server, ("--tasks",), "own-tasks", "own-tasks")
        for client in ("python1.30", "typescript1.32")
        for server in SERVERS
    ),
    Plan("terminal", "python1.30", "python", groups="terminal", direct="", terminal=True),
    Plan("python1.30-typescript-required", "python1.30", "typescript", groups="required", direct="", mode="required"),
    Plan("python1.30-python-stateless", "python1.30", "python", ("--stateless",), "stateless", ""),
    *(
        recorded(client, server, *flags)
        for client in ("python1.30", "typescript1.32", "python1.12", "python1.9")
        for server, *flags in (("python", "--resumable"), ("typescript",))
    ),
    *(recorded(client, "typescript", "--resumable") for client in ("python1.30", "typescript1.32")),
    recorded("python1.30", "python", mode="never"),
    recorded("typescript1.32", "typescript", mode="observe"),
]

# --- installing ----------------------------------------------------------------------------------


def digest(*files: Path) -> str:
    hashed = hashlib.sha256(sys.version.encode())
    for file in files:
        hashed.update(file.read_bytes())
    return hashed.hexdigest()


def installed(stamp: Path, want: str) -> bool:
    return stamp.is_file() and stamp.read_text() == want


def setup(cache: Path) -> None:
    """Install what is missing or differs from the pins; quick when there is nothing to do."""
    for name, requirements in VENVS.items():
        folder = cache / f".venv-{name}"
        pins = HERE / "python" / requirements
        want, stamp = digest(pins), folder / "installed"
        if installed(stamp, want):
            continue
        print(f"# installing {requirements} into {folder}", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=True)
        install([folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--requirement", pins])
        stamp.write_text(want)

    for folder in (HERE / name for name in PACKAGES):
        want = digest(folder / "package.json", folder / "package-lock.json")
        stamp = folder / "node_modules" / ".installed"
        if not installed(stamp, want):
            print(f"# installing package-lock.json into {folder / 'node_modules'}", flush=True)
            install(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"], cwd=folder)
            stamp.write_text(want)


def install(command: list[str | Path], **options: object) -> None:
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, timeout=INSTALL_SECONDS, **options)


# --- processes -----------------------------------------------------------------------------------

try:
    prctl = ctypes.CDLL(None).prctl
except (OSError, AttributeError):  # not Linux
    prctl = None


def die_with_parent() -> None:
    """Linux ends the child when this process goes, even if it is killed."""
    prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG; counts from the thread that starts the child


class Process:
    """A child in a process group of its own, its lines read as they come, its log in a file.

    Must be started from the main thread: see die_with_parent.
    """

    everyone: list["Process"] = []

    def __init__(self, name: str, command: list[str | Path], logs: Path) -> None:
        self.name = name
        self.log = logs / f"{name}.log"
        self.lines: list[str] = []
        with self.log.open("wb") as log:
            self.child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with_parent if prctl else None,
            )
        Process.everyone.append(self)
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self) -> None:
        for line in self.child.stdout:
            self.lines.append(line.decode(errors="replace").rstrip("\n"))

    def endpoint(self) -> str:
        """The address the process says it listens on."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            ended = self.child.poll() is not None
            for line in list(self.lines):
                if found := re.fullmatch(r"listening on (http://\S+)", line.strip()):
                    return found[1]
            if ended:
                raise RuntimeError(f"{self.name} ended with code {self.child.returncode} before it listened")
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} did not say within {START_SECONDS} s where it listens")
            time.sleep(0.02)

    def signal(self, number: int) -> None:
        try:
            os.killpg(self.child.pid, number)
        except (ProcessLookupError, PermissionError):
            pass

    def wait(self, seconds: float) -> bool:
        try:
            self.child.wait(max(seconds, 0))
        except subprocess.TimeoutExpired:
            return False
        self.reader.join(1)
        return True

    def tail(self, count: int = 15) -> list[str]:
        lines = self.log.read_text(errors="replace").splitlines()
        return [f"# {self.name}: {line}" for line in lines[-count:]]


def stop(processes: list[Process]) -> None:
    for process in processes:
        process.signal(signal.SIGTERM)
    deadline = time.monotonic() + STOP_SECONDS
    for process in processes:
        process.wait(deadline - time.monotonic())
        process.signal(signal.SIGKILL)  # whoever is left of the group, too
        process.wait(STOP_SECONDS)


def exit_code(found: list[tuple[str, str | None]]) -> int:
    """Tell what each check came to, and why where it failed; the exit code that says so, too."""
    for name, why in found:
        print(f"FAIL {name}: {why}" if why else f"ok {name}", flush=True)
    print(f"done {len(found)}", flush=True)
    return 1 if any(why for _, why in found) else 0


# --- pairs ---------------------------------------------------------------------------------------


@dataclass
class Pair:
    plan: Plan
    groups: str
    processes: list[Process] = field(default_factory=list)
    checks: Process | None = None
    began: float = 0
    deadline: float = 0
    reported: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    failures: int = 0  # those that are expected included

    @property
    def name(self) -> str:
        return self.plan.name

    def spawn(self, role: str, command: list[str | Path], logs: Path) -> Process:
        process = Process(f"{self.name}.{role}", command, logs)
        self.processes.append(process)
        return process

    def start(self, options: argparse.Namespace, logs: Path) -> None:
        client = located(CLIENTS[self.plan.client].command, options)
        if self.plan.published:
            return self.start_published(options, logs)
        program = PROGRAMS.get(self.plan.server)
        server = located(program.command if program else SERVERS[self.plan.server], options) + list(self.plan.flags)
        proxy = self.proxy(options)
        if program is None:
            proxy.append("--upstream")
        else:
            server += ["--labels", logs / f"{self.name}.labels"]
        command: list[str | Path]
        if self.plan.crash is not None:
            command = [sys.executable, HERE / "crashes.py", *self.plan.crash]
            if program is not None:
                command += ["--proxy", words([*proxy, "--", *server])]
            else:
                command += ["--server", words(server), "--proxy", words([*proxy, "{url}"])]
            for name, each in CRASHED.items():
                command += ["--client", f"{name}={words(located(each, options))}"]
        elif self.plan.restart is not None:
            command = [sys.executable, HERE / "restarts.py", *self.plan.restart, "--server", words(server)]
            command += ["--proxy", words([*proxy, "{url}"])]
            for name, each in RESTARTED.items():
                command += ["--client", f"{name}={words(located(each, options))}"]
        elif self.plan.terminal:
            servers = {name: words(located(command, options)) for name, command in SERVERS.items()}
            servers["tasks"] = words(located([*SERVERS["python"], "--tasks"], options))
            servers["rude"] = words(located(["server", "python/rude.py"], options))
            command = [sys.executable, HERE / "terminal.py", "--deferral", options.deferral]
            command += ["--proxy", words([*proxy, "{url}"])]
            for name, each in servers.items():
                command += ["--server", f"{name}={each}"]
            if options.only:
                command += ["--only", options.only]
        elif self.plan.edits is None:
            first: list[str | Path] = []
            if program is not None:
                url = self.spawn("proxy", [*proxy, "--config", self.configured(server, logs)], logs).endpoint()
            else:
                url = self.spawn("server", server, logs).endpoint()
                if not options.direct:
                    url = self.spawn("proxy", [*proxy, url], logs).endpoint()
            command = [*client, url, "--groups", self.groups]
            if program is not None:
                command += ["--revision", min(program.revision, CLIENTS[self.plan.client].revision)]
                if program.asks:
                    first = ["sh", "-c", FIRST_QUESTION, options.deferral, url]
            if only := options.only or self.plan.only:
                parts = (f"*{part}*" if "python" in self.plan.client else part for part in only.split(","))
                command += ["--only", ",".join(parts)]
            command = [*first, *command]
        else:
            command = [sys.executable, HERE / "recorded.py", "--edits", self.plan.edits]
            command += ["--server", words(server), "--proxy", words([*proxy, "{url}"])]
            command += ["--client", words([*client, "{url}", "--groups", self.groups])]
        self.check(command, logs)

    def start_published(self, options: argparse.Namespace, logs: Path) -> None:
        command = [sys.executable, HERE / "published.py", "--server", self.plan.server]
        command += ["--proxy", words(self.proxy(options))]
        command += ["--bin", HERE / "published" / "node_modules" / ".bin"]
        command += ["--bin", options.interpreters["published"].parent]
        for name, venv_name in (("python1.30", "server"), ("python", "client")):
            command += ["--client", f"{name}={words(located([venv_name, 'python/steps.py'], options))}"]
        self.check(command, logs)

    def proxy(self, options: argparse.Namespace) -> list[str | Path]:
        """The proxy's program and its flags, but for what it stands in front of."""
        own = ["--listen", "127.0.0.1:0", "--admin", "off", "--after", AFTER, "--mode", self.plan.mode]
        return [options.deferral, "serve", *own]

    def check(self, command: list[str | Path], logs: Path) -> None:
        self.checks = self.spawn("client", command, logs)
        self.deadline = time.monotonic() + PAIR_SECONDS

    def configured(self, server: list[str | Path], logs: Path) -> Path:
        """A file that starts this server. Clients declare many sets of capabilities here, one after the other; with the
        default of four processes those that are left would make the tasks of one set wait for one another."""
        upstream = {"command": [str(word) for word in server], "instances": 16, "inherit_env": "all"}
        file = logs / f"{self.name}.yaml"
        file.write_text(json.dumps({"routes": [{"path": "/mcp", "upstream": upstream}]}))
        return file

    def fail(self, name: str, why: str) -> None:
        self.counts["FAIL"] += 1
        print(f"FAIL {self.name}/{name}: {why}", flush=True)

    def report(self) -> None:
        """Pass on the lines that came since the last time."""
        for line in self.checks.lines[self.reported :]:
            self.reported += 1
            verdict, _, rest = line.partition(" ")
            if verdict in ("ok", "FAIL"):
                self.failures += verdict == "FAIL"
                verdict, rest = self.judged(verdict, rest)
                self.counts[verdict] += 1
                print(f"{verdict} {self.name}/{rest}", flush=True)

    def judged(self, verdict: str, rest: str) -> tuple[str, str]:
        """A check that fails as it is expected to is well; one that should fail and does not is none."""
        name, _, words = rest.partition(": ")
        for expected in EXPECTED:
            if fnmatch.fnmatchcase(f"{self.name}/{name}", expected.checks):
                if verdict == "ok":
                    return "FAIL", f"{name}: it passes, but was expected to fail: {expected.why}"
                if re.search(expected.words, words):
                    return "ok", f"{name}: fails as expected: {expected.why}"
        return verdict, rest

    def step(self) -> bool:
        """Report; true when the client has finished, was given up, or never started."""
        if self.checks is None:
            return True
        ended = self.checks.wait(0)
        late = not ended and time.monotonic() > self.deadline
        self.report()
        if not ended and not late:
            return False
        if late:
            self.fail("finishes", f"the client did not finish within {PAIR_SECONDS} s")
        else:
            self.judge()
        return True

    def judge(self) -> None:
        """A client that died or ran nothing has not passed."""
        done = re.fullmatch(r"done (\d+)", self.checks.lines[-1]) if self.checks.lines else None
        code = self.checks.child.returncode
        if done is None:
            self.fail("finishes", f"the client ended with code {code} in the middle")
        elif int(done[1]) != self.counts.total():
            self.fail("finishes", f"{self.counts.total()} verdicts for {done[1]} checks")
        elif code != (1 if self.failures else 0):
            self.fail("finishes", f"the client ended with code {code} after {self.failures} failures")
        for process in self.processes[:-1]:
            if process.child.poll() is not None:
                self.fail("survives", f"{process.name} ended with code {process.child.returncode}")

    def close(self) -> None:
        if self.counts["FAIL"]:
            for process in self.processes:
                print("\n".join(process.tail()), end="\n" if process.tail() else "", flush=True)
        stop(self.processes)


def located(command: list[str], options: argparse.Namespace) -> list[str | Path]:
    """With the interpreter and the script where they are."""
    interpreter = options.interpreters[command[0]]
    return [interpreter, HERE / command[1], *command[2:]]


def words(command: list[str | Path]) -> str:
    return shlex.join(map(str, command))


def pairs(options: argparse.Namespace) -> list[Pair]:
    """What there is to run: a pair needs checks of the groups that were asked for."""
    chosen = []
    for plan in PLANS:
        if options.pair and not any(fnmatch.fnmatchcase(plan.name, pattern) for pattern in options.pair):
            continue
        client = CLIENTS[plan.client]
        own = plan.groups if plan.groups is not None else client.groups
        if options.direct:
            own = plan.direct if plan.direct is not None else client.direct
        if options.groups and plan.edits is None:
            wanted = options.groups.split(",")
            offered = [*own.split(","), *client.extra]
            own = ",".join(group for group in wanted if group in offered)
        if own and not (plan.edits and options.groups and "session" not in options.groups.split(",")):
            chosen.append(Pair(plan, own))
    return chosen


def run(options: argparse.Namespace, logs: Path) -> Counter[str]:
    waiting = pairs(options)
    running: list[Pair] = []
    total: Counter[str] = Counter()
    while waiting or running:
        while waiting and len(running) < options.jobs:
            pair = waiting.pop(0)
            running.append(pair)
            try:
                pair.began = time.monotonic()
                pair.start(options, logs)
            except (OSError, RuntimeError) as error:
                pair.fail("starts", str(error))
        for pair in [pair for pair in running if pair.step()]:
            running.remove(pair)
            pair.close()
            total += pair.counts
            print(f"# {pair.name}: {pair.counts.total()} checks, {time.monotonic() - pair.began:.0f} s", flush=True)
        time.sleep(0.05)
    return total


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--deferral", type=Path, help="the proxy's program")
    parser.add_argument("--direct", action="store_true", help="no proxy: the checks a legacy server passes by itself")
    parser.add_argument("--setup", action="store_true", help="install the SDKs first, where they are missing")
    parser.add_argument("--cache", type=Path, default=HERE, help="where the venvs are (default: beside this file)")
    parser.add_argument("--python-server", type=Path, help="a Python with requirements-server.txt")
    parser.add_argument("--python-client", type=Path, help="a Python with requirements-client.txt")
    parser.add_argument("--node", default="node", help="Node >= 20")
    parser.add_argument("--groups", help="only these groups of checks (README.md has the list)")
    parser.add_argument("--pair", action="append", metavar="PATTERN", help="only pairs of such a name; * is any part")
    parser.add_argument("--only", help="only the checks whose name contains this")
    parser.add_argument("--jobs", type=int, default=8, help="pairs at once (default: 8)")
    parser.add_argument("--list", action="store_true", help="say which pairs and groups there are to run")
    options = parser.parse_args()

    options.cache = options.cache.resolve()
    options.interpreters = {name: options.cache / f".venv-{name}" / "bin" / "python" for name in VENVS}
    options.interpreters["node"] = options.node
    for name in ("server", "client"):
        options.interpreters[name] = getattr(options, f"python_{name}") or options.interpreters[name]
    if options.deferral:
        options.deferral = options.deferral.resolve()
    if not (options.deferral or options.direct or options.setup or options.list):
        parser.error("one of --setup, --deferral and --direct is needed")
    return options


def main() -> int:
    options = parse()
    if options.list:
        for pair in pairs(options):
            print(pair.name, pair.groups)
        return 0
    if options.setup:
        setup(options.cache)
    if not (options.deferral or options.direct):
        return 0
    interpreters = [path for name, path in options.interpreters.items() if name != "node"]
    for needed in (*interpreters, *(HERE / name / "node_modules" for name in PACKAGES)):
        if not needed.exists():
            sys.exit(f"{needed} is missing: run {Path(__file__).name} --setup")

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    try:
        with tempfile.TemporaryDirectory(prefix="interop-") as logs:
            total = run(options, Path(logs))
    finally:
        stop(Process.everyone)
    if not total:
        total["FAIL"] = 1
        print("FAIL checks: none was run")
    print(f"{total['ok']} passed, {total['FAIL']} failed")
    return 1 if total["FAIL"] else 0


if __name__ == "__main__":
    sys.exit(main())
