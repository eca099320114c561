"""A synchronous tool server on the official Python SDK 1.x: Streamable HTTP, stateful sessions; or over stdio.

Nothing in it knows about the proxy in front of it, and nothing about tasks unless it is told to. Over stdio it
runs on SDK 1.9 and 1.12, too; what 1.9 has not yet is left out there.

    server.py [--port PORT]        # 0, the default, takes a free port and prints it
              [--stdio]            # a message a line, from the standard input to the standard output
              [--labels FILE]      # which calls were cancelled is told by all processes that share the file
              [--resumable]        # with an event store: priming events, `retry`, Last-Event-ID
              [--tasks]            # with the SDK's own tasks of 2025-11-25
              [--stateless]        # no sessions: each request stands alone
"""

# No `annotations` from the future: SDK 1.9 and 1.12 would not find the tools' contexts.
import argparse
import asyncio
import inspect
import json
import os
import socket
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
from mcp import types
from mcp.server.fastmcp import Context, FastMCP
from mcp.server.fastmcp.exceptions import ToolError
from mcp.server.streamable_http import EventCallback, EventMessage, EventStore
from mcp.shared.exceptions import McpError
from pydantic import BaseModel

STEP = 0.2  # seconds between two progress reports
LINGER = 5  # seconds that a process over stdio may be there for without a session
RETRY_MS = 100  # how soon a client may come back for the rest of a stream


class Events(EventStore):
    """Every event of this process, numbered. Sessions share it: the SDK's streams are named by request id alone."""

    def __init__(self) -> None:
        self.events: list[tuple[str, types.JSONRPCMessage | None]] = []

    async def store_event(self, stream_id: str, message: types.JSONRPCMessage | None) -> str:
        self.events.append((stream_id, message))
        return f"event-{len(self.events)}"

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        last = int(last_event_id.removeprefix("event-"))
        stream = self.events[last - 1][0]
        for number, (name, message) in enumerate(self.events[last:], last + 1):
            if name == stream and message is not None:
                await send_callback(EventMessage(message, f"event-{number}"))
        return stream


parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int, default=0)
parser.add_argument("--stdio", action="store_true")
parser.add_argument("--labels", type=Path)
parser.add_argument("--resumable", action="store_true")
parser.add_argument("--tasks", action="store_true")
parser.add_argument("--stateless", action="store_true")
options = parser.parse_args()

app = FastMCP(
    "interop-python",
    instructions="Tools for the interop test.",
    log_level="WARNING",
    stateless_http=options.stateless,
    **({"event_store": Events(), "retry_interval": RETRY_MS} if options.resumable else {}),
)

cancelled_labels: list[str] = []


def remember_cancelled(label: str) -> None:
    cancelled_labels.append(label)
    if options.labels:
        with options.labels.open("a") as file:
            file.write(f"{label}\n")


def text_tool() -> Callable[[Any], Any]:
    """A tool whose result is a text alone. SDK 1.9 has no others."""
    structured = "structured_output" in inspect.signature(app.tool).parameters
    return app.tool(**({"structured_output": False} if structured else {}))


async def work(ctx: Context, seconds: float, label: str) -> None:
    """Sleep, reporting progress each STEP; remember the label when the call is cancelled."""
    try:
        steps = max(1, round(seconds / STEP))
        for step in range(1, steps + 1):
            await anyio.sleep(seconds / steps)
            await ctx.report_progress(step, steps, f"{label} {step}/{steps}")
    except anyio.get_cancelled_exc_class():
        remember_cancelled(label)
        raise


@app.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@app.tool()
async def slow(ctx: Context, seconds: float, label: str = "work", fail: bool = False) -> str:
    """Work for some seconds, reporting progress."""
    await ctx.info(f"slow {label} started")
    await work(ctx, seconds, label)
    if fail:
        raise ToolError(f"slow {label} failed")
    return f"slow {label} is done"


