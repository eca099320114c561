"""Clients that know no tasks, as their makers have them call tools, with the time-outs that they come with.

    clients.py NAME URL

Prints the names of the tools (a line of JSON), then reads calls, `{"name": …, "arguments": {…}}`, a line each, and
prints for each `{"said": …}`, what a model would read of the answer, or `{"died": …}`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

Call = Callable[[str, dict[str, Any]], Awaitable[Any]]


@asynccontextmanager
async def python(url: str) -> AsyncIterator[tuple[list[str], Call]]:
    from mcp import ClientSession
    from mcp.client.streamable_http import streamable_http_client

    async with streamable_http_client(url) as (read, write, _), ClientSession(read, write) as session:
        await session.initialize()
        tools = await session.list_tools()

        async def call(name: str, arguments: dict[str, Any]) -> Any:
            return texts(await session.call_tool(name, arguments))

        yield [tool.name for tool in tools.tools], call


@asynccontextmanager
async def langchain(url: str) -> AsyncIterator[tuple[list[str], Call]]:
    from langchain_mcp_adapters.client import MultiServerMCPClient
    from langchain_mcp_adapters.tools import load_mcp_tools

    client = MultiServerMCPClient({"slow": {"transport": "streamable_http", "url": url}})
    async with client.session("slow") as session:
        tools = {tool.name: tool for tool in await load_mcp_tools(session)}

        async def call(name: str, arguments: dict[str, Any]) -> Any:
            return await tools[name].ainvoke(arguments)

        yield list(tools), call


@asynccontextmanager
async def langchain_sessions(url: str) -> AsyncIterator[tuple[list[str], Call]]:
    """The way its guide begins with: `get_tools`, and a session of its own for each call."""
    from langchain_mcp_adapters.client import MultiServerMCPClient

    client = MultiServerMCPClient({"slow": {"transport": "streamable_http", "url": url}})
    tools = {tool.name: tool for tool in await client.get_tools()}

    async def call(name: str, arguments: dict[str, Any]) -> Any:
        return await tools[name].ainvoke(arguments)

    yield list(tools), call


@asynccontextmanager
async def pydantic_ai(url: str) -> AsyncIterator[tuple[list[str], Call]]:
    from pydantic_ai.mcp import MCPToolset

    async with MCPToolset(url) as server:
        tools = await server.list_tools()

        async def call(name: str, arguments: dict[str, Any]) -> Any:
            return await server.direct_call_tool(name, arguments)

        yield [tool.name for tool in tools], call


@asynccontextmanager
async def openai_agents(url: str) -> AsyncIterator[tuple[list[str], Call]]:
    from agents.mcp import MCPServerStreamableHttp

    params = {"url": url, "headers": {"X-Agent": "openai-agents"}}
    async with MCPServerStreamableHttp(params) as server:
        tools = await server.list_tools()

        async def call(name: str, arguments: dict[str, Any]) -> Any:
            return texts(await server.call_tool(name, arguments))

        yield [tool.name for tool in tools], call


@asynccontextmanager
async def mcp_use(url: str) -> AsyncIterator[tuple[list[str], Call]]:
    from mcp_use import MCPClient

    client = MCPClient({"mcpServers": {"slow": {"url": url}}})
    session = await client.create_session("slow")
    tools = await session.list_tools()

    async def call(name: str, arguments: dict[str, Any]) -> Any:
        return texts(await session.call_tool(name, arguments))

    try:
        yield [tool.name for tool in tools], call
    finally:
        await client.close_all_sessions()


@asynccontextmanager
async def google_adk(url: str) -> AsyncIterator[tuple[list[str], Call]]:
    from unittest.mock import MagicMock

    from google.adk.tools.mcp_tool import McpToolset, StreamableHTTPConnectionParams

    toolset = McpToolset(connection_params=StreamableHTTPConnectionParams(url=url))
    tools = {tool.name: tool for tool in await toolset.get_tools()}

    async def call(name: str, arguments: dict[str, Any]) -> Any:
        return await tools[name].run_async(args=arguments, tool_context=MagicMock())

    try:
        yield list(tools), call
    finally:
        await toolset.close()


CLIENTS = {
    "python1.30": python,
    "langchain": langchain,
    "langchain-sessions": langchain_sessions,
    "pydantic-ai": pydantic_ai,
    "openai-agents": openai_agents,
    "mcp-use": mcp_use,
    "google-adk": google_adk,
}


def texts(result: Any) -> Any:
    """What the SDK's own result says."""
    said = "\n".join(block.text for block in result.content if block.type == "text")
    if getattr(result, "isError", None) or getattr(result, "is_error", None):
        raise RuntimeError(said)
    return said


def plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)


def causes(error: BaseException) -> str:
    """A group's own words say nothing."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(map(causes, error.exceptions))
    return f"{type(error).__name__}: {error}"


def tell(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=False), flush=True)


async def main() -> None:
    name, url = sys.argv[1:]
    async with CLIENTS[name](url) as (tools, call):
        tell(tools)
        while line := await asyncio.to_thread(sys.stdin.readline):
            wanted = json.loads(line)
            try:
                tell({"said": plain(await call(wanted["name"], wanted["arguments"]))})
            except Exception as error:
                tell({"died": causes(error)})


if __name__ == "__main__":
    asyncio.run(main())
