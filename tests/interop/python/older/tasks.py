"""Tasks of 2025-11-25, by the letter of its page (Basic, Utilities, Tasks)."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Any
from uuid import uuid4

from mcp import types
from mcp.shared.exceptions import McpError

from harness import (
    BLOCK,
    DAY_MS,
    MINUTE_MS,
    RELATED,
    TERMINAL,
    TTL_MS,
    cancel,
    cancelled_labels,
    check,
    client,
    equal,
    failure,
    finish,
    is_database_error,
    is_related,
    is_task,
    label,
    listed,
    result_of,
    start,
    text_of,
    true,
    wait_cancelled,
)


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
        # One that is granted, one too short to come back in, which is raised, and one above the default limit.
        for wish, want in ((30 * MINUTE_MS, 30 * MINUTE_MS), (1000, MINUTE_MS), (7 * DAY_MS, DAY_MS)):
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


@check("tasks", "another-session-finds-a-task-by-its-id")
async def _(url: str) -> None:
    names = [label(), label()]
    async with client(url) as owner, client(url) as other:
        task = await start(owner, "slow", {"seconds": 1.5, "label": names[0]})
        gone = await start(owner, "slow", {"seconds": 20, "label": names[1]})
        equal((await other.experimental.get_task(task.taskId)).status, "working", "the status")
        equal((await other.experimental.cancel_task(gone.taskId)).status, "cancelled", "the status of the other")
        equal(await listed(other), [], "what is listed for another session")
        equal(text_of(await result_of(other, task)), f"slow {names[0]} is done", "the text")


@check("tasks", "another-principal-sees-nothing")
async def _(url: str) -> None:
    name = label()
    ada, bob = ({"authorization": f"Bearer {who}"} for who in ("ada", "bob"))
    async with client(url, ada) as owner, client(url, bob) as stranger:
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
        task = await start(session, "big", {"kib": 5120, "seconds": 1.0})
        await finish(session, task)
        true(text_of(await result_of(session, task)) == BLOCK * 5120, "the text differs")


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


# --- streams that end early -----------------------------------------------------------------------
@check("task-resuming", "a-task-whose-call-loses-its-stream")
async def _(url: str) -> None:
    async with client(url) as session:
        task = await start(session, "parting", {"seconds": 0.8})
        await finish(session, task)
        equal(text_of(await result_of(session, task)), "together again", "the text")


# --- tools that must be called as tasks -----------------------------------------------------------


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


# --- a server's own tasks -------------------------------------------------------------------------


@check("own-tasks", "call-get-result-list-cancel")
async def _(url: str) -> None:
    name = label()
    async with client(url) as session, client(url) as stranger:
        tools = (await session.list_tools()).tools
        optional = {tool.name for tool in tools if tool.execution and tool.execution.taskSupport == "optional"}
        equal(optional, {"ask", "big", "slow"}, "the tools with tasks")
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
