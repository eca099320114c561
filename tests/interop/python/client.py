"""The checks made with Python clients: the official SDK 2.x, and fastmcp with fastmcp-tasks.

    client.py URL [--groups core,tasks,fastmcp,questions,task-questions,extra] [--only PATTERN] [--revision REVISION]

URL is an MCP endpoint that speaks 2026-07-28 in front of python/server.py or typescript/server.mjs.
`core` without `modern` also holds against such a server itself, over the 2025-11-25 fall-back.
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
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Literal
from uuid import uuid4

import mcp_types as types
from mcp import Client, MCPError
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.client.subscriptions import ToolsListChanged
from pydantic import ConfigDict, Field

MODERN = "2026-07-28"
TASKS = "io.modelcontextprotocol/tasks"
CHECK_SECONDS = 60.0  # one may wait for processes to start, while others do on the same two cores
TERMINAL = ("completed", "failed", "cancelled")
BLOCK = "0123456789abcdef" * 64  # the KiB of which `big` is made
ASKING = {"ask", "dialogue", "survey", "aside"}
TOOLS = {"add", "slow", "broken", "rpc_error", "big", "cancelled", "touch"} | ASKING

revision = "2025-11-25"  # the newest with a handshake that the other side speaks; set by main

Check = Callable[[str], Awaitable[None]]
CHECKS: list[tuple[str, str, Check]] = []


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


def text_of(content: list[Any]) -> str:
    equal([block.type for block in content], ["text"], "the types of the content blocks")
    return content[0].text


# --- the tasks extension, as an application on the SDK would write it ----------------------------


class TaskFields(types.Result):
    model_config = ConfigDict(populate_by_name=True, extra="allow")

    task_id: str = Field(alias="taskId")
    status: Literal["working", "input_required", "completed", "failed", "cancelled"]
    created_at: str = Field(alias="createdAt")
    last_updated_at: str = Field(alias="lastUpdatedAt")
    ttl_ms: int | None = Field(alias="ttlMs")
    status_message: str | None = Field(default=None, alias="statusMessage")
    poll_interval_ms: int | None = Field(default=None, alias="pollIntervalMs")


class TaskHandle(TaskFields):
    result_type: Literal["task"] = Field(alias="resultType")


class DetailedTask(TaskFields):
    result_type: Literal["complete"] = Field(alias="resultType")
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    input_requests: dict[str, Any] | None = Field(default=None, alias="inputRequests")


class Acknowledged(types.Result):
    result_type: Literal["complete"] = Field(alias="resultType")


class TaskParams(types.RequestParams):
    task_id: str = Field(serialization_alias="taskId")


class UpdateParams(TaskParams):
    input_responses: dict[str, Any] = Field(serialization_alias="inputResponses")


class GetTask(types.Request[TaskParams, Literal["tasks/get"]]):
    method: Literal["tasks/get"] = "tasks/get"
    params: TaskParams
    name_param = "taskId"  # sent as Mcp-Name, as the extension asks


class UpdateTask(types.Request[UpdateParams, Literal["tasks/update"]]):
    method: Literal["tasks/update"] = "tasks/update"
    params: UpdateParams
    name_param = "taskId"


class CancelTask(types.Request[TaskParams, Literal["tasks/cancel"]]):
    method: Literal["tasks/cancel"] = "tasks/cancel"
    params: TaskParams
    name_param = "taskId"


class Tasks(ClientExtension):
    """Declares the extension, and finishes a call that became a task by polling it."""

    identifier = TASKS

    def __init__(self) -> None:
        self.handles = 0
        self.polls = 0

    def claims(self) -> list[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=TaskHandle, resolve=self.resolve)]

    async def resolve(self, handle: TaskHandle, context: ClaimContext) -> types.CallToolResult:
        self.handles += 1
        final, polls = await follow(context.session, handle)
        self.polls += polls
        equal(final.status, "completed", "the final status")
        return types.CallToolResult.model_validate(final.result)


async def get_task(session: Any, task_id: str) -> DetailedTask:
    return await session.send_request(GetTask(params=TaskParams(task_id=task_id)), DetailedTask)


async def cancel_task(session: Any, task_id: str) -> Acknowledged:
    return await session.send_request(CancelTask(params=TaskParams(task_id=task_id)), Acknowledged)


async def follow(session: Any, handle: TaskHandle) -> tuple[DetailedTask, int]:
    """Poll as the server asks until the task ends; also says how many polls it took."""
    polls = 0
    interval = handle.poll_interval_ms
    while True:
        await asyncio.sleep(min(max(interval if interval is not None else 1000, 20), 1000) / 1000)
        task = await get_task(session, handle.task_id)
        polls += 1
        equal(task.task_id, handle.task_id, "taskId")
        equal(task.created_at, handle.created_at, "createdAt")
        if task.status in TERMINAL:
            return task, polls
        interval = task.poll_interval_ms


def plain(url: str, **options: Any) -> Client:
    return Client(url, **options)


def with_tasks(url: str, **options: Any) -> Client:
    return Client(url, extensions=[Tasks()], **options)


async def start(client: Client, tool: str, arguments: dict[str, Any], **options: Any) -> TaskHandle:
    """Call a tool that takes longer than the threshold: the answer must be a handle, given while it works."""
    result = await client.session.call_tool(tool, arguments, allow_claimed=True, **options)
    true(isinstance(result, TaskHandle), f"{tool} was answered with {clip(result)}, not with a task")
    equal(result.result_type, "task", "resultType")
    equal(result.status, "working", "the status of the handle")
    true(len(result.task_id) >= 16, f"taskId {result.task_id!r} is too short to be hard to guess")
    true(result.ttl_ms is None or result.ttl_ms > 0, f"ttlMs is {result.ttl_ms}")
    return result


async def cancelled_labels(client: Client) -> list[str]:
    return json.loads(text_of((await client.call_tool("cancelled")).content))


async def wait_cancelled(client: Client, wanted: str) -> list[str]:
    """The labels the server saw cancelled, once `wanted` is among them."""
    deadline = time.monotonic() + 5
    while True:
        labels = await cancelled_labels(client)
        if wanted in labels:
            return labels
        if time.monotonic() > deadline:
            raise AssertionError(f"the server's work {wanted} was not cancelled within 5 s")
        await asyncio.sleep(0.1)


async def rpc_failure(call: Awaitable[Any]) -> MCPError:
    try:
        result = await call
    except MCPError as error:
        return error
    raise AssertionError(f"a result instead of a JSON-RPC error: {clip(result)}")


def is_database_error(code: Any, message: Any, data: Any) -> None:
    equal(code, -31001, "the code")
    true(str(message).endswith("the database is down"), f"the message is {message!r}")
    equal(data, {"retry": False}, "the data")


# --- connecting ----------------------------------------------------------------------------------


@check("modern", "auto-mode-negotiates-2026-07-28")
async def _(url: str) -> None:
    async with plain(url) as client:
        equal(client.protocol_version, MODERN, "the negotiated version")
        extensions = client.server_capabilities.extensions or {}
        equal(extensions.get(TASKS), {}, "the value of the tasks extension")
        true(client.server_capabilities.tools is not None, "no tools capability")
        true(client.server_capabilities.prompts is not None, "no prompts capability")
        true(client.server_capabilities.resources is not None, "no resources capability")
        equal(client.instructions, "Tools for the interop test.", "instructions")


@check("modern", "pinned-mode")
async def _(url: str) -> None:
    async with plain(url, mode=MODERN) as client:
        equal(text_of((await client.call_tool("add", {"a": 2, "b": 3})).content), "5", "the text")


@check("legacy", "legacy-mode")
async def _(url: str) -> None:
    async with plain(url, mode="legacy") as client:
        equal(client.protocol_version, revision, "the negotiated version")
        equal(text_of((await client.call_tool("add", {"a": 2, "b": 3})).content), "5", "the text")
        result = await client.call_tool("slow", {"seconds": 0.8, "label": "legacy"})
        equal(text_of(result.content), "slow legacy is done", "the text of a slow call")


# --- lists, resources, prompts -------------------------------------------------------------------


@check("core", "lists")
async def _(url: str) -> None:
    async with plain(url) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        equal(set(tools), TOOLS, "the tools")
        equal(tools["add"].description, "Add two numbers.", "a description")
        equal(sorted(tools["add"].input_schema["required"]), ["a", "b"], "the required arguments of add")
        equal(tools["add"].output_schema["properties"]["result"]["type"], "integer", "the output of add")
        prompts = (await client.list_prompts()).prompts
        equal([prompt.name for prompt in prompts], ["review"], "the prompts")
        resources = (await client.list_resources()).resources
        equal([str(resource.uri) for resource in resources], ["interop://greeting"], "the resources")
        templates = (await client.list_resource_templates()).resource_templates
        equal([template.uri_template for template in templates], ["interop://note/{name}"], "the templates")


@check("core", "read-resource")
async def _(url: str) -> None:
    async with plain(url) as client:
        for uri, want in [
            ("interop://greeting", "Hello from a resource."),
            ("interop://note/alpha", "The note alpha."),
        ]:
            contents = (await client.read_resource(uri)).contents
            equal([(str(item.uri), item.text) for item in contents], [(uri, want)], "the contents")


@check("core", "get-prompt")
async def _(url: str) -> None:
    async with plain(url) as client:
        messages = (await client.get_prompt("review", {"subject": "the plan"})).messages
        equal([message.role for message in messages], ["user"], "the roles")
        equal(messages[0].content.text, "Please review the plan.", "the text")


# --- calls without the extension -----------------------------------------------------------------


@check("core", "fast-call")
async def _(url: str) -> None:
    async with plain(url) as client:
        result = await client.call_tool("add", {"a": 2**53 - 2, "b": 1})
        equal(text_of(result.content), "9007199254740991", "the text")
        equal(result.structured_content, {"result": 9007199254740991}, "the structured content")
        equal(bool(result.is_error), False, "isError")


@check("core", "slow-call-is-held")
async def _(url: str) -> None:
    name = label()
    async with plain(url) as client:
        began = time.monotonic()
        result = await client.call_tool("slow", {"seconds": 1.0, "label": name})
        seconds = time.monotonic() - began
        equal(text_of(result.content), f"slow {name} is done", "the text")
        equal(result.structured_content, {"result": f"slow {name} is done"}, "the structured content")
        true(seconds >= 0.9, f"answered after {seconds:.2f} s, before the work of 1 s was done")


@check("core", "held-calls-do-not-mix")
async def _(url: str) -> None:
    async with plain(url) as client:
        names = [label() for _ in range(8)]
        results = await asyncio.gather(
            *(
                client.call_tool("slow", {"seconds": 1.2 - 0.1 * place, "label": name})
                for place, name in enumerate(names)
            )
        )
        equal([text_of(result.content) for result in results], [f"slow {name} is done" for name in names], "texts")


@check("core", "progress-of-a-held-call")
async def _(url: str) -> None:
    name = label()
    seen: list[tuple[float, float | None, str | None]] = []

    async def progress(value: float, total: float | None, message: str | None) -> None:
        seen.append((value, total, message))

    async with plain(url) as client:
        result = await client.call_tool("slow", {"seconds": 1.0, "label": name}, progress_callback=progress)
        equal(text_of(result.content), f"slow {name} is done", "the text")
    # The last one may be dispatched after the result; the others may not be missing.
    want = [(float(step), 5.0, f"{name} {step}/5") for step in range(1, 6)]
    true(len(seen) >= 4 and seen == want[: len(seen)], f"progress: got {clip(seen)}")


@check("modern", "log-messages-only-when-asked")
async def _(url: str) -> None:
    for level, want in [(None, 0), ("error", 0), ("info", 1)]:
        name = label()
        seen: list[Any] = []

        async def log(params: Any) -> None:
            seen.append(params.data)

        async with plain(url, logging_callback=log, log_level=level) as client:
            await client.call_tool("slow", {"seconds": 0.7, "label": name})
            await asyncio.sleep(0.1)
        equal(seen, [f"slow {name} started"] * want, f"log messages at level {level}")


@check("core", "tool-error-of-a-held-call")
async def _(url: str) -> None:
    async with plain(url) as client:
        for seconds in (0, 0.7):
            name = label()
            result = await client.call_tool("broken", {"seconds": seconds, "label": name})
            equal(result.is_error, True, "isError")
            true(text_of(result.content).endswith(f"{name} is broken"), f"the text is {text_of(result.content)!r}")


@check("core", "json-rpc-error-of-a-held-call")
async def _(url: str) -> None:
    async with plain(url) as client:
        for seconds in (0, 0.7):
            error = await rpc_failure(client.call_tool("rpc_error", {"seconds": seconds}))
            is_database_error(error.error.code, error.error.message, error.error.data)


@check("core", "closing-a-held-call-cancels-the-work")
async def _(url: str) -> None:
    gone, kept = label(), label()
    async with plain(url) as client:
        other = asyncio.create_task(client.call_tool("slow", {"seconds": 2.0, "label": kept}))
        call = asyncio.create_task(client.call_tool("slow", {"seconds": 20, "label": gone}))
        await asyncio.sleep(0.8)
        true(not call.done(), "the call ended before it was given up")
        call.cancel()
        with suppress(asyncio.CancelledError):
            await call
        labels = await wait_cancelled(client, gone)
        true(kept not in labels, "another call was cancelled too")
        equal(text_of((await other).content), f"slow {kept} is done", "the other call")


@check("core", "large-result")
async def _(url: str) -> None:
    # Over HTTP the SDK's client takes no event of more than 1 MiB, so this must come as plain JSON;
    # the SDK's own servers send events, which is why the size is smaller without a proxy.
    async with plain(url) as client:
        kib = 5120 if client.protocol_version == MODERN else 512
        true(text_of((await client.call_tool("big", {"kib": kib})).content) == BLOCK * kib, "the text differs")


@check("core", "large-result-of-a-held-call")
async def _(url: str) -> None:
    async with plain(url) as client:
        result = await client.call_tool("big", {"kib": 512, "seconds": 0.8})
        true(text_of(result.content) == BLOCK * 512, "the text differs")


@check("extra", "very-large-result-of-a-held-call")
async def _(url: str) -> None:
    # Works when a held call is answered as plain JSON as long as nothing had to be sent before.
    async with plain(url) as client:
        result = await client.call_tool("big", {"kib": 2048, "seconds": 0.8})
        true(text_of(result.content) == BLOCK * 2048, "the text differs")


# --- subscriptions -------------------------------------------------------------------------------


@check("modern", "listen-opens-and-closes")
async def _(url: str) -> None:
    async with plain(url) as client:
        async with client.listen(tools_list_changed=True) as subscription:
            equal(subscription.honored.prompts_list_changed or False, False, "a filter that was not asked for")
            equal(text_of((await client.call_tool("add", {"a": 1, "b": 1})).content), "2", "a call beside it")
            began = time.monotonic()
        true(time.monotonic() - began < 2, "closing took 2 s")
        equal(text_of((await client.call_tool("add", {"a": 1, "b": 2})).content), "3", "a call after it")
        async with client.listen(tools_list_changed=True):
            pass


@check("extra", "listen-hears-list-changed")
async def _(url: str) -> None:
    async with plain(url) as client:
        tools = client.server_capabilities.tools
        async with client.listen(tools_list_changed=True) as subscription:
            if not (tools and tools.list_changed):
                equal(subscription.honored.tools_list_changed or False, False, "what the server does not offer")
                return
            equal(subscription.honored.tools_list_changed, True, "the honoured filter")
            equal(text_of((await client.call_tool("touch")).content), "touched", "the text")
            event = await asyncio.wait_for(anext(subscription), 5)
            true(isinstance(event, ToolsListChanged), f"the event is {event!r}")


# --- tasks, with the SDK's client ----------------------------------------------------------------


@check("tasks", "fast-call-is-no-task")
async def _(url: str) -> None:
    async with with_tasks(url) as client:
        for _ in range(3):  # on a machine busy enough, even this may reach the threshold
            result = await client.session.call_tool("add", {"a": 2, "b": 3}, allow_claimed=True)
            if isinstance(result, types.CallToolResult):
                break
        true(isinstance(result, types.CallToolResult), f"add was answered with {clip(result)}")
        equal(text_of(result.content), "5", "the text")


@check("tasks", "slow-call-becomes-a-task")
async def _(url: str) -> None:
    name = label()
    async with with_tasks(url) as client:
        handle = await start(client, "slow", {"seconds": 2.5, "label": name})
        at_once = await get_task(client.session, handle.task_id)
        equal(at_once.status, "working", "the status at once")
        equal((at_once.result, at_once.error), (None, None), "the result and the error of a working task")
        final, polls = await follow(client.session, handle)
        true(polls >= 2, f"only {polls} poll")
        equal(final.status, "completed", "the final status")
        equal(final.error, None, "the error of a completed task")
        # ext-tasks takes no inlined result without it.
        equal(final.result.get("resultType"), "complete", "resultType of the inlined result")
        result = types.CallToolResult.model_validate(final.result)
        equal(text_of(result.content), f"slow {name} is done", "the text")
        equal(result.structured_content, {"result": f"slow {name} is done"}, "the structured content")
        again = await get_task(client.session, handle.task_id)
        equal((again.status, again.result), ("completed", final.result), "a later answer")


@check("tasks", "call-tool-follows-its-task")
async def _(url: str) -> None:
    name = label()
    extension = Tasks()
    async with Client(url, extensions=[extension]) as client:
        await client.list_tools()  # the SDK validates the final result against the output schema
        result = await client.call_tool("slow", {"seconds": 2.5, "label": name})
        equal(text_of(result.content), f"slow {name} is done", "the text")
    equal(extension.handles, 1, "handles")
    true(extension.polls >= 2, f"only {extension.polls} poll")


@check("tasks", "tasks-do-not-mix")
async def _(url: str) -> None:
    async with with_tasks(url) as client:
        names = [label() for _ in range(8)]
        handles = await asyncio.gather(
            *(
                start(client, "slow", {"seconds": 2.0 - 0.1 * place, "label": name})
                for place, name in enumerate(names)
            )
        )
        equal(len({handle.task_id for handle in handles}), 8, "different task ids")
        finals = await asyncio.gather(*(follow(client.session, handle) for handle in handles))
        texts = [final.result["content"][0]["text"] for final, _ in finals]
        equal(texts, [f"slow {name} is done" for name in names], "the texts")


@check("tasks", "task-from-another-connection")
async def _(url: str) -> None:
    name = label()
    async with with_tasks(url) as client:
        handle = await start(client, "slow", {"seconds": 2.0, "label": name})
    async with with_tasks(url) as client:
        final, _ = await follow(client.session, handle)
        equal(final.result["content"][0]["text"], f"slow {name} is done", "the text")


@check("tasks", "task-with-a-progress-token")
async def _(url: str) -> None:
    name = label()
    seen: list[float] = []

    async def progress(value: float, total: float | None, message: str | None) -> None:
        seen.append(value)

    async with with_tasks(url) as client:
        handle = await start(client, "slow", {"seconds": 2.0, "label": name}, progress_callback=progress)
        final, _ = await follow(client.session, handle)
        equal(final.result["content"][0]["text"], f"slow {name} is done", "the text")
    equal(seen, sorted(set(seen)), "progress before the handle")


@check("tasks", "tool-error-in-a-task")
async def _(url: str) -> None:
    name = label()
    async with with_tasks(url) as client:
        handle = await start(client, "broken", {"seconds": 1.0, "label": name})
        final, _ = await follow(client.session, handle)
        equal(final.status, "completed", "the final status: a tool's error is a result")
        equal(final.result.get("isError"), True, "isError")
        text = final.result["content"][0]["text"]
        true(text.endswith(f"{name} is broken"), f"the text is {text!r}")


@check("tasks", "json-rpc-error-in-a-task")
async def _(url: str) -> None:
    async with with_tasks(url) as client:
        handle = await start(client, "rpc_error", {"seconds": 1.0})
        final, _ = await follow(client.session, handle)
        equal(final.status, "failed", "the final status")
        equal(final.result, None, "the result of a failed task")
        is_database_error(final.error.get("code"), final.error.get("message"), final.error.get("data"))


@check("tasks", "cancel-reaches-the-server")
async def _(url: str) -> None:
    gone, kept = label(), label()
    async with with_tasks(url) as client:
        one = await start(client, "slow", {"seconds": 20, "label": gone})
        other = await start(client, "slow", {"seconds": 2.5, "label": kept})
        true(gone not in await cancelled_labels(client), "cancelled before anybody asked")
        await cancel_task(client.session, one.task_id)
        labels = await wait_cancelled(client, gone)
        true(kept not in labels, "another task's work was cancelled too")
        final, _ = await follow(client.session, one)
        equal(final.status, "cancelled", "the final status")
        equal((final.result, final.error), (None, None), "the result and the error of a cancelled task")
        final, _ = await follow(client.session, other)
        equal(final.result["content"][0]["text"], f"slow {kept} is done", "the other task")


@check("tasks", "cancel-of-a-finished-task-changes-nothing")
async def _(url: str) -> None:
    name = label()
    async with with_tasks(url) as client:
        handle = await start(client, "slow", {"seconds": 1.0, "label": name})
        final, _ = await follow(client.session, handle)
        with suppress(MCPError):  # an acknowledgement or an error: both are allowed
            await cancel_task(client.session, handle.task_id)
        again = await get_task(client.session, handle.task_id)
        equal((again.status, again.result), ("completed", final.result), "the task after it")


@check("tasks", "large-result-of-a-task")
async def _(url: str) -> None:
    async with with_tasks(url) as client:
        handle = await start(client, "big", {"kib": 5120, "seconds": 1.0})
        final, _ = await follow(client.session, handle)
        true(final.result["content"][0]["text"] == BLOCK * 5120, "the text differs")


@check("tasks", "unknown-task")
async def _(url: str) -> None:
    async with with_tasks(url) as client:
        error = await rpc_failure(get_task(client.session, "no-such-task-" + uuid4().hex))
        equal(error.error.code, -32602, "the code")


@check("tasks", "task-methods-need-the-extension")
async def _(url: str) -> None:
    async with with_tasks(url) as client:
        handle = await start(client, "slow", {"seconds": 2.0})
    async with plain(url) as client:
        for call in (get_task, cancel_task):
            error = await rpc_failure(call(client.session, handle.task_id))
            equal(error.error.code, -32021, "the code")
            want = {"requiredCapabilities": {"extensions": {TASKS: {}}}}
            equal(error.error.data, want, "the data")


# --- tasks, with fastmcp-tasks: no Mcp-Name on tasks/*, and first polls faster than the hint -------


@check("fastmcp", "call-tool-follows-its-task")
async def _(url: str) -> None:
    import fastmcp
    import fastmcp_tasks  # noqa: F401  (importing it declares the extension on each call)

    name = label()
    async with fastmcp.Client(url) as client:
        result = await client.call_tool("slow", {"seconds": 1.5, "label": name})
        equal(text_of(result.content), f"slow {name} is done", "the text")
        equal(result.structured_content, {"result": f"slow {name} is done"}, "the structured content")


@check("fastmcp", "handle")
async def _(url: str) -> None:
    import fastmcp
    from fastmcp_tasks import call_tool_task

    name = label()
    async with fastmcp.Client(url) as client:
        task = await call_tool_task(client, "slow", {"seconds": 1.5, "label": name})
        equal(task.create_result.result_type, "task", "resultType")
        equal((await task.status()).status, "working", "the status at once")
        equal((await task.wait(timeout=10)).status, "completed", "the status after waiting")
        equal(text_of((await task.result()).content), f"slow {name} is done", "the text")


@check("fastmcp", "errors")
async def _(url: str) -> None:
    import fastmcp
    from fastmcp.exceptions import ToolError
    from fastmcp_tasks import call_tool_task

    name = label()
    async with fastmcp.Client(url) as client:
        for tool, arguments, want in [
            ("broken", {"seconds": 1.0, "label": name}, f"{name} is broken"),
            ("rpc_error", {"seconds": 1.0}, "the database is down"),
        ]:
            task = await call_tool_task(client, tool, arguments)
            try:
                result = await task.result()
            except ToolError as error:
                true(str(error).endswith(want), f"the message of {tool} is {str(error)!r}")
            else:
                raise AssertionError(f"{tool} gave {clip(result)}")


@check("fastmcp", "cancel-reaches-the-server")
async def _(url: str) -> None:
    import fastmcp
    from fastmcp_tasks import call_tool_task

    name = label()
    async with fastmcp.Client(url) as client, plain(url) as reader:
        task = await call_tool_task(client, "slow", {"seconds": 20, "label": name})
        await task.cancel()
        equal((await task.wait(timeout=5)).status, "cancelled", "the status")
        await wait_cancelled(reader, name)


# --- questions the server asks while it works ----------------------------------------------------


def answering(reply: types.ElicitResult, asked: list[str]) -> Callable[..., Awaitable[types.ElicitResult]]:
    async def callback(context: Any, params: Any) -> types.ElicitResult:
        asked.append(params.message)
        return reply

    return callback


ACCEPT = types.ElicitResult(action="accept", content={"answer": "forty-two"})
DECLINE = types.ElicitResult(action="decline")


@check("questions", "question-of-a-held-call")
async def _(url: str) -> None:
    for delay in (0, 0.8):
        for reply, want in [(ACCEPT, "forty-two"), (DECLINE, "decline")]:
            question = f"Which, {label()}?"
            asked: list[str] = []
            async with plain(url, elicitation_callback=answering(reply, asked)) as client:
                result = await client.call_tool("ask", {"question": question, "delay": delay})
                equal(text_of(result.content), f"{question} {want}", "the text")
            equal(asked, [question], "the questions seen")


@check("questions", "questions-do-not-mix")
async def _(url: str) -> None:
    async def callback(context: Any, params: Any) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content={"answer": f"<{params.message}>"})

    async with plain(url, elicitation_callback=callback) as client:
        questions = [f"Which, {label()}?" for _ in range(4)]
        results = await asyncio.gather(
            *(client.call_tool("ask", {"question": question, "delay": 0.2}) for question in questions)
        )
        texts = [text_of(result.content) for result in results]
        equal(texts, [f"{question} <{question}>" for question in questions], "the texts")


async def echo(context: Any, params: Any) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content={"answer": f"<{params.message}>"})


async def model(context: Any, params: types.CreateMessageRequestParams) -> types.CreateMessageResult:
    said = params.messages[0].content
    blocks = said if isinstance(said, list) else [said]
    content = types.TextContent(type="text", text=f"<{text_of(blocks)}>")
    return types.CreateMessageResult(role="assistant", content=content, model="parrot")


async def roots(context: Any) -> types.ListRootsResult:
    return types.ListRootsResult(roots=[types.Root(uri="file:///home/ada")])


# What a client that can be asked everything is made with, and what `survey` makes of its answers.
EVERYTHING = {"elicitation_callback": echo, "sampling_callback": model, "list_roots_callback": roots}


def surveyed(topic: str) -> str:
    return f"{topic} <{topic}, user?> <{topic}, model?> file:///home/ada"


@check("questions", "questions-of-every-kind-at-once")
async def _(url: str) -> None:
    async with plain(url, **EVERYTHING) as client:
        for delay in (0, 0.8):
            topic = label()
            result = await client.call_tool("survey", {"topic": topic, "delay": delay})
            equal(text_of(result.content), surveyed(topic), "the text")


@check("questions", "one-question-after-another")
async def _(url: str) -> None:
    async with plain(url, elicitation_callback=echo) as client:
        questions = [f"Which, {label()}?" for _ in range(5)]
        result = await client.call_tool("dialogue", {"questions": questions, "delay": 0.1})
        equal(text_of(result.content), " ".join(f"{each} <{each}>" for each in questions), "the text")


@check("questions", "questions-on-the-stream-of-the-session")
async def _(url: str) -> None:
    async with plain(url, elicitation_callback=echo) as client:
        questions = [f"Which, {label()}?" for _ in range(6)]
        # The first tells a proxy, which takes the server for one that asks on its calls' own streams,
        # that such questions need a session for each call.
        first = await client.call_tool("aside", {"question": "First?"})
        equal(text_of(first.content), "First? <First?>", "the text")
        results = await asyncio.gather(
            *(
                client.call_tool("aside", {"question": question, "delay": 0.2 * (place % 3)})
                for place, question in enumerate(questions)
            )
        )
        texts = [text_of(result.content) for result in results]
        equal(texts, [f"{question} <{question}>" for question in questions], "the texts")


@check("task-questions", "a-call-that-asked-becomes-a-task")
async def _(url: str) -> None:
    for reply, want in [(ACCEPT, "forty-two"), (DECLINE, "decline")]:
        question = f"Which, {label()}?"
        asked: list[str] = []
        extension = Tasks()
        async with Client(url, extensions=[extension], elicitation_callback=answering(reply, asked)) as client:
            result = await client.call_tool("ask", {"question": question, "rest": 1.5})
            equal(text_of(result.content), f"{question} {want}", "the text")
        equal(asked, [question], "the questions seen")
        equal(extension.handles, 1, "handles")


@check("task-questions", "questions-before-and-in-a-task-do-not-mix")
async def _(url: str) -> None:
    async def one(place: int) -> None:
        """A question quick enough to be put on the call; those that follow are asked in its task."""
        questions = [f"Which, {label()}?" for _ in range(3)]
        delay = (0.1, 0.6)[place % 2]
        async with with_tasks(url, elicitation_callback=echo) as client:
            result = await client.session.call_tool(
                "dialogue", {"questions": questions, "delay": delay}, allow_claimed=True, allow_input_required=True
            )
            while isinstance(result, types.InputRequiredResult):
                responses = {key: answer_to(request.params) for key, request in result.input_requests.items()}
                result = await client.session.call_tool(
                    "dialogue",
                    {"questions": questions, "delay": delay},
                    input_responses=responses,
                    request_state=result.request_state,
                    allow_claimed=True,
                    allow_input_required=True,
                )
            if isinstance(result, TaskHandle):
                result = types.CallToolResult.model_validate((await answer_in(client, result)).result)
            equal(text_of(result.content), " ".join(f"{each} <{each}>" for each in questions), "the text")

    await asyncio.gather(*(one(place) for place in range(8)))


def answer_to(params: Any) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content={"answer": f"<{params.message}>"})


async def answer_in(client: Client, handle: TaskHandle) -> DetailedTask:
    """Follow a task to its end, answering each of its questions once."""
    answered: set[str] = set()
    deadline = time.monotonic() + 50  # each task may have a process of its own that is still to be started
    while True:
        true(time.monotonic() < deadline, "the task never ended")
        task = await get_task(client.session, handle.task_id)
        if task.status in TERMINAL:
            return task
        for key, request in (task.input_requests or {}).items():
            true(key not in answered, f"{key} was asked again")
            answered.add(key)
            responses = {key: fitting(request)}
            params = UpdateParams(task_id=handle.task_id, input_responses=responses)
            await client.session.send_request(UpdateTask(params=params), Acknowledged)
        await asyncio.sleep(0.05)


def fitting(request: dict[str, Any]) -> dict[str, Any]:
    match request["method"]:
        case "elicitation/create":
            return {"action": "accept", "content": {"answer": f"<{request['params']['message']}>"}}
        case "sampling/createMessage":
            said = request["params"]["messages"][0]["content"]["text"]
            return {"role": "assistant", "model": "parrot", "content": {"type": "text", "text": f"<{said}>"}}
        case "roots/list":
            return {"roots": [{"uri": "file:///home/ada"}]}
        case method:
            raise AssertionError(f"{method} is no question")


@check("task-questions", "questions-of-every-kind-in-a-task")
async def _(url: str) -> None:
    topic = label()
    async with with_tasks(url, **EVERYTHING) as client:
        handle = await start(client, "survey", {"topic": topic, "delay": 1.0})
        task = await answer_in(client, handle)
        equal(task.status, "completed", "the status")
        equal(task.result["content"][0]["text"], surveyed(topic), "the text")


@check("task-questions", "questions-on-the-stream-of-the-session-in-tasks")
async def _(url: str) -> None:
    async with with_tasks(url, elicitation_callback=echo) as client:
        questions = [f"Which, {label()}?" for _ in range(6)]
        handles = await asyncio.gather(
            *(start(client, "aside", {"question": question, "delay": 1.0}) for question in questions)
        )
        tasks = await asyncio.gather(*(answer_in(client, handle) for handle in handles))
        texts = [task.result["content"][0]["text"] for task in tasks]
        equal(texts, [f"{question} <{question}>" for question in questions], "the texts")


@check("task-questions", "question-in-a-task")
async def _(url: str) -> None:
    question = f"Which, {label()}?"
    async with with_tasks(url, elicitation_callback=answering(ACCEPT, [])) as client:
        handle = await start(client, "ask", {"question": question, "delay": 1.0})
        deadline = time.monotonic() + 8
        while (task := await get_task(client.session, handle.task_id)).status == "working":
            true(time.monotonic() < deadline, "the task never asked")
            await asyncio.sleep(0.1)
        equal(task.status, "input_required", "the status")
        equal(len(task.input_requests), 1, "the number of questions")
        [(key, request)] = task.input_requests.items()
        equal(request["method"], "elicitation/create", "the method")
        equal(request["params"]["message"], question, "the question")
        responses = {key: {"action": "accept", "content": {"answer": "seven"}}}
        params = UpdateParams(task_id=handle.task_id, input_responses=responses)
        await client.session.send_request(UpdateTask(params=params), Acknowledged)
        final, _ = await follow(client.session, handle)
        equal(final.status, "completed", "the final status")
        equal(final.result["content"][0]["text"], f"{question} seven", "the text")


@check("task-questions", "fastmcp-answers-in-a-task")
async def _(url: str) -> None:
    import fastmcp
    import fastmcp_tasks  # noqa: F401

    question = f"Which, {label()}?"

    async def handler(message: str, response_type: Any, params: Any, context: Any) -> dict[str, Any]:
        return {"answer": f"<{message}>"}

    async with fastmcp.Client(url, elicitation_handler=handler) as client:
        result = await client.call_tool("ask", {"question": question, "delay": 1.0})
        equal(text_of(result.content), f"{question} <{question}>", "the text")


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
    parser.add_argument("--groups", default="modern,core,tasks,fastmcp")
    parser.add_argument("--only", default="*", help="run only the checks whose name matches one of these")
    parser.add_argument("--revision", default=revision)
    options = parser.parse_args()
    revision = options.revision
    logging.disable(logging.CRITICAL)

    groups = options.groups.split(",")
    chosen = [
        (f"{group}/{name}", function)
        for group, name, function in CHECKS
        if group in groups and any(fnmatch.fnmatch(f"{group}/{name}", each) for each in options.only.split(","))
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
