#!/usr/bin/env python3
"""Real SDK clients through the proxy, against real and unmodified SDK servers.

    run.py --setup                          # install the SDKs: two venvs and node_modules
    run.py --deferral target/debug/deferral # run the checks
    run.py --direct                         # the checks that hold without a proxy, without one

Each pair of a client and a server gets a server and a proxy of its own. Prints one line for each
check, `ok PAIR/NAME` or `FAIL PAIR/NAME: why`, and at the end `N passed, M failed`; exits with 1
when one failed. Needs nothing but the standard library, Node >= 20 and npm.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import os
import re
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

PAIRS = [
    ("python-python", "python", "python"),
    ("typescript-python", "typescript", "python"),
    ("python-typescript", "python", "typescript"),
    ("typescript-typescript", "typescript", "typescript"),
]
GROUPS = "modern,core,tasks,fastmcp,questions,task-questions"
DIRECT_GROUPS = "legacy,core,questions"
VENVS = {"server": "requirements-server.txt", "client": "requirements-client.txt"}


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

    folder = HERE / "typescript"
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


# --- pairs ---------------------------------------------------------------------------------------


@dataclass
class Pair:
    name: str
    client: str
    server: str
    processes: list[Process] = field(default_factory=list)
    checks: Process | None = None
    deadline: float = 0
    reported: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    def spawn(self, role: str, command: list[str | Path], logs: Path) -> Process:
        process = Process(f"{self.name}.{role}", command, logs)
        self.processes.append(process)
        return process

    def start(self, options: argparse.Namespace, logs: Path) -> None:
        servers = {
            "python": [options.python_server, HERE / "python" / "server.py"],
            "typescript": [options.node, HERE / "typescript" / "server.mjs"],
        }
        clients = {
            "python": [options.python_client, HERE / "python" / "client.py"],
            "typescript": [options.node, HERE / "typescript" / "client.mjs"],
        }
        url = self.spawn("server", servers[self.server], logs).endpoint()
        if not options.direct:
            proxy = [options.deferral, "serve", "--listen", "127.0.0.1:0", "--admin", "off"]
            proxy += ["--upstream", url, "--after", AFTER]
            url = self.spawn("proxy", proxy, logs).endpoint()
        command = [*clients[self.client], url, "--groups", options.groups]
        if options.only:
            command += ["--only", f"*{options.only}*" if self.client == "python" else options.only]
        self.checks = self.spawn("client", command, logs)
        self.deadline = time.monotonic() + PAIR_SECONDS

    def fail(self, name: str, why: str) -> None:
        self.counts["FAIL"] += 1
        print(f"FAIL {self.name}/{name}: {why}", flush=True)

    def report(self) -> None:
        """Pass on the lines that came since the last time."""
        for line in self.checks.lines[self.reported :]:
            self.reported += 1
            verdict, _, rest = line.partition(" ")
            if verdict in ("ok", "FAIL"):
                self.counts[verdict] += 1
                print(f"{verdict} {self.name}/{rest}", flush=True)

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
        code, failed = self.checks.child.returncode, self.counts["FAIL"]
        if done is None:
            self.fail("finishes", f"the client ended with code {code} in the middle")
        elif int(done[1]) != self.counts.total():
            self.fail("finishes", f"{self.counts.total()} verdicts for {done[1]} checks")
        elif code != (1 if failed else 0):
            self.fail("finishes", f"the client ended with code {code} after {failed} failures")
        for process in self.processes[:-1]:
            if process.child.poll() is not None:
                self.fail("survives", f"{process.name} ended with code {process.child.returncode}")

    def close(self) -> None:
        if self.counts["FAIL"]:
            for process in self.processes:
                print("\n".join(process.tail()), end="\n" if process.tail() else "", flush=True)
        stop(self.processes)


def run(options: argparse.Namespace, logs: Path) -> Counter[str]:
    waiting = [Pair(*pair) for pair in PAIRS if not options.pair or pair[0] in options.pair]
    running: list[Pair] = []
    total: Counter[str] = Counter()
    while waiting or running:
        while waiting and len(running) < options.jobs:
            pair = waiting.pop(0)
            running.append(pair)
            try:
                pair.start(options, logs)
            except (OSError, RuntimeError) as error:
                pair.fail("starts", str(error))
        for pair in [pair for pair in running if pair.step()]:
            running.remove(pair)
            pair.close()
            total += pair.counts
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
    parser.add_argument(
        "--groups",
        help=f"which checks (default: {GROUPS}; with --direct {DIRECT_GROUPS}); also legacy, extra",
    )
    parser.add_argument("--pair", action="append", choices=[name for name, _, _ in PAIRS], help="only this pair")
    parser.add_argument("--only", help="only the checks whose name contains this")
    parser.add_argument("--jobs", type=int, default=4, help="pairs at once (default: 4)")
    options = parser.parse_args()

    options.cache = options.cache.resolve()
    options.python_server = options.python_server or options.cache / ".venv-server" / "bin" / "python"
    options.python_client = options.python_client or options.cache / ".venv-client" / "bin" / "python"
    options.groups = options.groups or (DIRECT_GROUPS if options.direct else GROUPS)
    if options.deferral:
        options.deferral = options.deferral.resolve()
    if not (options.deferral or options.direct or options.setup):
        parser.error("one of --setup, --deferral and --direct is needed")
    return options


def main() -> int:
    options = parse()
    if options.setup:
        setup(options.cache)
    if not (options.deferral or options.direct):
        return 0
    for needed in (options.python_server, options.python_client, HERE / "typescript" / "node_modules"):
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
