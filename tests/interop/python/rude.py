"""A server on the official Python SDK 1.x that writes what a terminal would obey, and asks by a long form.

    rude.py    # prints where it listens
"""

from __future__ import annotations

import asyncio
import socket

import uvicorn
from mcp import types
from mcp.server.fastmcp import Context, FastMCP
from mcp.server.fastmcp.exceptions import ToolError
from mcp.shared.exceptions import McpError
from pydantic import BaseModel, Field

# The screen is cleared, the window named (OSC, ended by BEL), a C1 control does it again, and the rest is turned around.
RUDE = "before\x1b[2J\x1b[31m\x1b]0;owned\x07\x9b2J\x9d0;owned\x9c\u202e\u2066after"

app = FastMCP("rude", log_level="WARNING")


class Table(BaseModel):
    name: str = Field(title=f"Name {RUDE}", description=f"Whose {RUDE}")
    guests: int = Field(ge=1, le=12)
    seat: str = Field(json_schema_extra={"enum": ["inside", "terrace"]})
    smoking: bool




@app.tool(structured_output=False)
async def book(ctx: Context) -> str:
    """Ask for a table by a form with all kinds of fields."""
    reply = await ctx.elicit(f"A table {RUDE}", Table)
    if reply.action != "accept":
        return f"no table: {reply.action}"
    table = reply.data
    return f"{table.name!r} {table.guests!r} {table.seat!r} {table.smoking!r}"


@app.tool(structured_output=False)
async def shout(ctx: Context) -> str:
    """Report progress, and answer."""
    await ctx.report_progress(1, 2, f"progress {RUDE}")
    await ctx.info(f"log {RUDE}")
    return f"result {RUDE}"


@app.tool(structured_output=False)
async def stumble(ctx: Context) -> str:
    """Fail as a tool fails: with isError."""
    raise ToolError(f"mistake {RUDE}")


@app.tool(structured_output=False)
async def refuse(ctx: Context) -> str:
    """Fail as a request fails: with a JSON-RPC error."""
    raise AssertionError("answered below, in call_tool")


tools_call = app._mcp_server.request_handlers[types.CallToolRequest]


async def call_tool(request: types.CallToolRequest) -> types.ServerResult:
    if request.params.name == "refuse":
        raise McpError(types.ErrorData(code=-31001, message=f"refusal {RUDE}", data={"why": f"data {RUDE}"}))
    return await tools_call(request)


app._mcp_server.request_handlers[types.CallToolRequest] = call_tool


async def main() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    print(f"listening on http://127.0.0.1:{listener.getsockname()[1]}/mcp", flush=True)
    config = uvicorn.Config(app.streamable_http_app(), log_level="warning", timeout_graceful_shutdown=1)
    await uvicorn.Server(config).serve(sockets=[listener])


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        pass