@app.tool()
async def broken(ctx: Context, seconds: float = 0, label: str = "work") -> str:
    """Work for some seconds, then fail as a tool fails: with isError."""
    await work(ctx, seconds, label)
    raise ToolError(f"{label} is broken")


@app.tool()
async def rpc_error(seconds: float = 0) -> str:
    """Work for some seconds, then fail as a request fails: with a JSON-RPC error."""
    raise AssertionError("answered below, in call_tool")


class Answer(BaseModel):
    answer: str


@app.tool()
async def ask(ctx: Context, question: str, delay: float = 0, rest: float = 0) -> str:
    """Ask the user a question after a delay, and work for some seconds with the answer."""
    await anyio.sleep(delay)
    reply = await ctx.elicit(question, Answer)
    await anyio.sleep(rest)
    if reply.action != "accept":
        return f"{question} {reply.action}"
    return f"{question} {reply.data.answer}"


@app.tool()
async def dialogue(ctx: Context, questions: list[str], delay: float = 0) -> str:
    """Ask the user one question after the other, with a delay before each."""
    said = []
    for question in questions:
        await anyio.sleep(delay)
        reply = await ctx.elicit(question, Answer)
        said.append(f"{question} {reply.data.answer}")
    return " ".join(said)


@app.tool()
async def survey(ctx: Context, topic: str, delay: float = 0, nobody: bool = False) -> str:
    """Ask the user, unless there is nobody, the model and the client's roots after a delay, all at once."""
    await anyio.sleep(delay)
    found: dict[str, str] = {"user": "nobody"}

    async def user() -> None:
        found["user"] = (await ctx.elicit(f"{topic}, user?", Answer)).data.answer

    async def model() -> None:
        said = types.TextContent(type="text", text=f"{topic}, model?")
        reply = await ctx.session.create_message(
            [types.SamplingMessage(role="user", content=said)], max_tokens=10, related_request_id=ctx.request_id
        )
        found["model"] = reply.content.text

    async def roots() -> None:
        # The SDK has no way to name the call: this goes to the session's own stream.
        found["roots"] = str((await ctx.session.list_roots()).roots[0].uri)

    async with anyio.create_task_group() as group:
        for one in (model, roots) if nobody else (user, model, roots):
            group.start_soon(one)
    return f"{topic} {found['user']} {found['model']} {found['roots']}"


@app.tool()
async def aside(ctx: Context, question: str, delay: float = 0) -> str:
    """Ask the user a question after a delay, on the session's own stream."""
    await anyio.sleep(delay)
    # SDK 1.12 has one name for all of them.
    elicit = getattr(ctx.session, "elicit_form", None) or ctx.session.elicit
    reply = await elicit(question, Answer.model_json_schema())
    return f"{question} {reply.content['answer']}"


@text_tool()
async def big(kib: int, seconds: float = 0) -> str:
    """Return a text of that many KiB, after some seconds."""
    await anyio.sleep(seconds)
    return "0123456789abcdef" * 64 * kib


@text_tool()
def cancelled() -> str:
    """The labels of the calls that were cancelled while they worked."""
    if options.labels and options.labels.exists():
        return json.dumps(options.labels.read_text().split())
    return json.dumps(cancelled_labels)


if options.resumable:

    @text_tool()
    async def parting(ctx: Context, seconds: float = 0.5) -> str:
        """Close the stream of the call, and answer to whoever comes back for the rest."""
        await ctx.info("before the parting")
        await ctx.close_sse_stream()
        await anyio.sleep(seconds)
        await ctx.info("after the parting")
        return "together again"


@text_tool()
async def touch(ctx: Context) -> str:
    """Say that the list of tools has changed."""
    await ctx.session.send_tool_list_changed()
    return "touched"


@app.resource("interop://greeting", name="greeting", mime_type="text/plain")
def greeting() -> str:
    return "Hello from a resource."


