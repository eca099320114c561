"""A server with one slow tool, on the official Python SDK 1.x: Streamable HTTP, stateful sessions.

    server.py

The tool reports progress each second, has an output schema, and says how often it was begun, so that a call made
twice is seen. Nothing in it knows about the proxy in front of it, tasks or tickets.
"""

import asyncio
import socket

import uvicorn
from mcp.server.fastmcp import Context, FastMCP
from pydantic import BaseModel

app = FastMCP("slow")
begun: dict[str, int] = {}


class Report(BaseModel):
    about: str
    begun: int
    seconds: int


@app.tool()
async def survey(about: str, seconds: int, context: Context) -> Report:
    """Surveys something, which takes a while."""
    begun[about] = begun.get(about, 0) + 1
    for second in range(seconds):
        await asyncio.sleep(1)
        await context.report_progress(second + 1, seconds, f"{second + 1} of {seconds} seconds")
    return Report(about=about, begun=begun[about], seconds=seconds)


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
