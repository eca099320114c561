"""The checks made with the Python SDK 1.x: clients of 2025-03-26 (1.9), 2025-06-18 (1.12) and 2025-11-25 (1.30).

    older.py URL --revision 2025-11-25 [--groups plain,asking,resuming,tasks,task-questions] [--only PATTERN]

URL is python/server.py or typescript/server.mjs, or a proxy in front of it. Runs on any of the three
versions: what only the newer ones have is in groups of its own.

`tasks` and `task-questions` hold the other side to the 2025-11-25 tasks page; `own-tasks` is what
still holds of the SDKs' own implementations, which fall short of it; `session` is one scripted
session in which nothing is left to chance, for recorded.py.

Prints `ok NAME` or `FAIL NAME: why` for each check, and `done N` at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import fnmatch
import json
import logging
import sys
import time
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from typing import Any
from uuid import uuid4

import httpx
from mcp import ClientSession, types
from mcp.shared.exceptions import McpError
from pydantic import AnyUrl

try:
    from mcp.client.streamable_http import streamable_http_client as connect
except ImportError:  # 1.9 and 1.12
    from mcp.client.streamable_http import streamablehttp_client as connect

CHECK_SECONDS = 20.0
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


# --- without tasks -------------------------------------------------------------------------------


@check("plain", "speaks-its-own-revision")
async def _(url: str) -> None:
    async with client(url) as session:
        equal(session.hello.protocolVersion, revision, "the negotiated revision")
        equal(session.hello.instructions, "Tools for the interop test.", "instructions")
        true(session.hello.capabilities.tools is not None, "no tools capability")
        await session.send_ping()


@check("older", "knows-nothing-of-tasks")
async def _(url: str) -> None:
    async with client(url) as session:
        offered = session.hello.capabilities.model_dump(exclude_none=True)
        true("tasks" not in offered, f"the capabilities are {offered}")
        for tool in (await session.list_tools()).tools:
            true("execution" not in tool.model_dump(exclude_none=True), f"{tool.name} has `execution`")


@check("plain", "lists")
async def _(url: str) -> None:
    async with client(url) as session:
        tools = {tool.name: tool for tool in (await session.list_tools()).tools}
        equal(set(tools) - {"parting"}, TOOLS, "the tools")
        equal(tools["add"].description, "Add two numbers.", "a description")
        equal(sorted(tools["add"].inputSchema["required"]), ["a", "b"], "the required arguments of add")
        equal([prompt.name for prompt in (await session.list_prompts()).prompts], ["review"], "the prompts")
        resources = (await session.list_resources()).resources
        equal([str(resource.uri) for resource in resources], ["interop://greeting"], "the resources")
        templates = (await session.list_resource_templates()).resourceTemplates
        equal([template.uriTemplate for template in templates], ["interop://note/{name}"], "the templates")
        for uri, want in [("greeting", "Hello from a resource."), ("note/alpha", "The note alpha.")]:
            contents = (await session.read_resource(AnyUrl(f"interop://{uri}"))).contents
            equal([item.text for item in contents], [want], "the contents")
        messages = (await session.get_prompt("review", {"subject": "the plan"})).messages
        equal([message.content.text for message in messages], ["Please review the plan."], "the prompt")


@check("plain", "calls")
async def _(url: str) -> None:
    name = label()
    async with client(url) as session:
        equal(text_of(await session.call_tool("add", {"a": 2**53 - 2, "b": 1})), "9007199254740991", "the sum")
        began = time.monotonic()
        result = await session.call_tool("slow", {"seconds": 1.0, "label": name})
        equal(text_of(result), f"slow {name} is done", "the text")
        true(time.monotonic() - began >= 0.9, "answered before the work of 1 s was done")
        equal(text_of(await session.call_tool("big", {"kib": 512, "seconds": 0.4})), BLOCK * 512, "a large text")


@check("plain", "calls-do-not-mix")
async def _(url: str) -> None:
    async with client(url) as one, client(url) as other:
        names = [label() for _ in range(8)]
        results = await asyncio.gather(
            *(
                (one, other)[place % 2].call_tool("slow", {"seconds": 1.2 - 0.1 * place, "label": name})
                for place, name in enumerate(names)
            )
        )
        equal([text_of(result) for result in results], [f"slow {name} is done" for name in names], "the texts")


@check("plain", "progress")
async def _(url: str) -> None:
    name = label()
    seen: list[Any] = []

    async def progress(*said: Any) -> None:
        seen.append(said)

    async with client(url) as session:
        params = types.CallToolRequestParams(name="slow", arguments={"seconds": 1.0, "label": name})
        request = types.ClientRequest(types.CallToolRequest(method="tools/call", params=params))
        result = await session.send_request(request, types.CallToolResult, progress_callback=progress)
        equal(text_of(result), f"slow {name} is done", "the text")
    want = [(float(step), 5.0, f"{name} {step}/5") for step in range(1, 6)]
    # The last one may be dispatched after the result; the others may not be missing.
    true(len(seen) >= 4 and seen == want[: len(seen)], f"progress: got {clip(seen)}")


@check("plain", "log-messages")
async def _(url: str) -> None:
    name = label()
    async with client(url) as session:
        await session.call_tool("slow", {"seconds": 0.2, "label": name})
        await session.heard.until("the log message", lambda: session.heard.of(types.LoggingMessageNotification))
        [said] = session.heard.of(types.LoggingMessageNotification)
        equal(said.data, f"slow {name} started", "the message")


@check("plain", "errors")
async def _(url: str) -> None:
    async with client(url) as session:
        for seconds in (0, 0.7):
            name = label()
            result = await session.call_tool("broken", {"seconds": seconds, "label": name})
            equal(result.isError, True, "isError")
            true(text_of(result).endswith(f"{name} is broken"), f"the text is {text_of(result)!r}")
            is_database_error(await failure(session.call_tool("rpc_error", {"seconds": seconds})))
        await failure(session.get_prompt("review"))


async def cancel(session: ClientSession, request_id: int) -> None:
    """These SDKs have no call for it: an application sends the notification itself."""
    params = types.CancelledNotificationParams(requestId=request_id, reason="enough")
    notification = types.CancelledNotification(method="notifications/cancelled", params=params)
    await session.send_notification(types.ClientNotification(notification))


@check("plain", "a-notification-cancels")
async def _(url: str) -> None:
    gone, kept = label(), label()
    async with client(url) as session, client(url) as reader:
        other = asyncio.create_task(session.call_tool("slow", {"seconds": 2.0, "label": kept}))
        await asyncio.sleep(0.2)
        request_id = session._request_id
        call = asyncio.create_task(session.call_tool("slow", {"seconds": 20, "label": gone}))
        await asyncio.sleep(0.5)
        await cancel(session, request_id)
        labels = await wait_cancelled(reader, gone)
        true(kept not in labels, "another call was cancelled too")
        equal(text_of(await other), f"slow {kept} is done", "the other call")
        call.cancel()  # a server may leave a cancelled request without an answer
        with suppress(asyncio.CancelledError, McpError):
            await call


@check("plain", "leaving-is-no-cancel")
async def _(url: str) -> None:
    name = label()
    async with client(url) as reader:
        async with client(url) as session:
            call = asyncio.create_task(session.call_tool("slow", {"seconds": 1.0, "label": name}))
            await asyncio.sleep(0.3)
            call.cancel()
            with suppress(asyncio.CancelledError):
                await call
            await asyncio.sleep(1.0)
        true(name not in await cancelled_labels(reader), "the work was cancelled, though nobody said so")


@check("plain", "the-model-and-the-roots-are-asked")
async def _(url: str) -> None:
    async with client(url, sampling_callback=model, list_roots_callback=roots) as session:
        await asyncio.sleep(0.3)  # one of them goes to the GET stream, which is still being opened
        for delay in (0, 0.6):
            topic = label()
            result = await session.call_tool("survey", {"topic": topic, "delay": delay, "nobody": True})
            equal(text_of(result), f"{topic} nobody <{topic}, model?> file:///home/ada", "the text")


@check("plain", "hears-that-lists-change")
async def _(url: str) -> None:
    async with client(url) as session:
        deadline = time.monotonic() + 5
        while not session.heard.of(types.ToolListChangedNotification):
            # Until its GET stream is open, a client misses what is said there.
            true(time.monotonic() < deadline, "the change was not heard within 5 s")
            equal(text_of(await session.call_tool("touch")), "touched", "the text")
            await asyncio.sleep(0.2)


@check("plain", "an-ended-session-is-gone")
async def _(url: str) -> None:
    headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    async with connect(url) as (read, write, get_session_id), ClientSession(read, write) as session:
        await session.initialize()
        headers["mcp-session-id"] = get_session_id()
    async with httpx.AsyncClient() as http:
        body = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        for _ in range(20):  # the SDK's server ends a session a moment after it said so
            response = await http.post(url, json=body, headers=headers)
            if response.status_code == 404:
                return
            await asyncio.sleep(0.1)
    raise AssertionError(f"a request in an ended session was answered {response.status_code}")


# --- questions -----------------------------------------------------------------------------------


@check("asking", "a-question-in-a-call")
async def _(url: str) -> None:
    for delay in (0, 0.8):
        for reply, want in [(accept("forty-two"), "forty-two"), (types.ElicitResult(action="decline"), "decline")]:
            question = f"Which, {label()}?"
            asked: list[Any] = []
            async with client(url, elicitation_callback=answering(reply, asked)) as session:
                result = await session.call_tool("ask", {"question": question, "delay": delay})
                equal(text_of(result), f"{question} {want}", "the text")
            equal([params.message for params in asked], [question], "the questions seen")


@check("asking", "questions-do-not-mix")
async def _(url: str) -> None:
    async with client(url, elicitation_callback=echo) as one, client(url, elicitation_callback=echo) as other:
        questions = [f"Which, {label()}?" for _ in range(6)]
        results = await asyncio.gather(
            *(
                (one, other)[place % 2].call_tool("ask", {"question": question, "delay": 0.2})
                for place, question in enumerate(questions)
            )
        )
        equal([text_of(each) for each in results], [f"{question} <{question}>" for question in questions], "the texts")


@check("asking", "questions-of-every-kind-at-once")
async def _(url: str) -> None:
    async with client(url, **everything()) as session:
        await asyncio.sleep(0.3)  # one of them goes to the GET stream, which is still being opened
        for delay in (0, 0.6):
            topic = label()
            equal(text_of(await session.call_tool("survey", {"topic": topic, "delay": delay})), surveyed(topic), "said")


@check("asking", "one-question-after-another")
async def _(url: str) -> None:
    async with client(url, elicitation_callback=echo) as session:
        questions = [f"Which, {label()}?" for _ in range(5)]
        result = await session.call_tool("dialogue", {"questions": questions, "delay": 0.1})
        equal(text_of(result), " ".join(f"{each} <{each}>" for each in questions), "the text")


@check("asking", "questions-on-the-stream-of-the-session")
async def _(url: str) -> None:
    async with client(url, elicitation_callback=echo) as session:
        questions = [f"Which, {label()}?" for _ in range(4)]
        results = await asyncio.gather(
            *(session.call_tool("aside", {"question": question, "delay": 0.4}) for question in questions)
        )
        equal([text_of(each) for each in results], [f"{question} <{question}>" for question in questions], "the texts")


# --- streams that end early ----------------------------------------------------------------------


@check("resuming", "comes-back-for-the-rest")
async def _(url: str) -> None:
    async with client(url) as session:
        began = time.monotonic()
        result = await session.call_tool("parting", {"seconds": 0.8})
        equal(text_of(result), "together again", "the text")
        # `retry: 100` must have arrived: without it the SDK waits for a second.
        true(time.monotonic() - began < 3, "it took more than 3 s")
        await session.heard.until("both", lambda: len(session.heard.of(types.LoggingMessageNotification)) >= 2)
        said = [params.data for params in session.heard.of(types.LoggingMessageNotification)]
        equal(said, ["before the parting", "after the parting"], "the messages, each once")


@check("task-resuming", "a-task-whose-call-loses-its-stream")
async def _(url: str) -> None:
    async with client(url) as session:
        task = await start(session, "parting", {"seconds": 0.8})
        await finish(session, task)
        equal(text_of(await result_of(session, task)), "together again", "the text")


# --- tasks of 2025-11-25 -------------------------------------------------------------------------


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


@check("tasks", "capabilities")
async def _(url: str) -> None:
    async with client(url) as session:
        offered = session.hello.capabilities.tasks
        true(offered is not None, "no tasks capability")
        equal(
            offered.model_dump(exclude_none=True),
            {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}},
            "the tasks capability",
        )
        for tool in (await session.list_tools()).tools:
            equal(tool.execution and tool.execution.taskSupport, "optional", f"taskSupport of {tool.name}")


@check("tasks", "call-get-result")
async def _(url: str) -> None:
    name = label()
    async with client(url) as session:
        await session.list_tools()
        task = await start(session, "slow", {"seconds": 2.0, "label": name})
        await finish(session, task)
        result = await result_of(session, task)
        equal(text_of(result), f"slow {name} is done", "the text")
        equal(result.structuredContent, {"result": f"slow {name} is done"}, "the structured content")
        is_related(result.meta, task, "the result")
        again = await result_of(session, task)
        equal(again, result, "a second tasks/result")


@check("tasks", "a-fast-tool-as-a-task")
async def _(url: str) -> None:
    async with client(url) as session:
        task = (await session.experimental.call_tool_as_task("add", {"a": 2, "b": 3}, ttl=TTL_MS)).task
        await finish(session, task)
        equal(text_of(await result_of(session, task)), "5", "the text")


@check("tasks", "a-plain-call-stays-plain")
async def _(url: str) -> None:
    name = label()
    async with client(url) as session:
        await session.list_tools()
        result = await session.call_tool("slow", {"seconds": 1.0, "label": name})
        equal(text_of(result), f"slow {name} is done", "the text")
        true(RELATED not in (result.meta or {}), "a plain call's result speaks of a task")


@check("tasks", "the-result-waits-for-the-end")
async def _(url: str) -> None:
    name = label()
    async with client(url) as session:
        began = time.monotonic()
        task = await start(session, "slow", {"seconds": 1.5, "label": name})
        waiting = [asyncio.create_task(result_of(session, task)) for _ in range(2)]
        await asyncio.sleep(0.5)
        equal((await session.experimental.get_task(task.taskId)).status, "working", "the status meanwhile")
        results = await asyncio.gather(*waiting)
        true(time.monotonic() - began >= 1.4, "the result came before the work of 1.5 s was done")
        equal([text_of(result) for result in results], [f"slow {name} is done"] * 2, "the texts")
        is_related(results[0].meta, task, "the result")


@check("tasks", "a-wish-for-a-ttl")
async def _(url: str) -> None:
    async with client(url) as session:
        # One that is granted; one that is too short to come back in, and raised; one that is more than the default limit.
        for wish, want in ((30 * MINUTE_MS, 30 * MINUTE_MS), (1000, 10 * MINUTE_MS), (7 * DAY_MS, DAY_MS)):
            task = await start(session, "slow", {"seconds": 0.5}, ttl=wish)
            shown = await session.experimental.get_task(task.taskId)
            equal((task.ttl, shown.ttl), (want, want), f"the ttl of the handle and of tasks/get for a wish of {wish}")


@check("tasks", "tasks-do-not-mix")
async def _(url: str) -> None:
    async with client(url) as one, client(url) as other:
        names = [label() for _ in range(8)]

        async def run(place: int, name: str) -> str:
            session = (one, other)[place % 2]
            task = await start(session, "slow", {"seconds": 2.0 - 0.1 * place, "label": name})
            ids.append(task.taskId)
            await finish(session, task)
            return text_of(await result_of(session, task))

        ids: list[str] = []
        texts = await asyncio.gather(*(run(place, name) for place, name in enumerate(names)))
        equal(texts, [f"slow {name} is done" for name in names], "the texts")
        equal(len(set(ids)), 8, "different task ids")


@check("tasks", "a-tool-that-fails")
async def _(url: str) -> None:
    name = label()
    async with client(url) as session:
        task = await start(session, "broken", {"seconds": 1.0, "label": name})
        last = await finish(session, task, "failed")
        true(f"{name} is broken" in (last.statusMessage or ""), f"statusMessage is {last.statusMessage!r}")
        result = await result_of(session, task)
        equal(result.isError, True, "isError")
        true(text_of(result).endswith(f"{name} is broken"), f"the text is {text_of(result)!r}")
        is_related(result.meta, task, "the result")


@check("tasks", "a-request-that-fails")
async def _(url: str) -> None:
    async with client(url) as session:
        task = await start(session, "rpc_error", {"seconds": 1.0})
        waiting = asyncio.create_task(failure(result_of(session, task)))
        last = await finish(session, task, "failed")
        true("the database is down" in (last.statusMessage or ""), f"statusMessage is {last.statusMessage!r}")
        is_database_error(await waiting)
        is_database_error(await failure(result_of(session, task)))


@check("tasks", "cancel-reaches-the-server")
async def _(url: str) -> None:
    gone, kept = label(), label()
    async with client(url) as session:
        one = await start(session, "slow", {"seconds": 20, "label": gone})
        other = await start(session, "slow", {"seconds": 2.5, "label": kept})
        waiting = asyncio.create_task(failure(result_of(session, one)))
        true(gone not in await cancelled_labels(session), "cancelled before anybody asked")
        answer = await session.experimental.cancel_task(one.taskId)
        equal((answer.taskId, answer.status), (one.taskId, "cancelled"), "the answer")
        is_task(answer)
        equal((await session.experimental.get_task(one.taskId)).status, "cancelled", "the status after it")
        await asyncio.wait_for(waiting, 5)  # what waited for the result is let go, with an error
        labels = await wait_cancelled(session, gone)
        true(kept not in labels, "another task's work was cancelled too")
        equal((await failure(session.experimental.cancel_task(one.taskId))).code, -32602, "cancelling again")
        await finish(session, other)
        equal(text_of(await result_of(session, other)), f"slow {kept} is done", "the other task")


@check("tasks", "an-ended-task-cannot-be-cancelled")
async def _(url: str) -> None:
    async with client(url) as session:
        for tool, want in [("slow", "completed"), ("broken", "failed")]:
            task = await start(session, tool, {"seconds": 0.4})
            await finish(session, task, want)
            equal((await failure(session.experimental.cancel_task(task.taskId))).code, -32602, "the code")
            equal((await session.experimental.get_task(task.taskId)).status, want, "the status after it")


@check("tasks", "cancelling-the-call-does-not-end-its-task")
async def _(url: str) -> None:
    # For tasks there is tasks/cancel; a request that was answered with a handle is over.
    name = label()
    async with client(url) as session:
        request_id = session._request_id
        task = await start(session, "slow", {"seconds": 1.2, "label": name})
        await cancel(session, request_id)
        await finish(session, task)
        equal(text_of(await result_of(session, task)), f"slow {name} is done", "the text")


@check("tasks", "unknown-tasks")
async def _(url: str) -> None:
    async with client(url) as session:
        tasks = session.experimental
        unknown = "no-such-task-" + uuid4().hex
        for call in (
            tasks.get_task(unknown),
            tasks.cancel_task(unknown),
            tasks.get_task_result(unknown, types.CallToolResult),
        ):
            equal((await failure(call)).code, -32602, "the code")


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


@check("tasks", "list")
async def _(url: str) -> None:
    async with client(url) as session:
        equal(await listed(session), [], "the tasks of a new session")
        started = [await start(session, "slow", {"seconds": 0.4}) for _ in range(3)]
        tasks = {task.taskId: task for task in await listed(session)}
        equal(set(tasks), {task.taskId for task in started}, "the ids")
        for task in tasks.values():
            is_task(task)
        for task in started:
            await finish(session, task)
        equal({task.status for task in await listed(session)}, {"completed"}, "the statuses at the end")
        error = await failure(session.experimental.list_tasks("no-such-cursor"))
        equal(error.code, -32602, "the code for a cursor nobody gave")


@check("tasks", "many-tasks-are-listed-in-pages")
async def _(url: str) -> None:
    async with client(url) as session:
        started = [
            (await session.experimental.call_tool_as_task("add", {"a": 1, "b": place}, ttl=TTL_MS)).task.taskId
            for place in range(120)
        ]
        found = [task.taskId for task in await listed(session)]
        equal(len(found), len(set(found)), "each is listed once")
        equal(set(found), set(started), "the ids")


@check("tasks", "another-session-sees-nothing")
async def _(url: str) -> None:
    name = label()
    async with client(url) as owner, client(url) as stranger:
        task = await start(owner, "slow", {"seconds": 1.5, "label": name})
        tasks = stranger.experimental
        nobody = await failure(tasks.get_task("no-such-task-" + uuid4().hex))
        for call in (
            tasks.get_task(task.taskId),
            tasks.cancel_task(task.taskId),
            tasks.get_task_result(task.taskId, types.CallToolResult),
        ):
            equal((await failure(call)).code, nobody.code, "the code")
        equal(await listed(stranger), [], "what a stranger is shown")
        await finish(owner, task)
        equal(text_of(await result_of(owner, task)), f"slow {name} is done", "the text")


@check("tasks", "progress-lasts-as-long-as-the-task")
async def _(url: str) -> None:
    name = label()
    async with client(url) as session:
        task = await start(session, "slow", {"seconds": 1.6, "label": name}, meta={"progressToken": name})
        before = len(session.heard.of(types.ProgressNotification))
        await finish(session, task)
        await session.heard.until("the last step", lambda: len(session.heard.of(types.ProgressNotification)) >= 8)
        said = session.heard.of(types.ProgressNotification)
        equal({params.progressToken for params in said}, {name}, "the tokens")
        equal([(params.progress, params.total) for params in said], [(step, 8) for step in range(1, 9)], "the steps")
        true(before < 8, "all of it came before the handle")
        for params in said:
            is_related(params.meta, task, "a progress notification")


@check("tasks", "status-notifications")
async def _(url: str) -> None:
    async with client(url) as session:
        await asyncio.sleep(0.3)  # they go to the GET stream, which is still being opened
        for tool, want in [("slow", "completed"), ("broken", "failed")]:
            task = await start(session, tool, {"seconds": 0.6})

            def ended(task: types.Task = task) -> list[Any]:
                said = session.heard.of(types.TaskStatusNotification)
                return [params for params in said if params.taskId == task.taskId and params.status in TERMINAL]

            await session.heard.until("the end of the task", ended)
            [params] = ended()
            equal(params.status, want, "the status")
            equal(params.createdAt, task.createdAt, "createdAt")
            is_task(params)


@check("tasks", "a-large-result")
async def _(url: str) -> None:
    async with client(url) as session:
        task = await start(session, "big", {"kib": 1024, "seconds": 1.0})
        await finish(session, task)
        true(text_of(await result_of(session, task)) == BLOCK * 1024, "the text differs")


@check("tasks", "an-unknown-tool")
async def _(url: str) -> None:
    # Whether this fails at once or as a task is the receiver's choice; it may not end well, or not at all.
    async with client(url) as session:
        try:
            created = await session.experimental.call_tool_as_task("no-such-tool", {}, ttl=TTL_MS)
        except McpError:
            return
        await finish(session, created.task, "failed")
        with suppress(McpError):
            equal((await result_of(session, created.task)).isError, True, "isError")


# --- tools that must be called as tasks ----------------------------------------------------------


@check("required", "only-as-tasks")
async def _(url: str) -> None:
    name = label()
    async with client(url) as session:
        for tool in (await session.list_tools()).tools:
            equal(tool.execution and tool.execution.taskSupport, "required", f"taskSupport of {tool.name}")
        equal((await failure(session.call_tool("slow", {"seconds": 0.2}))).code, -32601, "the code of a plain call")
        task = await start(session, "slow", {"seconds": 0.6, "label": name})
        await finish(session, task)
        equal(text_of(await result_of(session, task)), f"slow {name} is done", "the text")


# --- servers without sessions ---------------------------------------------------------------------


@check("stateless", "tasks-of-nobody-in-particular")
async def _(url: str) -> None:
    # Who asks cannot be told apart from anybody else, so there is no list; the id is the key.
    name = label()
    async with client(url) as session:
        offered = session.hello.capabilities.tasks
        true(offered is not None, "no tasks capability")
        equal(
            offered.model_dump(exclude_none=True),
            {"cancel": {}, "requests": {"tools": {"call": {}}}},
            "the tasks capability",
        )
        task = await start(session, "slow", {"seconds": 1.2, "label": name})
        await finish(session, task)
        equal(text_of(await result_of(session, task)), f"slow {name} is done", "the text")
        gone = await start(session, "slow", {"seconds": 20})
        equal((await session.experimental.cancel_task(gone.taskId)).status, "cancelled", "the status")
        equal((await failure(session.experimental.list_tasks())).code, -32601, "the code of tasks/list")


@check("stateless", "tasks-of-somebody")
async def _(url: str) -> None:
    one, other = ({"authorization": f"Bearer {label()}"} for _ in range(2))
    async with client(url, one) as session, client(url, one) as again, client(url, other) as stranger:
        equal(session.hello.capabilities.tasks.model_dump(exclude_none=True).get("list"), {}, "tasks.list")
        task = await start(session, "slow", {"seconds": 0.5})
        equal([each.taskId for each in await listed(again)], [task.taskId], "the list of the same caller")
        equal((await failure(stranger.experimental.get_task(task.taskId))).code, -32602, "a stranger's tasks/get")
        equal(await listed(stranger), [], "what a stranger is shown")
        await finish(again, task)
        equal((await result_of(again, task)).isError, False, "isError")


# --- questions in tasks --------------------------------------------------------------------------


async def ask_in_a_task(url: str, reply: Any, want: str, follow: Callable[..., Awaitable[str]]) -> None:
    question = f"Which, {label()}?"
    asked: list[Any] = []
    async with client(url, elicitation_callback=answering(reply, asked)) as session:
        await asyncio.sleep(0.3)  # for the GET stream to be open
        task = await start(session, "ask", {"question": question, "delay": 0.8, "rest": 0.4})
        equal(await follow(session, task), f"{question} {want}", "the text")
        equal([params.message for params in asked], [question], "the questions seen, each once")
        is_related(asked[0].meta, task, "the question")


async def as_the_guide_says(session: ClientSession, task: types.Task) -> str:
    """Poll; where input is required, wait on tasks/result, which brings the question and then the result."""
    async for status in session.experimental.poll_task(task.taskId):
        if status.status == "input_required":
            return text_of(await result_of(session, task))
    return text_of(await result_of(session, task))


async def by_polling_alone(session: ClientSession, task: types.Task) -> str:
    """As ext-tasks does it, which asks for a result only when there is one."""
    await finish(session, task)
    return text_of(await result_of(session, task))


async def by_waiting(session: ClientSession, task: types.Task) -> str:
    """Never poll: tasks/result from the start."""
    return text_of(await result_of(session, task))


@check("own-tasks", "a-question-in-a-task")
@check("task-questions", "a-question-as-the-guide-says")
async def _(url: str) -> None:
    await ask_in_a_task(url, accept("seven"), "seven", as_the_guide_says)
    await ask_in_a_task(url, types.ElicitResult(action="decline"), "decline", as_the_guide_says)


@check("task-questions", "a-question-for-who-only-polls")
async def _(url: str) -> None:
    await ask_in_a_task(url, accept("seven"), "seven", by_polling_alone)


@check("own-tasks", "a-question-for-who-only-waits")
@check("task-questions", "a-question-for-who-only-waits")
async def _(url: str) -> None:
    await ask_in_a_task(url, accept("seven"), "seven", by_waiting)


@check("task-questions", "input-required-while-nobody-answers")
async def _(url: str) -> None:
    question = f"Which, {label()}?"
    answered = asyncio.Event()
    asked: list[str] = []

    async def slow_user(context: Any, params: Any) -> Any:
        asked.append(params.message)
        await answered.wait()
        return accept("at last")

    # The SDK 1.x answers one question at a time and reads nothing meanwhile, so another must look.
    async with client(url, elicitation_callback=slow_user) as session, httpx.AsyncClient() as http:
        await asyncio.sleep(0.3)
        task = await start(session, "ask", {"question": question, "delay": 0.3})
        looking = Bare(http, url, session.get_session_id())
        await looking.until_status(task.taskId, "input_required")
        answered.set()
        await finish(session, task)
        equal(text_of(await result_of(session, task)), f"{question} at last", "the text")
        equal(asked, [question], "the questions seen")


@check("task-questions", "one-question-after-another")
async def _(url: str) -> None:
    async with client(url, elicitation_callback=echo) as session:
        await asyncio.sleep(0.3)
        for follow in (as_the_guide_says, by_polling_alone):
            questions = [f"Which, {label()}?" for _ in range(3)]
            task = await start(session, "dialogue", {"questions": questions, "delay": 0.3})
            equal(await follow(session, task), " ".join(f"{each} <{each}>" for each in questions), "the text")


@check("task-questions", "questions-of-every-kind-in-a-task")
async def _(url: str) -> None:
    async with client(url, **everything()) as session:
        await asyncio.sleep(0.3)
        topic = label()
        task = await start(session, "survey", {"topic": topic, "delay": 0.5})
        equal(await as_the_guide_says(session, task), surveyed(topic), "the text")


@check("task-questions", "questions-on-the-stream-of-the-session")
async def _(url: str) -> None:
    async with client(url, elicitation_callback=echo) as session:
        await asyncio.sleep(0.3)
        question = f"Which, {label()}?"
        task = await start(session, "aside", {"question": question, "delay": 0.5})
        equal(await by_polling_alone(session, task), f"{question} <{question}>", "the text")


@check("task-questions", "questions-of-tasks-do-not-mix")
async def _(url: str) -> None:
    async with client(url, elicitation_callback=echo) as one, client(url, elicitation_callback=echo) as other:
        await asyncio.sleep(0.3)

        async def run(place: int) -> None:
            session = (one, other)[place % 2]
            question = f"Which, {label()}?"
            task = await start(session, "ask", {"question": question, "delay": 0.5 + 0.1 * (place % 3)})
            follow = (as_the_guide_says, by_polling_alone, by_waiting)[place % 3]
            equal(await follow(session, task), f"{question} <{question}>", "the text")

        await asyncio.gather(*(run(place) for place in range(6)))


@check("task-questions", "cancelled-while-it-asks")
async def _(url: str) -> None:
    asked = asyncio.Event()

    async def never(context: Any, params: Any) -> Any:
        asked.set()
        await asyncio.sleep(1.5)
        return accept("too late")

    async with client(url, elicitation_callback=never) as session:
        await asyncio.sleep(0.3)
        task = await start(session, "ask", {"question": f"Which, {label()}?", "delay": 0.3})
        await asyncio.wait_for(asked.wait(), 5)
        answer = await session.experimental.cancel_task(task.taskId)
        equal(answer.status, "cancelled", "the status")
        await asyncio.sleep(0.3)
        equal((await session.experimental.get_task(task.taskId)).status, "cancelled", "the status after the answer")
        equal(text_of(await session.call_tool("add", {"a": 1, "b": 2})), "3", "a call after it")


# --- a client that does less than an SDK --------------------------------------------------------------


class Bare:
    """Speaks 2025-11-25 by hand: what no SDK does, such as to keep no GET stream open."""

    def __init__(self, http: httpx.AsyncClient, url: str, session: str | None = None) -> None:
        self.http, self.url, self.count = http, url, 0
        self.headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
        if session is not None:
            self.headers |= {"mcp-session-id": session, "mcp-protocol-version": revision}

    def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self.count += 1
        return {"jsonrpc": "2.0", "id": f"bare-{self.count}", "method": method, "params": params}

    async def send(self, message: dict[str, Any]) -> httpx.Response:
        return await self.http.post(self.url, json=message, headers=self.headers)

    async def call(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """The response to a request, with its result or error."""
        async with asyncio.timeout(10):
            async for message in self.messages(method, params):
                if "method" not in message:
                    return message
        raise AssertionError(f"{method} was left without a response")

    async def messages(self, method: str, params: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """What comes on the stream of a request, until it ends."""
        request = self.request(method, params)
        async with self.http.stream("POST", self.url, json=request, headers=self.headers) as response:
            if session := response.headers.get("mcp-session-id"):
                self.headers |= {"mcp-session-id": session, "mcp-protocol-version": revision}
            if not response.headers.get("content-type", "").startswith("text/event-stream"):
                yield json.loads(await response.aread())
                return
            async for line in response.aiter_lines():
                if line.startswith("data:") and line[5:].strip():
                    yield json.loads(line[5:])

    async def open(self) -> dict[str, Any]:
        """The handshake of a client that can be asked."""
        said = {"protocolVersion": revision, "capabilities": {"elicitation": {}}}
        said["clientInfo"] = {"name": "bare", "version": "1"}
        answer = await self.call("initialize", said)
        await self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return answer["result"]

    async def start(self, tool: str, arguments: dict[str, Any]) -> str:
        call = {"name": tool, "arguments": arguments, "task": {"ttl": TTL_MS}}
        return (await self.call("tools/call", call))["result"]["task"]["taskId"]

    async def status(self, task_id: str) -> str:
        return (await self.call("tasks/get", {"taskId": task_id}))["result"]["status"]

    async def until_status(self, task_id: str, want: str) -> None:
        deadline = time.monotonic() + 5
        while (status := await self.status(task_id)) != want:
            true(time.monotonic() < deadline, f"the status stayed {status}, not {want}, for 5 s")
            await asyncio.sleep(0.05)

    async def answer(self, question: dict[str, Any], answer: str, task_id: str) -> None:
        result = {"action": "accept", "content": {"answer": answer}, "_meta": {RELATED: {"taskId": task_id}}}
        response = await self.send({"jsonrpc": "2.0", "id": question["id"], "result": result})
        equal(response.status_code, 202, "the status of an answer")


@check("bare", "a-question-comes-with-the-result")
async def _(url: str) -> None:
    question = f"Which, {label()}?"
    async with httpx.AsyncClient(timeout=10) as http:
        bare = Bare(http, url)
        await bare.open()
        task_id = await bare.start("ask", {"question": question, "delay": 0.3})
        await bare.until_status(task_id, "input_required")
        seen = []
        async for message in bare.messages("tasks/result", {"taskId": task_id}):
            seen.append(message.get("method", "response"))
            if message.get("method") == "elicitation/create":
                equal(message["params"]["message"], question, "the question")
                equal(message["params"]["_meta"][RELATED], {"taskId": task_id}, f"{RELATED} of the question")
                await bare.answer(message, "seven", task_id)
            elif "method" not in message:
                equal(message["result"]["content"][0]["text"], f"{question} seven", "the text")
                equal(message["result"]["_meta"][RELATED], {"taskId": task_id}, f"{RELATED} of the result")
        equal([method for method in seen if not method.startswith("notifications/")], ["elicitation/create", "response"], "messages")


@check("bare", "a-question-is-asked-again-of-who-lost-its-stream")
async def _(url: str) -> None:
    question = f"Which, {label()}?"
    async with httpx.AsyncClient(timeout=10) as http:
        bare = Bare(http, url)
        await bare.open()
        task_id = await bare.start("ask", {"question": question, "delay": 0.3})
        lost = bare.messages("tasks/result", {"taskId": task_id})
        first = None
        async for message in lost:
            if message.get("method") == "elicitation/create":
                first = message
                break
        await lost.aclose()  # the connection ends here, unanswered
        true(first is not None, "the question never came")
        equal(await bare.status(task_id), "input_required", "the status after it")
        async for message in bare.messages("tasks/result", {"taskId": task_id}):
            if message.get("method") == "elicitation/create":
                equal(message["id"], first["id"], "the id of the same question")
                await bare.answer(message, "at last", task_id)
            elif "method" not in message:
                equal(message["result"]["content"][0]["text"], f"{question} at last", "the text")


@check("bare", "a-question-lost-with-the-get-stream-comes-with-the-result")
async def _(url: str) -> None:
    question = f"Which, {label()}?"
    async with httpx.AsyncClient(timeout=10) as http:
        bare = Bare(http, url)
        await bare.open()
        async with http.stream("GET", url, headers=bare.headers | {"accept": "text/event-stream"}) as stream:
            equal(stream.status_code, 200, "the status of GET")
            task_id = await bare.start("ask", {"question": question, "delay": 0.3})
            async for line in stream.aiter_lines():
                if line.startswith("data:") and "elicitation/create" in line:
                    first = json.loads(line[5:])
                    break
        equal(first["params"]["_meta"][RELATED], {"taskId": task_id}, f"{RELATED} of the question")
        await asyncio.sleep(0.2)  # the proxy is to see that the stream is gone
        async for message in bare.messages("tasks/result", {"taskId": task_id}):
            if message.get("method") == "elicitation/create":
                equal(message["id"], first["id"], "the id of the same question")
                await bare.answer(message, "at last", task_id)
            elif "method" not in message:
                equal(message["result"]["content"][0]["text"], f"{question} at last", "the text")
                return
        raise AssertionError("no result")


@check("bare", "a-question-answered-twice-counts-once")
async def _(url: str) -> None:
    questions = [f"Which, {label()}?" for _ in range(2)]
    async with httpx.AsyncClient(timeout=10) as http:
        bare = Bare(http, url)
        await bare.open()
        task_id = await bare.start("dialogue", {"questions": questions, "delay": 0.3})
        async for message in bare.messages("tasks/result", {"taskId": task_id}):
            if message.get("method") == "elicitation/create":
                said = f"<{message['params']['message']}>"
                await bare.answer(message, said, task_id)
                result = {"action": "accept", "content": {"answer": "again"}}
                again = await bare.send({"jsonrpc": "2.0", "id": message["id"], "result": result})
                true(again.status_code in (202, 400), f"a second answer was given {again.status_code}")
            elif "method" not in message:
                text = message["result"]["content"][0]["text"]
                equal(text, " ".join(f"{each} <{each}>" for each in questions), "the text")


@check("bare", "an-ended-session-takes-its-tasks-along")
async def _(url: str) -> None:
    name = label()
    async with httpx.AsyncClient(timeout=10) as http:
        bare, other = Bare(http, url), Bare(http, url)
        await bare.open()
        await other.open()
        task_id = await bare.start("slow", {"seconds": 20, "label": name})
        await asyncio.sleep(0.4)
        ended = await http.request("DELETE", url, headers=bare.headers)
        true(ended.status_code in (200, 204), f"DELETE was answered {ended.status_code}")
        answer = await bare.send(bare.request("tasks/get", {"taskId": task_id}))
        equal(answer.status_code, 404, "the status of tasks/get in the ended session")
        equal((await other.call("tasks/get", {"taskId": task_id}))["error"]["code"], -32602, "another session's look")


@check("bare", "one-question-on-one-of-two-streams")
async def _(url: str) -> None:
    question = f"Which, {label()}?"
    async with httpx.AsyncClient(timeout=10) as http:
        bare = Bare(http, url)
        await bare.open()
        task_id = await bare.start("ask", {"question": question, "delay": 0.4})
        asked: list[int] = []

        async def wait(place: int) -> str:
            async for message in bare.messages("tasks/result", {"taskId": task_id}):
                if message.get("method") == "elicitation/create":
                    asked.append(place)
                    await bare.answer(message, "seven", task_id)
                elif "method" not in message:
                    return message["result"]["content"][0]["text"]
            raise AssertionError("no result")

        texts = await asyncio.gather(wait(0), wait(1))
        equal(texts, [f"{question} seven"] * 2, "the texts")
        equal(len(asked), 1, "the streams it was asked on")


@check("bare", "what-is-no-wish-is-refused")
async def _(url: str) -> None:
    async with httpx.AsyncClient(timeout=10) as http:
        bare = Bare(http, url)
        await bare.open()
        for task in ({"ttl": "long"}, {"ttl": -1}, [], "yes"):
            answer = await bare.call("tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}, "task": task})
            equal(answer.get("error", {}).get("code"), -32602, f"the code for {task!r}")
        # Members nobody knows are for somebody else.
        call = {"name": "add", "arguments": {"a": 1, "b": 2}, "task": {"ttl": TTL_MS, "priority": 3}}
        equal((await bare.call("tools/call", call))["result"]["task"]["status"], "working", "the status")
        for method in ("tasks/get", "tasks/result", "tasks/cancel"):
            for params in ({}, {"taskId": 7}, {"taskId": ""}):
                answer = await bare.call(method, params)
                equal(answer.get("error", {}).get("code"), -32602, f"the code for {method} of {params}")


@check("bare", "the-other-era-sees-nothing")
async def _(url: str) -> None:
    modern = "2026-07-28"
    meta = {
        "io.modelcontextprotocol/protocolVersion": modern,
        "io.modelcontextprotocol/clientInfo": {"name": "bare", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}},
    }
    async with httpx.AsyncClient(timeout=10) as http:
        bare = Bare(http, url)
        await bare.open()

        async def newer(method: str, name: str, params: dict[str, Any]) -> dict[str, Any]:
            headers = {"mcp-protocol-version": modern, "mcp-method": method, "mcp-name": name}
            headers["accept"] = "application/json, text/event-stream"
            body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
            return (await http.post(url, json=body, headers=headers)).json()

        older = await bare.start("slow", {"seconds": 2})
        young = (await newer("tools/call", "slow", {"name": "slow", "arguments": {"seconds": 2}}))["result"]["taskId"]
        for method in ("tasks/get", "tasks/cancel"):
            nobody = await newer(method, "no-such-task", {"taskId": "no-such-task"})
            seen = await newer(method, older, {"taskId": older})
            equal(seen["error"]["code"], nobody["error"]["code"], f"{method} of a task of the older era")
        for method in ("tasks/get", "tasks/result", "tasks/cancel"):
            answer = await bare.call(method, {"taskId": young})
            equal(answer.get("error", {}).get("code"), -32602, f"{method} of a task of the newer era")
        listed = [task["taskId"] for task in (await bare.call("tasks/list", {}))["result"]["tasks"]]
        equal(listed, [older], "tasks/list")
        equal(await bare.status(older), "working", "the older task")
        alive = await newer("tasks/get", young, {"taskId": young})
        equal(alive["result"]["status"], "working", "the newer task")


# --- a server's own tasks ------------------------------------------------------------------------


@check("own-tasks", "call-get-result-list-cancel")
async def _(url: str) -> None:
    name = label()
    async with client(url) as session, client(url) as stranger:
        support = {tool.name: tool.execution and tool.execution.taskSupport for tool in (await session.list_tools()).tools}
        equal({each for each, value in support.items() if value}, {"ask", "big", "slow"}, "the tools with tasks")
        task = await start(session, "slow", {"seconds": 1.2, "label": name})
        await finish(session, task)
        result = await result_of(session, task)
        equal(text_of(result), f"slow {name} is done", "the text")
        is_related(result.meta, task, "the result")
        equal({each.taskId for each in await listed(session)}, {task.taskId}, "the list")
        equal(await listed(stranger), [], "what a stranger is shown")
        equal((await failure(stranger.experimental.get_task(task.taskId))).code, -32602, "a stranger's tasks/get")
        gone = await start(session, "slow", {"seconds": 5})
        equal((await session.experimental.cancel_task(gone.taskId)).status, "cancelled", "the status")
        large = await start(session, "big", {"kib": 512, "seconds": 0.3})
        await finish(session, large)
        true(text_of(await result_of(session, large)) == BLOCK * 512, "the text differs")


# --- one session, word for word ------------------------------------------------------------------


@check("session", "scripted")
async def _(url: str) -> None:
    """Everything once, one after the other, with the same words each time."""
    callbacks = {"sampling_callback": model, "list_roots_callback": roots}
    if revision >= "2025-06-18":
        callbacks["elicitation_callback"] = echo

    async def ignore(*_: Any) -> None:
        pass

    async with client(url, **callbacks) as session:
        await asyncio.sleep(0.5)  # for the GET stream to be open before anything is said on it
        await session.send_ping()
        with suppress(McpError):  # one of the two servers does not offer it
            await session.set_logging_level("info")
        await session.list_tools()
        await session.list_prompts()
        await session.list_resources()
        await session.list_resource_templates()
        await session.read_resource(AnyUrl("interop://note/alpha"))
        await session.get_prompt("review", {"subject": "the plan"})
        await failure(session.read_resource(AnyUrl("interop://nowhere")))
        await failure(session.get_prompt("no-such-prompt"))
        await session.call_tool("add", {"a": 2**53 - 2, "b": 1})
        params = types.CallToolRequestParams(name="slow", arguments={"seconds": 0.6, "label": "é ☃"})
        request = types.ClientRequest(types.CallToolRequest(method="tools/call", params=params))
        await session.send_request(request, types.CallToolResult, progress_callback=ignore)
        await session.call_tool("slow", {"seconds": 0.4, "label": "failing", "fail": True})
        await session.call_tool("broken", {"seconds": 0.2, "label": "it"})
        await failure(session.call_tool("rpc_error", {"seconds": 0.2}))
        with suppress(McpError):
            await session.call_tool("no-such-tool", {})
        await session.call_tool("big", {"kib": 300, "seconds": 0.1})
        await session.call_tool("touch")
        if revision >= "2025-06-18":
            await session.call_tool("ask", {"question": "Which?", "delay": 0.2})
            await session.call_tool("dialogue", {"questions": ["One?", "Two?"], "delay": 0.1})
            await session.call_tool("aside", {"question": "Aside?"})
        if any(tool.name == "parting" for tool in (await session.list_tools()).tools) and revision >= "2025-11-25":
            await session.call_tool("parting", {"seconds": 0.5})
        request_id = session._request_id
        call = asyncio.create_task(session.call_tool("slow", {"seconds": 20, "label": "cancelled"}))
        await asyncio.sleep(0.5)
        await cancel(session, request_id)
        await asyncio.sleep(0.3)
        call.cancel()
        with suppress(asyncio.CancelledError, McpError):
            await call
        await session.call_tool("add", {"a": 1, "b": 1})


# --- running -------------------------------------------------------------------------------------


def reason(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, AssertionError):
        return str(error)
    return f"{type(error).__name__}: {error}"


async def main() -> int:
    global revision
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--revision", required=True)
    parser.add_argument("--groups", default="plain")
    parser.add_argument("--only", default="*", help="run only the checks whose name matches")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    revision = options.revision

    groups = options.groups.split(",")
    chosen = [
        (f"{group}/{name}", function)
        for group, name, function in CHECKS
        if group in groups and fnmatch.fnmatch(f"{group}/{name}", options.only)
    ]
    failed = 0
    for name, function in chosen:
        limit = asyncio.timeout(CHECK_SECONDS)
        try:
            async with limit:
                await function(options.url)
        except Exception as error:
            why = f"took longer than {CHECK_SECONDS:.0f} s" if limit.expired() else reason(error)
        else:
            print(f"ok {name}", flush=True)
            continue
        failed += 1
        print(f"FAIL {name}: {' '.join(why.split())}", flush=True)
    print(f"done {len(chosen)}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
