"""The tasks of a Python client whose proxy ends in the middle of them. Runs on the SDK 1.30, and on 2.x with fastmcp.

    restart.py URL FOLDER    # a proxy in front of python/server.py or typescript/server.mjs

Each caller has four tasks, in a client each: `done` has ended, `work` is at work, `ask` has asked something, and `late`
is about to, when the proxy ends. A client says `ready NAME`, and its task begins once there is a file `go` in the
folder: `working NAME` once it is as far as that. It goes on by its handle, in the same client, once there is a file
`again`: `ended NAME TEXT` or `ended NAME CODE WORDS`, texts and words in JSON; `broken NAME WORDS` where anything else
becomes of it. Nothing is asked for while the proxy is away: the clients of these SDKs end with the first connection
that is refused. Ends nothing itself.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import traceback
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

url, folder = sys.argv[1], Path(sys.argv[2])
BRIEF, LONG = 1.5, 8.0  # seconds of work; restarts.py knows the second
DELAYS = {"ask": 1.5, "late": 6.0}  # seconds before a question
KINDS = ("done", "work", "ask", "late")
POLL = 0.1  # seconds

try:
    from mcp import Client  # noqa: F401

    OLDER = False
except ImportError:
    OLDER = True


def say(*words: Any) -> None:
    print(*words, flush=True)


async def begins(name: str) -> None:
    say("ready", name)
    await there("go")


async def there(file: str) -> None:
    while not (folder / file).exists():
        await asyncio.sleep(0.02)


class Failed(Exception):
    """A task that failed, with what is known of why."""

    def __init__(self, code: Any, message: str) -> None:
        self.code, self.message = code, message


@dataclass
class Task:
    """A task, as an SDK shows it."""

    shown: Callable[[], Awaitable[Any]]  # what tasks/get shows
    result: Callable[[], Awaitable[str]]  # the text that comes of it, or raises Failed; answers what is asked


Begin = Callable[[str, str, dict[str, Any]], AbstractAsyncContextManager[Task]]


def arguments(kind: str, name: str) -> tuple[str, dict[str, Any]]:
    if kind in DELAYS:
        return "ask", {"question": name, "delay": DELAYS[kind]}
    return "slow", {"seconds": BRIEF if kind == "done" else LONG, "label": name}


def is_far_enough(kind: str, shown: Any) -> bool:
    match kind:
        case "done":
            return shown.status == "completed"
        case "work":
            # It has been heard of behind the handle.
            return bool(getattr(shown, "status_message", None) or getattr(shown, "statusMessage", None))
        case "ask":
            return shown.status == "input_required"
        case _:
            return True


async def run(kind: str, name: str, begin: Begin) -> None:
    try:
        async with begin(name, *arguments(kind, name)) as task:
            while not is_far_enough(kind, await task.shown()):
                await asyncio.sleep(POLL)
            say("working", name)
            await there("again")
            try:
                text = await asyncio.wait_for(task.result(), 2 * LONG)
            except Failed as failed:
                say("ended", name, failed.code, json.dumps(failed.message))
            else:
                say("ended", name, json.dumps(text))
    except Exception as error:
        say("broken", name, json.dumps(reason(error)))


def reason(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({where.name}, line {where.lineno})"


# --- the SDK 1.30 ----------------------------------------------------------------------------------


def older() -> list[Awaitable[None]]:
    from mcp import types
    from mcp.shared.exceptions import McpError

    sys.path.insert(0, str(Path(__file__).parent / "older"))
    from harness import client, result_of, start, text_of

    async def answer(_context: Any, params: Any) -> Any:
        # It is asked before the proxy ends, and answers the next one. The session hears of nothing else meanwhile.
        await there("again")
        return types.ElicitResult(action="accept", content={"answer": f"<{params.message}>"})

    @asynccontextmanager
    async def begin(name: str, tool: str, given: dict[str, Any]) -> AsyncIterator[Task]:
        async with client(url, elicitation_callback=answer) as session, client(url) as observer:
            await begins(name)
            task = await start(session, tool, given)

            async def shown() -> Any:
                return await observer.experimental.get_task(task.taskId)

            async def result() -> str:
                try:
                    return text_of(await result_of(session, task))
                except McpError as error:
                    if (await shown()).status != "failed":
                        raise
                    raise Failed(error.error.code, error.error.message) from error

            yield Task(shown, result)

    return [run(kind, f"python1.30-{kind}", begin) for kind in KINDS]


# --- the SDK 2.x, and fastmcp ----------------------------------------------------------------------


def newer() -> list[Awaitable[None]]:
    import fastmcp
    from client import answer_in, echo, get_task, start, text_of, with_tasks
    from fastmcp.exceptions import ToolError
    from fastmcp_tasks import call_tool_task

    @asynccontextmanager
    async def begin(name: str, tool: str, given: dict[str, Any]) -> AsyncIterator[Task]:
        async with with_tasks(url, elicitation_callback=echo) as client:
            await begins(name)
            handle = await start(client, tool, given)

            async def result() -> str:
                found = await answer_in(client, handle)
                if found.status != "completed":
                    raise Failed(found.error["code"], found.error["message"])
                return found.result["content"][0]["text"]

            yield Task(lambda: get_task(client.session, handle.task_id), result)

    async def handler(message: str, _type: Any, _params: Any, _context: Any) -> dict[str, Any]:
        return {"answer": f"<{message}>"}

    @asynccontextmanager
    async def begin_fast(name: str, tool: str, given: dict[str, Any]) -> AsyncIterator[Task]:
        async with fastmcp.Client(url, elicitation_handler=handler, auth="a token") as client:
            await begins(name)
            task = await call_tool_task(client, tool, given)

            async def result() -> str:
                try:
                    return text_of((await task.result()).content)
                except ToolError as error:
                    raise Failed((await task.status()).error["code"], str(error)) from error

            yield Task(task.status, result)

    return [
        run(kind, f"{name}-{kind}", begin)
        for name, begin in (("python", begin), ("fastmcp", begin_fast))
        for kind in KINDS
    ]


async def main() -> None:
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    await asyncio.gather(*(older() if OLDER else newer()))


if __name__ == "__main__":
    asyncio.run(main())
