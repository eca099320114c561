"""What the checks are made with: a client that remembers, and what they all ask."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from typing import Any
from uuid import uuid4

import httpx
from mcp import ClientSession, types
from mcp.shared.exceptions import McpError

try:
    from mcp.client.streamable_http import streamable_http_client as connect
except ImportError:  # 1.9 and 1.12
    from mcp.client.streamable_http import streamablehttp_client as connect

CHECK_SECONDS = 60.0  # as in ../client.py
TERMINAL = ("completed", "failed", "cancelled")
BLOCK = "0123456789abcdef" * 64  # the KiB of which `big` is made
RELATED = "io.modelcontextprotocol/related-task"
TTL_MS = 60_000
MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS
TOOLS = {"add", "slow", "broken", "rpc_error", "ask", "dialogue", "survey", "aside", "big", "cancelled", "touch"}

Check = Callable[[str], Awaitable[None]]
CHECKS: list[tuple[str, str, Check]] = []
revision = "2025-11-25"  # the one this SDK speaks; set by main


def check(group: str, name: str) -> Callable[[Check], Check]:
    def add(function: Check) -> Check:
        CHECKS.append((group, name, function))
        return function

    return add


def equal(got: Any, want: Any, what: str) -> None:
    if got != want:
        raise AssertionError(f"{what}: got {clip(got)}, want {clip(want)}")


def true(condition: Any, what: str) -> None:
    if not condition:
        raise AssertionError(what)


def clip(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:300]}… ({len(text)} characters)"


def label() -> str:
    """A name no other call of this run has."""
    return f"py-{uuid4().hex[:12]}"


# --- a client that remembers ---------------------------------------------------------------------


class Heard:
    """Notifications a session got beside its answers, in the order they came."""

    def __init__(self) -> None:
        self.all: list[Any] = []
        self.more = asyncio.Event()

    def put(self, notification: Any) -> None:
        self.all.append(notification)
        self.more.set()

    def of(self, kind: type) -> list[Any]:
        return [each.params for each in self.all if isinstance(each, kind)]

    async def until(self, what: str, found: Callable[[], Any], seconds: float = 5) -> None:
        deadline = time.monotonic() + seconds
        while not found():
            self.more.clear()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.more.wait(), 0.2)
            true(time.monotonic() < deadline, f"{what} was not heard within {seconds} s")


@asynccontextmanager
async def client(url: str, headers: dict[str, str] | None = None, **callbacks: Any) -> AsyncIterator[ClientSession]:
    """A session after its handshake; `heard`, `hello` and `get_session_id` are ours. Headers need 1.30."""
    heard = Heard()

    async def handle(message: Any) -> None:
        if isinstance(message, types.ServerNotification):
            heard.put(message.root)

    async with (
        connect(url, **({"http_client": httpx.AsyncClient(headers=headers)} if headers else {})) as (
            read,
            write,
            get_session_id,
        ),
        ClientSession(read, write, message_handler=handle, **callbacks) as it,
    ):
        it.heard, it.get_session_id = heard, get_session_id
        it.hello = await it.initialize()
        yield it


def text_of(result: types.CallToolResult) -> str:
    equal([block.type for block in result.content], ["text"], "the types of the content blocks")
    return result.content[0].text


async def failure(call: Awaitable[Any]) -> Any:
    """The JSON-RPC error a call must end with."""
    try:
        result = await call
    except McpError as error:
        return error.error
    raise AssertionError(f"a result instead of a JSON-RPC error: {clip(result)}")


def is_database_error(error: Any) -> None:
    equal(error.code, -31001, "the code")
    true(error.message.endswith("the database is down"), f"the message is {error.message!r}")
    equal(error.data, {"retry": False}, "the data")


async def cancelled_labels(session: ClientSession) -> list[str]:
    return json.loads(text_of(await session.call_tool("cancelled")))


async def wait_cancelled(session: ClientSession, wanted: str) -> list[str]:
    """The labels the server saw cancelled, once `wanted` is among them."""
    deadline = time.monotonic() + 5
    while wanted not in (labels := await cancelled_labels(session)):
        true(time.monotonic() < deadline, f"the server's work {wanted} was not cancelled within 5 s")
        await asyncio.sleep(0.1)
    return labels


async def echo(context: Any, params: Any) -> Any:
    return types.ElicitResult(action="accept", content={"answer": f"<{params.message}>"})


def answering(reply: Any, asked: list[Any]) -> Callable[..., Awaitable[Any]]:
    async def callback(context: Any, params: Any) -> Any:
        asked.append(params)
        return reply

    return callback


def accept(answer: str) -> Any:
    return types.ElicitResult(action="accept", content={"answer": answer})


async def model(context: Any, params: types.CreateMessageRequestParams) -> types.CreateMessageResult:
    content = types.TextContent(type="text", text=f"<{params.messages[0].content.text}>")
    return types.CreateMessageResult(role="assistant", content=content, model="parrot")


async def roots(context: Any) -> types.ListRootsResult:
    return types.ListRootsResult(roots=[types.Root(uri="file:///home/ada")])


def everything() -> dict[str, Any]:
    """What a client that can be asked everything is made with; ClientSession of 1.9 knows no elicitation."""
    return {"elicitation_callback": echo, "sampling_callback": model, "list_roots_callback": roots}


def surveyed(topic: str) -> str:
    """What `survey` makes of everybody's answers."""
    return f"{topic} <{topic}, user?> <{topic}, model?> file:///home/ada"


