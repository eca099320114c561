#!/usr/bin/env python3
"""`deferral call` on a terminal, straight to real servers: what it asks, what it shows, what Ctrl-C does.

    terminal.py --deferral PROGRAM --server NAME=COMMAND... --proxy COMMAND

COMMAND is one shell word; `{url}` in that of the proxy is the address of the server named `python`. The servers are
`python` and `typescript`, those of the other checks, `tasks`, one with tasks of its own, and `rude`, which writes
what a terminal would obey. The program runs on a pseudo-terminal, which is typed on when it asks. Prints `ok CHECK` or
`FAIL CHECK: why`, and at the end `done N`. run.py runs it.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import re
import select
import shlex
import signal
import struct
import sys
import tempfile
import termios
import time
from collections.abc import Callable
from pathlib import Path

from run import Process, stop

LIMIT = 20.0  # seconds for the program to say what is waited for
CTRL_C = "\x03"
# What no server's text may bring to a terminal. What the progress bar itself draws with is none of these.
OBEYED = {
    "clears the screen": b"\x1b[2J",
    "changes the colour": b"\x1b[31m",
    "names the window (OSC)": b"\x1b]",
    "rings the bell": b"\x07",
    "is a C1 control": b"\xc2\x9b",
    "is a C1 OSC": b"\xc2\x9d",
    "is a C1 string terminator": b"\xc2\x9c",
    "turns the writing around": "\u202e".encode(),
    "isolates what follows": "\u2066".encode(),
}

FIELD = r"\n  > "
SEND = r"Send\?[^\n]*> "
SAMPLING = r"ends it,[^\n]*\n> "
MORE = r"\n> "
ROOTS = r"\[file://[^\]\n]*\] > "


class Unlike(Exception):
    """It did not go as it must."""


class Terminal:
    """A program on a terminal of its own."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self.raw = b""
        self.looked_at = 0
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            try:
                os.chdir(folder)
                fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
                os.execve(command[0], command, {**os.environ, "TERM": "xterm-256color"})
            finally:
                os._exit(127)

    @property
    def text(self) -> str:
        """What has been shown, without what the progress bar draws with."""
        drawn = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.raw.decode(errors="replace"))
        return drawn.replace("\r", "")

    def read(self, deadline: float) -> bool:
        """Waits for more to be shown; false at the end."""
        ready, _, _ = select.select([self.fd], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            raise Unlike(f"nothing more within {LIMIT:.0f} s after {self.text[-600:]!r}")
        try:
            more = os.read(self.fd, 65536)
        except OSError:  # Linux says so that nobody has the other side any more
            more = b""
        self.raw += more
        return bool(more)

    def expect(self, *patterns: str) -> str:
        """Waits until one of these is shown after what was looked at before; gives which."""
        deadline = time.monotonic() + LIMIT
        while True:
            text = self.text
            found = [(match.end(), pattern) for pattern in patterns
                     if (match := re.compile(pattern).search(text, self.looked_at))]
            if found:
                self.looked_at, pattern = min(found)
                return pattern
            if not self.read(deadline):
                raise Unlike(f"it ended before {patterns}: {self.text[-600:]!r}")

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def end(self) -> int:
        """Its exit code, once all of it has been read."""
        deadline = time.monotonic() + LIMIT
        while self.read(deadline):
            pass
        _, status = os.waitpid(self.pid, 0)
        self.pid = 0
        os.close(self.fd)
        return os.waitstatus_to_exitcode(status)

    def close(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            os.close(self.fd)


class Checks:
    """Each method whose name is a sentence is a check."""

    def __init__(self, deferral: Path, urls: dict[str, str], folder: Path) -> None:
        self.deferral, self.urls, self.folder = deferral, urls, folder
        self.open: list[Terminal] = []

    def call(self, server: str, *words: str) -> Terminal:
        terminal = Terminal([str(self.deferral), "call", self.urls[server], *words], self.folder)
        self.open.append(terminal)
        return terminal

    def survey(self, server: str) -> None:
        terminal = self.call(server, "survey", '{"topic": "trip"}')
        asked: set[str] = set()
        typed = {FIELD: "Ada\r", SEND: "\r", SAMPLING: "by train\r", MORE: ".\r", ROOTS: "\r"}
        while not {SEND, SAMPLING, ROOTS} <= asked:
            which = terminal.expect(*(typed if SAMPLING in asked else {key: typed[key] for key in typed if key != MORE}))
            asked.add(which)
            terminal.type(typed[which])
            if which == SAMPLING:
                terminal.expect(MORE)
                terminal.type(typed[MORE])
        terminal.expect(re.escape(f"trip Ada by train {self.folder.as_uri()}"))
        same(terminal.end(), 0)

    def a_form_a_message_and_a_root_are_answered_to_a_python_server(self) -> None:
        self.survey("python")

    def a_form_a_message_and_a_root_are_answered_to_a_typescript_server(self) -> None:
        self.survey("typescript")

    def a_message_can_be_refused(self) -> None:
        terminal = self.call("python", "survey", '{"topic": "trip", "nobody": true}')
        while terminal.expect(SAMPLING, ROOTS) == ROOTS:
            terminal.type("\r")
        terminal.type("/decline\r")
        terminal.expect("the call was cancelled")
        same(terminal.end(), 130)

    def a_form_has_fields_of_every_kind(self) -> None:
        terminal = self.call("rude", "book")
        for wrong, right in ((None, "Ada"), ("many", "4"), ("3", "2"), ("perhaps", "yes")):
            if wrong is not None:
                terminal.expect(FIELD)
                terminal.type(f"{wrong}\r")
                terminal.expect(r"\n  [^\n>]+\.\n  > ")
            else:
                terminal.expect(FIELD)
            terminal.type(f"{right}\r")
        terminal.expect(SEND)
        terminal.type("\r")
        terminal.expect(re.escape("'Ada' 4 'terrace' True"))
        same(terminal.end(), 0)
        harmless(terminal, "A table before", "Name before", "Whose before")

    def a_form_can_be_declined(self) -> None:
        terminal = self.call("rude", "book")
        terminal.expect(FIELD)
        terminal.type("/decline\r")
        terminal.expect("no table: decline")
        same(terminal.end(), 0)

    def a_terminal_obeys_no_result(self) -> None:
        terminal = self.call("rude", "shout")
        same(terminal.end(), 0)
        harmless(terminal, "result before")

    def a_terminal_obeys_no_result_as_json(self) -> None:
        terminal = self.call("rude", "shout", "--json")
        same(terminal.end(), 0)
        harmless(terminal, "result before")

    def a_terminal_obeys_no_error_of_a_tool(self) -> None:
        terminal = self.call("rude", "stumble")
        same(terminal.end(), 1)
        harmless(terminal, "mistake before")

    def a_terminal_obeys_no_error_of_a_request(self) -> None:
        terminal = self.call("rude", "refuse")
        same(terminal.end(), 2)
        harmless(terminal, "refusal before", "data before")

    def ctrl_c_cancels_a_call(self) -> None:
        terminal = self.call("python", "slow", '{"seconds": 60, "label": "interrupted"}')
        terminal.expect("interrupted 1/")
        terminal.type(CTRL_C)
        terminal.expect("cancelled")
        same(terminal.end(), 130)
        told = self.call("python", "cancelled")
        told.expect('"interrupted"')
        same(told.end(), 0)

    def ctrl_c_cancels_a_question(self) -> None:
        terminal = self.call("rude", "book")
        terminal.expect(FIELD)
        terminal.type(CTRL_C)
        terminal.expect("cancelled")
        same(terminal.end(), 130)

    def handle(self, terminal: Terminal) -> str:
        terminal.expect(r"task \S+ \(kept")
        return re.search(r"task (\S+) \(kept", terminal.text)[1]

    def ctrl_c_cancels_a_task_of_a_server_whose_handle_was_shown(self) -> None:
        terminal = self.call("tasks", "slow", '{"seconds": 60}')
        self.handle(terminal)
        terminal.type(CTRL_C)
        terminal.expect("cancelled")
        same(terminal.end(), 130)

    def a_handle_is_followed_by_another_program(self) -> None:
        first = self.call("proxy", "slow", '{"seconds": 4, "label": "followed"}')
        handle = self.handle(first)
        first.close()
        first.pid = 0
        second = self.call("proxy", "--task", handle)
        second.expect("slow followed is done")
        same(second.end(), 0)

    def ctrl_c_cancels_a_task_of_the_proxy(self) -> None:
        first = self.call("proxy", "slow", '{"seconds": 60, "label": "stopped"}')
        handle = self.handle(first)
        first.type(CTRL_C)
        first.expect("cancelled")
        same(first.end(), 130)
        second = self.call("proxy", "--task", handle)
        second.expect("the task was cancelled")
        same(second.end(), 130)


def same(found: object, wanted: object) -> None:
    if found != wanted:
        raise Unlike(f"{found!r} instead of {wanted!r}")


def harmless(terminal: Terminal, *shown: str) -> None:
    """Nothing of what the server wrote is obeyed, and all of it can be read."""
    for what, sequence in OBEYED.items():
        if sequence in terminal.raw:
            raise Unlike(f"what the server wrote {what}: {terminal.raw!r}")
    for text in shown:
        # As the program writes it out, or as JSON does.
        if not re.search(re.escape(text) + r"\\u(\{1b\}|001b)\[2J", terminal.text):
            raise Unlike(f"{text!r} is not shown with its escape written out: {terminal.text!r}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--deferral", type=Path, required=True)
    parser.add_argument("--server", action="append", required=True, metavar="NAME=COMMAND")
    parser.add_argument("--proxy", required=True)
    parser.add_argument("--only", help="only the checks whose name contains this")
    options = parser.parse_args()

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    passed = failed = 0
    try:
        with tempfile.TemporaryDirectory(prefix="terminal-") as folder:
            logs, here = Path(folder), Path(folder).resolve() / "here"
            here.mkdir()
            servers = dict(server.split("=", 1) for server in options.server)
            started = {name: Process(name, shlex.split(command), logs) for name, command in servers.items()}
            urls = {name: process.endpoint() for name, process in started.items()}
            proxy = [word.format(url=urls["python"]) for word in shlex.split(options.proxy)]
            urls["proxy"] = Process("proxy", proxy, logs).endpoint()
            checks = Checks(options.deferral.resolve(), urls, here)
            for name, check in vars(Checks).items():
                is_check = isinstance(check, Callable) and "_" in name.strip("_")
                if not is_check or (options.only and options.only not in name):
                    continue
                try:
                    check(checks)
                    passed += 1
                    print(f"ok {name}", flush=True)
                except Unlike as why:
                    failed += 1
                    print(f"FAIL {name}: {why}", flush=True)
                finally:
                    for terminal in checks.open:
                        terminal.close()
                    checks.open.clear()
    finally:
        stop(Process.everyone)
    print(f"done {passed + failed}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
