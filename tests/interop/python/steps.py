"""One session with a server that was published, told step by step. Runs on the Python SDK 1.x and on 2.x.

    steps.py URL             # or
    steps.py -- COMMAND...   # over stdio

Reads the steps from the standard input (JSON, see published.py), and prints for each a line of JSON with what was answered
and what was heard and asked on the way.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import warnings
from contextlib import AsyncExitStack
from typing import Any

try:
    import mcp_types as types
    from mcp import Client, MCPError, StdioServerParameters

    OLDER = False
except ImportError:
    from mcp import ClientSession, McpError, StdioServerParameters, types
    from mcp.client.stdio import stdio_client
    from mcp.client.streamable_http import streamable_http_client
    from pydantic import AnyUrl

    OLDER = True

STEP_SECONDS = 20.0
heard: list[Any] = []  # during the step that is under way


def dump(value: Any) -> Any:
    return value.model_dump(mode="json", by_alias=True, exclude_unset=True)


async def progress(value: float, total: float | None, message: str | None) -> None:
    heard.append(["progress", value, total, message])


async def elicit(context: Any, params: Any) -> Any:
    heard.append(["elicitation", params.message])
    return types.ElicitResult(action="accept", content={"name": "Ada", "check": True, "integer": 7})


async def sample(context: Any, params: Any) -> Any:
    heard.append(["sampling", dump(params)["messages"]])
    content = types.TextContent(type="text", text="said by a model")
    return types.CreateMessageResult(role="assistant", content=content, model="parrot")


def roots_of(folder: str) -> Any:
    async def roots(context: Any) -> Any:
        # Not told: some servers ask once more than others, whenever they like.
        return types.ListRootsResult(roots=[types.Root(uri=f"file://{folder}", name="home")])

    return roots


class Older:
    """The few methods that 1.x spells otherwise."""

    def __init__(self, session: Any, hello: Any) -> None:
        self.session, self.hello = session, hello

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session, name)

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> Any:
        params = types.CallToolRequestParams(name=name, arguments=arguments)
        request = types.ClientRequest(types.CallToolRequest(method="tools/call", params=params))
        return await self.session.send_request(request, types.CallToolResult, progress_callback=progress)

    async def read_resource(self, uri: str) -> Any:
        return await self.session.read_resource(AnyUrl(uri))


class Newer:
    def __init__(self, client: Any) -> None:
        self.client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)

    @property
    def hello(self) -> Any:
        class Hello(types.Result):
            server_info: Any
            capabilities: Any
            instructions: Any

        client = self.client
        return Hello(
            server_info=client.server_info, capabilities=client.server_capabilities, instructions=client.instructions
        )

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> Any:
        return await self.client.call_tool(name, arguments, progress_callback=progress)


async def connect(stack: AsyncExitStack, where: list[str], folder: str) -> Any:
    callbacks = {"elicitation_callback": elicit, "sampling_callback": sample, "list_roots_callback": roots_of(folder)}
    over_stdio = where[0] == "--"
    if over_stdio:
        target = StdioServerParameters(command=where[1], args=where[2:], env=dict(os.environ), cwd=folder)
    else:
        target = where[0]
    if not OLDER:
        return Newer(await stack.enter_async_context(Client(target, **callbacks)))
    transport = stdio_client(target) if over_stdio else streamable_http_client(target)
    read, write, *_ = await stack.enter_async_context(transport)
    session = await stack.enter_async_context(ClientSession(read, write, **callbacks))
    return Older(session, await session.initialize())


async def take(client: Any, step: list[Any]) -> Any:
    match step:
        case ["hello"]:
            return client.hello
        case ["ping"]:
            return await client.send_ping()
        case ["list", what]:
            return await getattr(client, f"list_{what}")()
        case ["call", name, arguments]:
            return await client.call_tool(name, arguments)
        case ["read", uri]:
            return await client.read_resource(uri)
        case ["prompt", name, arguments]:
            return await client.get_prompt(name, arguments)
        case ["complete", prompt, argument, value]:
            ref = types.PromptReference(type="ref/prompt", name=prompt)
            return await client.complete(ref, {"name": argument, "value": value})
    raise AssertionError(f"{step} is no step")


async def main() -> None:
    given = json.load(sys.stdin)
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    async with AsyncExitStack() as stack:
        client = await connect(stack, sys.argv[1:], given["folder"])
        for step in given["steps"]:
            heard.clear()
            try:
                async with asyncio.timeout(STEP_SECONDS):
                    told = {"result": dump(await take(client, step))}
            except (McpError if OLDER else MCPError) as error:
                told = {"error": dump(error.error)}
            except Exception as error:
                told = {"failed": f"{type(error).__name__}: {error}"}
            await asyncio.sleep(0.05)  # for progress that is heard behind its call
            print(json.dumps({"told": told, "heard": heard}), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