async def cancel(session: ClientSession, request_id: int) -> None:
    """These SDKs have no call for it: an application sends the notification itself."""
    params = types.CancelledNotificationParams(requestId=request_id, reason="enough")
    notification = types.CancelledNotification(method="notifications/cancelled", params=params)
    await session.send_notification(types.ClientNotification(notification))


# --- tasks of 2025-11-25 --------------------------------------------------------------------------


async def start(session: ClientSession, tool: str, arguments: dict[str, Any], **options: Any) -> types.Task:
    """Call a tool as a task: the answer must be a handle, and come long before the work is done."""
    began = time.monotonic()
    options.setdefault("ttl", TTL_MS)
    task = (await session.experimental.call_tool_as_task(tool, arguments, **options)).task
    seconds = time.monotonic() - began
    work = arguments.get("seconds", arguments.get("delay", 0))
    true(seconds < max(work, 1), f"the handle took {seconds:.2f} s for work of {work} s")
    equal(task.status, "working", "the status of the handle")
    true(len(task.taskId) >= 16, f"taskId {task.taskId!r} is too short to be hard to guess")
    is_task(task)
    return task


def is_task(task: Any) -> None:
    """What every task shown must have; the SDK has parsed the timestamps."""
    for stamp in (task.createdAt, task.lastUpdatedAt):
        true(isinstance(stamp, datetime) and stamp.tzinfo is not None, f"the timestamp {stamp!r} has no zone")
    true(task.createdAt <= task.lastUpdatedAt, f"created {task.createdAt}, updated {task.lastUpdatedAt}")
    true(task.ttl is None or task.ttl > 0, f"ttl is {task.ttl}")


async def finish(session: ClientSession, task: types.Task, want: str = "completed") -> Any:
    """Poll as the SDK does, until the end; every status on the way must be a legal step."""
    seen: list[str] = []
    async for status in session.experimental.poll_task(task.taskId):
        equal(status.taskId, task.taskId, "taskId")
        equal(status.createdAt, task.createdAt, "createdAt")
        is_task(status)
        seen.append(status.status)
        last = status
    true(set(seen[:-1]) <= {"working", "input_required"}, f"the statuses were {seen}")
    equal(last.status, want, f"the final status ({last.statusMessage})")
    return last


async def result_of(session: ClientSession, task: types.Task) -> types.CallToolResult:
    return await session.experimental.get_task_result(task.taskId, types.CallToolResult)


def is_related(meta: Any, task: types.Task, what: str) -> None:
    members = meta if isinstance(meta, dict) else (meta.model_dump(by_alias=True) if meta else {})
    equal(members.get(RELATED), {"taskId": task.taskId}, f"{RELATED} in the _meta of {what}")


async def listed(session: ClientSession) -> list[types.Task]:
    """Every page of tasks/list."""
    found: list[types.Task] = []
    cursor = None
    for _ in range(50):
        page = await session.experimental.list_tasks(cursor)
        found += page.tasks
        if (cursor := page.nextCursor) is None:
            return found
    raise AssertionError("tasks/list has no last page")
