"""Without tasks: what any client of its revision does."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Any

import httpx
from mcp import ClientSession, types
from mcp.shared.exceptions import McpError
from pydantic import AnyUrl

import harness
from harness import (
    BLOCK,
    TOOLS,
    accept,
    answering,
    cancel,
    cancelled_labels,
    check,
    client,
    clip,
    connect,
    echo,
    equal,
    everything,
    failure,
    is_database_error,
    label,
    model,
    roots,
    surveyed,
    text_of,
    true,
    wait_cancelled,
)


@check("plain", "speaks-its-own-revision")
async def _(url: str) -> None:
    async with client(url) as session:
        equal(session.hello.protocolVersion, harness.revision, "the negotiated revision")
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
        equal(text_of(await session.call_tool("big", {"kib": 5120, "seconds": 0.4})), BLOCK * 5120, "a large text")


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


@check("plain", "a-notification-cancels")
async def _(url: str) -> None:
    gone, kept = label(), label()
    async with client(url) as session, client(url) as reader:
        # The first call of a client may wait until a process has started; what never began says nothing.
        await session.call_tool("slow", {"seconds": 0.1, "label": label()})
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


# --- questions ------------------------------------------------------------------------------------


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


@check("asking", "a-question-in-a-call-delays-no-others")
async def _(url: str) -> None:
    async with client(url, elicitation_callback=echo) as session:
        await asyncio.sleep(0.3)
        await session.call_tool("ask", {"question": "First?"})
        began = time.monotonic()
        names = [label() for _ in range(5)]
        results = await asyncio.gather(*(session.call_tool("slow", {"seconds": 2.0, "label": name}) for name in names))
        equal([text_of(result) for result in results], [f"slow {name} is done" for name in names], "the texts")
        # One after another they take ten seconds.
        true(time.monotonic() - began < 6, "the calls of a session run at the same time")


@check("asking", "a-question-in-a-call-delays-no-other-client")
async def _(url: str) -> None:
    question, asked, served = f"Which, {label()}?", asyncio.Event(), asyncio.Event()

    async def slow_user(context: Any, params: Any) -> Any:
        asked.set()
        # The other client's process may have to start first.
        with suppress(TimeoutError, asyncio.TimeoutError):
            await asyncio.wait_for(served.wait(), 15)
        return accept("late")

    async with client(url, elicitation_callback=slow_user) as one, client(url, elicitation_callback=echo) as other:
        waiting = asyncio.create_task(one.call_tool("ask", {"question": question}))
        await asked.wait()
        name = label()
        result = await other.call_tool("slow", {"seconds": 0.3, "label": name})
        equal(text_of(result), f"slow {name} is done", "the text")
        true(not waiting.done(), "the other client does not wait for the user of this one")
        served.set()
        equal(text_of(await waiting), f"{question} late", "the text")


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


# --- streams that end early -----------------------------------------------------------------------


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
