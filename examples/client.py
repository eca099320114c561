"""A client of 2026-07-28 with task support, on fastmcp with fastmcp-tasks (`pip install fastmcp fastmcp-tasks`).

    deferral --after 1s -- python3 examples/slow_server.py   # in another terminal
    python examples/client.py [URL [SECONDS]]
"""

import asyncio
import sys

import fastmcp
from fastmcp_tasks import call_tool_task

ARGUMENTS = dict(enumerate(sys.argv))
URL = ARGUMENTS.get(1, "http://127.0.0.1:8808/mcp")
SECONDS = float(ARGUMENTS.get(2, 3))


async def main():
    async with fastmcp.Client(URL) as client:
        # `await client.call_tool(…)` follows a task by itself; this shows the steps.
        task = await call_tool_task(client, "count", {"seconds": SECONDS})
        print("status:", (await task.status()).status)
        result = await task.result()
        print(result.content[0].text)


asyncio.run(main())
