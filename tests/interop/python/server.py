"""A synchronous tool server on the official Python SDK 1.x: Streamable HTTP, stateful sessions.

Nothing in it knows about tasks or about the proxy in front of it.

    server.py [--port PORT]        # 0, the default, takes a free port and prints it
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket

import anyio
import uvicorn
from mcp import types
from mcp.server.fastmcp import Context, FastMCP
from mcp.server.fastmcp.exceptions import ToolError
from mcp.shared.exceptions import McpError
from pydantic import BaseModel

STEP = 0.2  # seconds between two progress reports

app = FastMCP(
    "interop-python",
    instructions="Tools for the interop test.",
    log_level="WARNING",
)

cancelled_labels: list[str] = []


async def work(ctx: Context, seconds: float, label: str) -> None:
    """Sleep, reporting progress each STEP; remember the label when the call is cancelled."""
    try:
        steps = max(1, round(seconds / STEP))
        for step in range(1, steps + 1):
            await anyio.sleep(seconds / steps)
            await ctx.report_progress(step, steps, f"{label} {step}/{steps}")
    except anyio.get_cancelled_exc_class():
        cancelled_labels.append(label)
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
async def survey(ctx: Context, topic: str, delay: float = 0) -> str:
    """Ask the user, the model and the client's roots after a delay, all at once."""
    await anyio.sleep(delay)
    found: dict[str, str] = {}

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
        for one in (user, model, roots):
            group.start_soon(one)
    return f"{topic} {found['user']} {found['model']} {found['roots']}"


@app.tool()
async def aside(ctx: Context, question: str, delay: float = 0) -> str:
    """Ask the user a question after a delay, on the session's own stream."""
    await anyio.sleep(delay)
    reply = await ctx.session.elicit_form(question, Answer.model_json_schema())
    return f"{question} {reply.content['answer']}"


@app.tool(structured_output=False)
async def big(kib: int, seconds: float = 0) -> str:
    """Return a text of that many KiB, after some seconds."""
    await anyio.sleep(seconds)
    return "0123456789abcdef" * 64 * kib


@app.tool(structured_output=False)
def cancelled() -> str:
    """The labels of the calls that were cancelled while they worked."""
    return json.dumps(cancelled_labels)


@app.tool(structured_output=False)
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
    if request.params.name == "rpc_error":
        await anyio.sleep((request.params.arguments or {}).get("seconds", 0))
        raise McpError(types.ErrorData(code=-31001, message="the database is down", data={"retry": False}))
    return await tools_call(request)


app._mcp_server.request_handlers[types.CallToolRequest] = call_tool


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    port = parser.parse_args().port

    listener = socket.create_server(("127.0.0.1", port))
    print(f"listening on http://127.0.0.1:{listener.getsockname()[1]}/mcp", flush=True)
    config = uvicorn.Config(app.streamable_http_app(), log_level="warning", timeout_graceful_shutdown=1)
    await uvicorn.Server(config).serve(sockets=[listener])


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        pass
