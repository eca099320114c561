"""Questions a server asks inside a task."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
from mcp import ClientSession, types

from bare import Bare
from harness import (
    accept,
    answering,
    check,
    client,
    echo,
    equal,
    everything,
    finish,
    is_related,
    label,
    result_of,
    start,
    surveyed,
    text_of,
)


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
