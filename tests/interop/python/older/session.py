"""One session, word for word, for recorded.py."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from mcp import types
from mcp.shared.exceptions import McpError
from pydantic import AnyUrl

import harness
from harness import cancel, check, client, echo, failure, model, roots


@check("session", "scripted")
async def _(url: str) -> None:
    """Everything once, one after the other, with the same words each time."""
    callbacks = {"sampling_callback": model, "list_roots_callback": roots}
    if harness.revision >= "2025-06-18":
        callbacks["elicitation_callback"] = echo

    async def ignore(*_: Any) -> None:
        pass

    async with client(url, **callbacks) as session:
        await asyncio.sleep(0.5)  # for the GET stream to be open before anything is said on it
        await session.send_ping()
        with suppress(McpError):  # one of the two servers does not offer it
            await session.set_logging_level("info")
        await session.list_tools()
        await session.list_prompts()
        await session.list_resources()
        await session.list_resource_templates()
        await session.read_resource(AnyUrl("interop://note/alpha"))
        await session.get_prompt("review", {"subject": "the plan"})
        await failure(session.read_resource(AnyUrl("interop://nowhere")))
        await failure(session.get_prompt("no-such-prompt"))
        await session.call_tool("add", {"a": 2**53 - 2, "b": 1})
        params = types.CallToolRequestParams(name="slow", arguments={"seconds": 0.6, "label": "é ☃"})
        request = types.ClientRequest(types.CallToolRequest(method="tools/call", params=params))
        await session.send_request(request, types.CallToolResult, progress_callback=ignore)
        await session.call_tool("slow", {"seconds": 0.4, "label": "failing", "fail": True})
        await session.call_tool("broken", {"seconds": 0.2, "label": "it"})
        await failure(session.call_tool("rpc_error", {"seconds": 0.2}))
        with suppress(McpError):
            await session.call_tool("no-such-tool", {})
        await session.call_tool("big", {"kib": 300, "seconds": 0.1})
        await session.call_tool("touch")
        if harness.revision >= "2025-06-18":
            await session.call_tool("ask", {"question": "Which?", "delay": 0.2})
            await session.call_tool("dialogue", {"questions": ["One?", "Two?"], "delay": 0.1})
            await session.call_tool("aside", {"question": "Aside?"})
        tools = {tool.name for tool in (await session.list_tools()).tools}
        if "parting" in tools and harness.revision >= "2025-11-25":
            await session.call_tool("parting", {"seconds": 0.5})
        request_id = session._request_id
        call = asyncio.create_task(session.call_tool("slow", {"seconds": 20, "label": "cancelled"}))
        await asyncio.sleep(0.5)
        await cancel(session, request_id)
        await asyncio.sleep(0.3)
        call.cancel()
        with suppress(asyncio.CancelledError, McpError):
            await call
        await session.call_tool("add", {"a": 1, "b": 1})
