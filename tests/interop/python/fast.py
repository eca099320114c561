"""The tools of server.py on fastmcp, over stdio, where it speaks the revisions with a handshake and 2026-07-28 alike.

    fast.py --labels FILE    # which calls were cancelled is told by all processes that share the file
"""

from __future__ import annotations

import argparse
import json
import warnings
from dataclasses import dataclass
from pathlib import Path

import anyio
import mcp_types as types
from fastmcp import Context, FastMCP
from fastmcp.exceptions import ToolError
from fastmcp.server.middleware import Middleware
from mcp import MCPError

STEP = 0.2  # seconds between two progress reports

parser = argparse.ArgumentParser()
parser.add_argument("--labels", type=Path, required=True)
options = parser.parse_args()
warnings.simplefilter("ignore")  # what 2026-07-28 has done away with
app = FastMCP("interop-fastmcp", instructions="Tools for the interop test.")

async def work(ctx: Context, seconds: float, label: str) -> None:
    """Sleep, reporting progress each STEP; remember the label when the call is cancelled."""
    try:
        steps = max(1, round(seconds / STEP))
        for step in range(1, steps + 1):
            await anyio.sleep(seconds / steps)
            await ctx.report_progress(step, steps, f"{label} {step}/{steps}")
    except anyio.get_cancelled_exc_class():
        with options.labels.open("a") as file:
            file.write(f"{label}\n")
        raise


@app.tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@app.tool
async def slow(ctx: Context, seconds: float, label: str = "work", fail: bool = False) -> str:
    """Work for some seconds, reporting progress."""
    # Not `ctx.info`, which says more than the text.
    await ctx.session.send_log_message("info", f"slow {label} started", related_request_id=ctx.request_id)
    await work(ctx, seconds, label)
    if fail:
        raise ToolError(f"slow {label} failed")
    return f"slow {label} is done"


@app.tool
async def broken(ctx: Context, seconds: float = 0, label: str = "work") -> str:
    """Work for some seconds, then fail as a tool fails: with isError."""
    await work(ctx, seconds, label)
    raise ToolError(f"{label} is broken")


@app.tool
async def rpc_error(seconds: float = 0) -> str:
    """Work for some seconds, then fail as a request fails: with a JSON-RPC error."""
    raise AssertionError("answered below, in Failing")


class Failing(Middleware):
    """fastmcp turns whatever a tool raises into isError, but not what is raised above it."""

    async def on_call_tool(self, context, call_next):
        if context.message.name == "rpc_error":
            await anyio.sleep((context.message.arguments or {}).get("seconds", 0))
            raise MCPError(-31001, "the database is down", {"retry": False})
        return await call_next(context)


app.add_middleware(Failing())


@dataclass
class Answer:
    answer: str


@app.tool
async def ask(ctx: Context, question: str, delay: float = 0, rest: float = 0) -> str:
    """Ask the user a question after a delay, and work for some seconds with the answer."""
    await anyio.sleep(delay)
    reply = await ctx.elicit(question, Answer)
    await anyio.sleep(rest)
    if reply.action != "accept":
        return f"{question} {reply.action}"
    return f"{question} {reply.data.answer}"


@app.tool
async def dialogue(ctx: Context, questions: list[str], delay: float = 0) -> str:
    """Ask the user one question after the other, with a delay before each."""
    said = []
    for question in questions:
        await anyio.sleep(delay)
        reply = await ctx.elicit(question, Answer)
        said.append(f"{question} {reply.data.answer}")
    return " ".join(said)


@app.tool
async def survey(ctx: Context, topic: str, delay: float = 0, nobody: bool = False) -> str:
    """Ask the user, unless there is nobody, the model and the client's roots after a delay, all at once."""
    await anyio.sleep(delay)
    found: dict[str, str] = {"user": "nobody"}

    async def user() -> None:
        found["user"] = (await ctx.elicit(f"{topic}, user?", Answer)).data.answer

    async def model() -> None:
        said = types.TextContent(type="text", text=f"{topic}, model?")
        reply = await ctx.session.create_message([types.SamplingMessage(role="user", content=said)], max_tokens=10)
        found["model"] = reply.content.text

    async def roots() -> None:
        found["roots"] = str((await ctx.session.list_roots()).roots[0].uri)

    async with anyio.create_task_group() as group:
        for one in (model, roots) if nobody else (user, model, roots):
            group.start_soon(one)
    return f"{topic} {found['user']} {found['model']} {found['roots']}"


@app.tool
async def aside(ctx: Context, question: str, delay: float = 0) -> str:
    """Ask the user a question after a delay, without a word of the call it is for."""
    await anyio.sleep(delay)
    schema = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
    reply = await ctx.session.elicit_form(question, schema)
    return f"{question} {reply.content['answer']}"


@app.tool(output_schema=None)
async def big(kib: int, seconds: float = 0) -> str:
    """Return a text of that many KiB, after some seconds."""
    await anyio.sleep(seconds)
    return "0123456789abcdef" * 64 * kib


@app.tool(output_schema=None)
def cancelled() -> str:
    """The labels of the calls that were cancelled while they worked."""
    return json.dumps(options.labels.read_text().split() if options.labels.exists() else [])


@app.tool(output_schema=None)
async def touch(ctx: Context) -> str:
    """Say that the list of tools has changed."""
    await ctx.send_notification(types.ToolListChangedNotification())
    return "touched"


@app.resource("interop://greeting", name="greeting", mime_type="text/plain")
def greeting() -> str:
    return "Hello from a resource."


@app.resource("interop://note/{name}", name="note", mime_type="text/plain")
def note(name: str) -> str:
    return f"The note {name}."


@app.prompt
def review(subject: str) -> str:
    """Ask for a review."""
    return f"Please review {subject}."


if __name__ == "__main__":
    app.run(transport="stdio", show_banner=False, log_level="ERROR")
