"""The calls of a Python client whose server is killed in the middle of them. Runs on the SDKs 1.9, 1.12, 1.30 and on 2.x.

    crash.py URL    # a proxy in front of python/server.py or typescript/server.mjs

Each call has a session of its own: one of a tool that reports progress, one of a tool that says nothing;
with 1.x in a session that is ended by DELETE and in one that is not, with 2.x also as a task. Tells
crashes.py how far each has come: `working NAME`, then `ended NAME CODE WORDS` or `ended NAME result`,
then `left NAME` once the client is closed, too. `astray NAME WORDS` is an answer that no call waits for: a second
one. Kills nothing itself.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import warnings
from collections.abc import Awaitable, Callable
from typing import Any

SECONDS = 60  # longer than anybody waits for a call here
SILENCE = 1.0  # seconds after which a call that says nothing has reached its server

try:
    from mcp import Client

    OLDER = False
except ImportError:
    OLDER = True

Call = Callable[[Any, Callable[..., Awaitable[None]]], Awaitable[Any]]


async def talking(session: Any, progress: Callable[..., Awaitable[None]]) -> Any:
    return await session.call_tool("slow", {"seconds": SECONDS}, progress_callback=progress)


async def silent(session: Any, progress: Callable[..., Awaitable[None]]) -> Any:
    async def reached() -> None:
        await asyncio.sleep(SILENCE)
        await progress()

    waiting = asyncio.create_task(reached())
    try:
        return await session.call_tool("rpc_error", {"seconds": SECONDS})
    finally:
        waiting.cancel()


async def task(client: Any, progress: Callable[..., Awaitable[None]]) -> Any:
    from client import follow, start

    handle = await start(client, "slow", {"seconds": SECONDS})
    await progress()
    found, _ = await follow(client.session, handle)
    if found.status == "failed":
        raise Failed(found.error)
    return found


class Failed(Exception):
    """A task that failed, with the JSON-RPC error it shows."""

    def __init__(self, error: dict[str, Any]) -> None:
        self.code, self.message = error["code"], error["message"]


async def make(name: str, session: Any, call: Call) -> None:
    told = False

    async def progress(*_: Any) -> None:
        nonlocal told
        if not told:
            say("working", name)
        told = True

    try:
        await call(session, progress)
    except Exception as error:
        found = getattr(error, "error", error)
        code, words = getattr(found, "code", type(found).__name__), getattr(found, "message", str(found))
        say("ended", name, code, json.dumps(words))
    else:
        say("ended", name, "result")


def astray(name: str) -> Callable[[Any], Awaitable[None]]:
    """Hears of answers that no call waits for."""

    async def heard(message: Any) -> None:
        if isinstance(message, Exception) and "unknown request" in str(message):
            say("astray", name, json.dumps(str(message)))

    return heard


def say(*words: Any) -> None:
    print(*words, flush=True)


async def older(url: str, name: str, call: Call, ends: bool) -> None:
    from mcp import ClientSession
    from mcp.client import streamable_http

    # Its name until 1.24.
    connect = getattr(streamable_http, "streamable_http_client", None) or streamable_http.streamablehttp_client
    async with (
        connect(url, terminate_on_close=ends) as (read, write, _),
        ClientSession(read, write, message_handler=astray(name)) as session,
    ):
        await session.initialize()
        await make(name, session, call)
    say("left", name)


async def newer(url: str, name: str, call: Call) -> None:
    from client import Tasks

    async with Client(url, extensions=[Tasks()] if call is task else [], message_handler=astray(name)) as client:
        await make(name, client, call)
    say("left", name)


async def main() -> None:
    url = sys.argv[1]
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    if OLDER:
        calls = [
            older(url, f"{call.__name__}{'-delete' if ends else ''}", call, ends)
            for call in (talking, silent)
            for ends in (True, False)
        ]
    else:
        calls = [newer(url, call.__name__, call) for call in (talking, silent, task)]
    await asyncio.gather(*calls)


if __name__ == "__main__":
    asyncio.run(main())
