"""Tasks as FastMCP 2.14 takes them: it sends `params.task`, and reads its answer by a draft of SEP-1686."""

from __future__ import annotations

import asyncio
from typing import Any

from harness import cancelled_labels, check, client, equal, label, true, wait_cancelled


def connected(url: str, **more: Any) -> Any:
    from fastmcp import Client

    return Client(url, **more)


@check("fastmcp2", "a-task-is-followed-to-its-result")
async def _(url: str) -> None:
    name = label()
    async with connected(url) as there:
        task = await there.call_tool("slow", {"seconds": 1.0, "label": name}, task=True)
        true(not task.returned_immediately, "it is no task")
        equal((await task.status()).status, "working", "the status")
        equal((await task.result()).content[0].text, f"slow {name} is done", "the result")
        equal((await task.status()).status, "completed", "the status at the end")
        listed = [each["taskId"] for each in (await there.list_tasks())["tasks"]]
        true(task.task_id in listed, f"{task.task_id} is not among {listed}")


@check("fastmcp2", "a-tool-that-fails-is-a-task-that-failed")
async def _(url: str) -> None:
    async with connected(url) as there:
        task = await there.call_tool("slow", {"seconds": 0.5, "fail": True}, task=True)
        equal((await task.wait(timeout=10)).status, "failed", "the status")


@check("fastmcp2", "a-task-is-cancelled-at-its-server")
async def _(url: str) -> None:
    name, begun = label(), asyncio.Event()

    async def hear(message: Any) -> None:
        if f"slow {name} started" in str(message.data):
            begun.set()

    async with connected(url, log_handler=hear) as there, client(url) as session:
        task = await there.call_tool("slow", {"seconds": 60.0, "label": name}, task=True)
        await begun.wait()
        await task.cancel()
        equal((await task.status()).status, "cancelled", "the status")
        await wait_cancelled(session, name)
        true(name in await cancelled_labels(session), "its server was told")


@check("fastmcp2", "a-question-of-a-task-is-answered")
async def _(url: str) -> None:
    asked = []

    async def elicit(message: str, response_type: Any, params: Any, context: Any) -> Any:
        asked.append(message)
        return {"answer": "blue"}

    async with connected(url, elicitation_handler=elicit) as there:
        task = await there.call_tool("ask", {"question": "which colour?"}, task=True)
        result = await task.result()
        equal(asked, ["which colour?"], "what was asked")
        true("blue" in result.content[0].text, f"the answer is not in {result.content}")
