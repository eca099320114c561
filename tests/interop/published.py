#!/usr/bin/env python3
"""Published servers over stdio: what clients are told straight and through the proxy.

    published.py --server NAME --proxy COMMAND --bin FOLDER... --client NAME=COMMAND...

Each client has one session with a server that is started for it, and one with such a server behind `deferral -- COMMAND`.
What is answered at each step, and what is heard and asked on the way, must be the same, but for what is in OURS.
Prints `ok CLIENT/STEP` or `FAIL CLIENT/STEP: why`, and at the end `done N`. run.py runs it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from base64 import b64decode
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from run import Process, exit_code, stop

SESSION_SECONDS = 60

# Where an answer through the proxy is meant to differ, with the reason. `*` is any member or element.
OURS = {
    "result.resultType": "2026-07-28 has it in each result",
    "result.ttlMs": "2026-07-28 has it in what can be kept: nothing is",
    "result.cacheScope": "2026-07-28 has it in what can be kept",
    "result._meta.io.modelcontextprotocol/serverInfo": "2026-07-28 has it in each result",
    "result.capabilities.tasks": "the proxy's tasks are offered, not the server's",
    "result.capabilities.extensions": "the proxy's tasks, in the words of 2026-07-28",
    "result.tools.*.execution": "which tools can be tasks is said by the proxy",
    "error.data.uri": "2026-07-28 has it in the error of a resource that is not found",
}

# What differs from one session to the next, whoever is asked.
NORMALISED = [
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)?", "<time>"),
    (r"[A-Z][a-z]{2} [A-Z][a-z]{2} \d\d \d{4} \d\d:\d\d:\d\d GMT[+-]\d{4} \([^)]*\)", "<time>"),
    (r"\d{1,2}:\d\d:\d\d( [AP]M)?", "<time>"),
]

Steps = list[list[Any]]
FEATURES = {"tools": ["tools"], "resources": ["resources", "resource_templates"], "prompts": ["prompts"]}


def git(folder: Path, *command: str) -> None:
    subprocess.run(["git", *command], cwd=folder, env=ENVIRONMENT, check=True, stdout=subprocess.DEVNULL)


# Commits are the same each time.
ENVIRONMENT = {
    **os.environ,
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
    **{f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER")
       for what, value in (("NAME", "Ada"), ("EMAIL", "ada@example.com"), ("DATE", "2026-01-02T03:04:05+00:00"))},
}


def with_files(folder: Path) -> None:
    (folder / "notes").mkdir()
    (folder / "notes" / "one.txt").write_text("first line\nsecond line\nthird line\n")
    (folder / "notes" / "é ☃.txt").write_text("snow\n")


def with_repository(folder: Path) -> None:
    with_files(folder)
    git(folder, "init", "--initial-branch", "main")
    git(folder, "add", ".")
    git(folder, "commit", "--message", "First")
    (folder / "notes" / "one.txt").write_text("first line\nanother line\n")


@dataclass(frozen=True)
class Server:
    command: list[str]  # {folder} is where the session's files are
    steps: Callable[[str], Steps]
    offers: tuple[str, ...] = ("tools",)
    prepare: Callable[[Path], None] = lambda folder: None
    env: tuple[tuple[str, str], ...] = ()


def everything(folder: str) -> Steps:
    return [
        ["call", "echo", {"message": "é ☃ 😀"}],
        ["call", "echo", {}],
        ["call", "no-such-tool", {}],
        ["call", "get-sum", {"a": 2, "b": 40}],
        ["call", "get-sum", {"a": "two", "b": 40}],
        ["call", "get-tiny-image", {}],
        *(["call", "get-annotated-message", {"messageType": kind, "includeImage": True}]
          for kind in ("error", "success", "debug")),
        ["call", "get-structured-content", {"location": "Chicago"}],
        ["call", "get-structured-content", {"location": "Atlantis"}],
        ["call", "get-resource-links", {"count": 3}],
        ["call", "get-resource-reference", {"resourceType": "Text", "resourceId": 2}],
        ["call", "get-resource-reference", {"resourceType": "Blob", "resourceId": 3}],
        ["call", "gzip-file-as-resource", {"name": "a.gz", "data": "data:text/plain,hello", "outputType": "resourceLink"}],
        ["call", "trigger-long-running-operation", {"duration": 1, "steps": 4}],
        ["call", "trigger-elicitation-request", {}],
        ["call", "trigger-sampling-request", {"prompt": "Say something.", "maxTokens": 10}],
        ["call", "get-roots-list", {}],
        ["call", "simulate-research-query", {"topic": "tea"}],
        ["read", "demo://resource/static/document/features.md"],
        ["read", "demo://resource/dynamic/text/1"],
        ["read", "demo://resource/dynamic/blob/2"],
        ["read", "demo://resource/dynamic/text/none"],
        ["read", "demo://nowhere"],
        ["prompt", "simple-prompt", {}],
        ["prompt", "args-prompt", {"city": "Chicago", "state": "Illinois"}],
        ["prompt", "args-prompt", {}],
        ["prompt", "resource-prompt", {"resourceType": "Text", "resourceId": "1"}],
        ["prompt", "no-such-prompt", {}],
        ["complete", "completable-prompt", "department", "E"],
        ["complete", "no-such-prompt", "department", "E"],
    ]


def filesystem(folder: str) -> Steps:
    one = f"{folder}/notes/one.txt"
    return [
        ["call", "list_allowed_directories", {}],
        ["call", "read_text_file", {"path": one}],
        ["call", "read_text_file", {"path": one, "head": 1}],
        ["call", "read_text_file", {"path": f"{folder}/notes/é ☃.txt"}],
        ["call", "read_text_file", {"path": f"{folder}/none.txt"}],
        ["call", "read_text_file", {"path": "/etc/passwd"}],
        ["call", "read_multiple_files", {"paths": [one, f"{folder}/none.txt"]}],
        ["call", "read_media_file", {"path": one}],
        ["call", "write_file", {"path": f"{folder}/large.txt", "content": "0123456789abcdef" * 65536}],
        ["call", "read_text_file", {"path": f"{folder}/large.txt"}],
        ["call", "edit_file", {"path": one, "edits": [{"oldText": "second", "newText": "2nd"}]}],
        ["call", "edit_file", {"path": one, "edits": [{"oldText": "absent", "newText": "-"}]}],
        ["call", "create_directory", {"path": f"{folder}/new/deep"}],
        ["call", "move_file", {"source": one, "destination": f"{folder}/new/one.txt"}],
        ["call", "list_directory", {"path": folder}],
        ["call", "list_directory_with_sizes", {"path": folder, "sortBy": "size"}],
        ["call", "directory_tree", {"path": folder}],
        ["call", "search_files", {"path": folder, "pattern": "**/*.txt"}],
        ["call", "get_file_info", {"path": f"{folder}/new/one.txt"}],
        ["call", "get_file_info", {}],
        ["call", "no_such_tool", {}],
    ]


def memory(folder: str) -> Steps:
    entities = [
        {"name": "Ada", "entityType": "person", "observations": ["writes programs", "é ☃"]},
        {"name": "Engine", "entityType": "machine", "observations": []},
    ]
    return [
        ["call", "read_graph", {}],
        ["call", "create_entities", {"entities": entities}],
        ["call", "create_entities", {"entities": entities}],
        ["call", "create_relations", {"relations": [{"from": "Ada", "to": "Engine", "relationType": "describes"}]}],
        ["call", "add_observations", {"observations": [{"entityName": "Engine", "contents": ["has wheels"]}]}],
        ["call", "add_observations", {"observations": [{"entityName": "Nobody", "contents": ["is"]}]}],
        ["call", "search_nodes", {"query": "wheels"}],
        ["call", "open_nodes", {"names": ["Ada"]}],
        ["read", "memory://knowledge-graph"],
        ["call", "delete_observations", {"deletions": [{"entityName": "Ada", "observations": ["é ☃"]}]}],
        ["call", "delete_relations", {"relations": [{"from": "Ada", "to": "Engine", "relationType": "describes"}]}],
        ["call", "delete_entities", {"entityNames": ["Engine"]}],
        ["call", "read_graph", {}],
        ["call", "create_entities", {"entities": "none"}],
        ["call", "no_such_tool", {}],
    ]


def clock(folder: str) -> Steps:
    return [
        ["call", "get_current_time", {"timezone": "Europe/Berlin"}],
        ["call", "get_current_time", {"timezone": "Middle/Earth"}],
        ["call", "get_current_time", {}],
        ["call", "convert_time", {"source_timezone": "UTC", "time": "16:30", "target_timezone": "Asia/Tokyo"}],
        ["call", "convert_time", {"source_timezone": "UTC", "time": "half past", "target_timezone": "Asia/Tokyo"}],
        ["call", "no_such_tool", {}],
    ]


def repository(folder: str) -> Steps:
    def call(tool: str, **arguments: Any) -> list[Any]:
        return ["call", tool, {"repo_path": folder, **arguments}]

    return [
        call("git_status"),
        call("git_diff_unstaged"),
        call("git_diff_unstaged", context_lines=0),
        call("git_add", files=["notes/one.txt"]),
        call("git_diff_staged"),
        call("git_commit", message="Second, é ☃"),
        call("git_log", max_count=5),
        call("git_show", revision="HEAD"),
        call("git_show", revision="nowhere"),
        call("git_create_branch", branch_name="side"),
        call("git_checkout", branch_name="side"),
        call("git_branch", branch_type="local"),
        call("git_diff", target="HEAD~1"),
        call("git_reset"),
        ["call", "git_status", {"repo_path": "/nowhere"}],
        ["call", "git_status", {}],
        ["call", "no_such_tool", {}],
    ]


SERVERS = {
    "everything": Server(["mcp-server-everything"], everything, ("tools", "resources", "prompts")),
    "filesystem": Server(["mcp-server-filesystem", "{folder}"], filesystem, prepare=with_files),
    "memory": Server(
        ["mcp-server-memory"], memory, ("tools", "resources"), env=(("MEMORY_FILE_PATH", "{folder}/memory.jsonl"),)
    ),
    "time": Server(["mcp-server-time", "--local-timezone", "UTC"], clock),
    "git": Server(["mcp-server-git"], repository, prepare=with_repository),
}


def canonical(told: Any) -> Any:
    """With what differs each time put out of the way."""
    match told:
        case dict():
            texts = (blob_text(value) if key == "blob" else value for key, value in told.items())
            return dict(zip(told, map(canonical, texts)))
        case list():
            return [canonical(value) for value in told]
        case str():
            for pattern, word in NORMALISED:
                told = re.sub(pattern, word, told)
    return told


def blob_text(blob: Any) -> Any:
    """What base64 hides, where it is text: a time, perhaps."""
    try:
        return b64decode(blob).decode()
    except (TypeError, UnicodeDecodeError):
        return blob


def without(told: Any, path: list[str]) -> Any:
    """Without the member at this path, and without what is empty then."""
    if isinstance(told, list):
        return [without(each, path[1:]) for each in told]
    if not isinstance(told, dict) or path[0] not in told:
        return told
    rest = {name: value for name, value in told.items() if name != path[0]}
    left = without(told[path[0]], path[1:]) if path[1:] else None
    return rest | {path[0]: left} if left else rest


def comparable(answer: dict[str, Any]) -> Any:
    told = canonical(answer["told"])
    for place in OURS:
        # The name of the one member that has dots in it.
        head, dot, name = place.partition("._meta.")
        told = without(told, [*head.split("."), *(["_meta", name] if dot else [])])
    return [told, canonical(answer["heard"])]


def called(step: list[Any]) -> str:
    return "-".join(step[:2])


def unlike(straight: Any, through: Any) -> str | None:
    """Where two answers differ."""
    if straight == through:
        return None
    one, other = (json.dumps(each, ensure_ascii=False, sort_keys=True) for each in (straight, through))
    at = next((place for place, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))
    return f"straight …{one[max(0, at - 60) : at + 160]}, through the proxy …{other[max(0, at - 60) : at + 160]}"


def session(command: list[str], where: list[str], folder: Path, steps: Steps, env: dict[str, str]) -> list[Any]:
    said = subprocess.run(
        [*command, *where],
        input=json.dumps({"folder": str(folder), "steps": steps}),
        capture_output=True, text=True, env=env, timeout=SESSION_SECONDS, check=False,
    )  # fmt: skip
    told = [json.loads(line) for line in said.stdout.splitlines()]
    if len(told) != len(steps):
        raise RuntimeError(f"{len(told)} answers to {len(steps)} steps: {said.stderr[-1000:]}")
    return told


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", required=True, choices=SERVERS)
    parser.add_argument("--proxy", required=True, help="the proxy's program and flags, one shell word")
    parser.add_argument("--bin", action="append", required=True, type=Path, help="where the servers' programs are")
    parser.add_argument("--client", action="append", required=True, metavar="NAME=COMMAND")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))

    server = SERVERS[options.server]
    found = []
    with tempfile.TemporaryDirectory(prefix="published-") as root:
        logs, folder = Path(root), Path(root).resolve() / "home"
        fill = {"folder": str(folder)}
        command = [word.format(**fill) for word in server.command]
        command[0] = next(str(place.resolve() / command[0]) for place in options.bin if (place / command[0]).exists())
        env = {**ENVIRONMENT, **{name: value.format(**fill) for name, value in server.env}}
        lists = [["list", what] for feature in server.offers for what in FEATURES[feature]]
        steps = [["hello"], *lists, *server.steps(str(folder))]
        os.environ.update(env)  # for the proxy, which hands it on
        try:
            for name, client in (each.split("=", 1) for each in options.client):
                told = []
                for through in (False, True):
                    shutil.rmtree(folder, ignore_errors=True)
                    folder.mkdir()
                    server.prepare(folder)
                    where = ["--", *command]
                    if through:
                        proxy = Process(f"{name}.proxy", [*shlex.split(options.proxy), "--", *command], logs)
                        where = [proxy.endpoint()]
                    told.append(session(shlex.split(client), where, folder, steps, env))
                for number, (step, straight, proxied) in enumerate(zip(steps, *told)):
                    why = unlike(comparable(straight), comparable(proxied))
                    found.append((f"{name}/{number:02}-{called(step)}", why))
            if any(why for _, why in found):
                for process in Process.everyone:
                    print("\n".join(process.tail()), file=sys.stderr)
        finally:
            stop(Process.everyone)
    return exit_code(found)


if __name__ == "__main__":
    sys.exit(main())