@app.resource("interop://note/{name}", name="note", mime_type="text/plain")
def note(name: str) -> str:
    return f"The note {name}."


@app.prompt()
def review(subject: str) -> str:
    """Ask for a review."""
    return f"Please review {subject}."


# FastMCP turns whatever a tool raises into isError; an application that wants a JSON-RPC error
# handles the request itself.
tools_call = app._mcp_server.request_handlers[types.CallToolRequest]


async def call_tool(request: types.CallToolRequest) -> types.ServerResult:
    if options.tasks and request.params.task is not None:
        return await run_task(request)
    if request.params.name == "rpc_error":
        await anyio.sleep((request.params.arguments or {}).get("seconds", 0))
        raise McpError(types.ErrorData(code=-31001, message="the database is down", data={"retry": False}))
    return await tools_call(request)


app._mcp_server.request_handlers[types.CallToolRequest] = call_tool


# --- tasks of its own ----------------------------------------------------------------------------


async def run_task(request: types.CallToolRequest) -> types.ServerResult:
    """As a server that knows tasks does it: questions through the task, no progress after the handle."""
    context = app._mcp_server.request_context
    given = request.params.arguments or {}

    async def run(task: object) -> types.CallToolResult:
        match request.params.name:
            case "ask":
                await anyio.sleep(given.get("delay", 0))
                reply = await task.elicit(given["question"], Answer.model_json_schema())
                await anyio.sleep(given.get("rest", 0))
                said = reply.content["answer"] if reply.action == "accept" else reply.action
                return said_by_tool(text := f"{given['question']} {said}", structuredContent={"result": text})
            case "big":
                await anyio.sleep(given.get("seconds", 0))
                return said_by_tool("0123456789abcdef" * 64 * given["kib"])
            case "slow":
                await anyio.sleep(given.get("seconds", 0))
                text = f"slow {given.get('label', 'work')} is done"
                return said_by_tool(text, structuredContent={"result": text})
            case name:
                raise McpError(types.ErrorData(code=types.METHOD_NOT_FOUND, message=f"{name} is no task here"))

    return types.ServerResult(await context.experimental.run_task(run))


def said_by_tool(text: str, **members: object) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], **members)


if options.tasks:
    warnings.simplefilter("ignore", DeprecationWarning)
    app._mcp_server.experimental.enable_tasks()
    tools_list = app._mcp_server.request_handlers[types.ListToolsRequest]

    async def list_tools(request: types.ListToolsRequest) -> types.ServerResult:
        result = await tools_list(request)
        for tool in result.root.tools:
            if tool.name in ("ask", "big", "slow"):
                tool.execution = types.ToolExecution(taskSupport="optional")
        return result

    app._mcp_server.request_handlers[types.ListToolsRequest] = list_tools


def to_the_end(run: Callable[..., Any]) -> Callable[..., Any]:
    """The process does not outlive its session, as that of SDK 1.9 may do once a call is cancelled.

    It ends with the first line that its thread reads afterwards. Whether the line of a client's next call is that one,
    or was read just before and is never answered, is chance: the process has LINGER for it.
    """

    async def run_to_the_end(incoming: Any, *rest: object) -> None:
        await run(incoming, *rest)
        if incoming.statistics().open_send_streams:  # the standard input has not ended
            end = threading.Timer(LINGER, os._exit, [1])
            end.daemon = True
            end.start()

    return run_to_the_end


async def main() -> None:
    if options.stdio:
        app._mcp_server.run = to_the_end(app._mcp_server.run)
        await app.run_stdio_async()
        return
    import uvicorn

    listener = socket.create_server(("127.0.0.1", options.port))
    print(f"listening on http://127.0.0.1:{listener.getsockname()[1]}/mcp", flush=True)
    config = uvicorn.Config(app.streamable_http_app(), log_level="warning", timeout_graceful_shutdown=1)
    await uvicorn.Server(config).serve(sockets=[listener])


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        pass
