"""A client that does less than an SDK, or what no SDK does."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx

import harness
from harness import RELATED, TTL_MS, check, equal, label, true


class Bare:
    """Speaks 2025-11-25 by hand: what no SDK does, such as to keep no GET stream open."""

    def __init__(self, http: httpx.AsyncClient, url: str, session: str | None = None) -> None:
        self.http, self.url, self.count = http, url, 0
        self.headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
        if session is not None:
            self.headers |= {"mcp-session-id": session, "mcp-protocol-version": harness.revision}

    def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self.count += 1
        return {"jsonrpc": "2.0", "id": f"bare-{self.count}", "method": method, "params": params}

    async def send(self, message: dict[str, Any]) -> httpx.Response:
        return await self.http.post(self.url, json=message, headers=self.headers)

    async def call(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """The response to a request, with its result or error."""
        async with asyncio.timeout(10):
            async for message in self.messages(method, params):
                if "method" not in message:
                    return message
        raise AssertionError(f"{method} was left without a response")

    async def messages(self, method: str, params: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """What comes on the stream of a request, until it ends."""
        request = self.request(method, params)
        async with self.http.stream("POST", self.url, json=request, headers=self.headers) as response:
            if session := response.headers.get("mcp-session-id"):
                self.headers |= {"mcp-session-id": session, "mcp-protocol-version": harness.revision}
            if not response.headers.get("content-type", "").startswith("text/event-stream"):
                yield json.loads(await response.aread())
                return
            async for line in response.aiter_lines():
                if line.startswith("data:") and line[5:].strip():
                    yield json.loads(line[5:])

    async def open(self) -> dict[str, Any]:
        """The handshake of a client that can be asked."""
        said = {"protocolVersion": harness.revision, "capabilities": {"elicitation": {}}}
        said["clientInfo"] = {"name": "bare", "version": "1"}
        answer = await self.call("initialize", said)
        await self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return answer["result"]

    async def start(self, tool: str, arguments: dict[str, Any]) -> str:
        call = {"name": tool, "arguments": arguments, "task": {"ttl": TTL_MS}}
        return (await self.call("tools/call", call))["result"]["task"]["taskId"]

    async def status(self, task_id: str) -> str:
        return (await self.call("tasks/get", {"taskId": task_id}))["result"]["status"]

    async def until_status(self, task_id: str, want: str) -> None:
        deadline = time.monotonic() + 5
        while (status := await self.status(task_id)) != want:
            true(time.monotonic() < deadline, f"the status stayed {status}, not {want}, for 5 s")
            await asyncio.sleep(0.05)

    async def answer(self, question: dict[str, Any], answer: str, task_id: str) -> None:
        result = {"action": "accept", "content": {"answer": answer}, "_meta": {RELATED: {"taskId": task_id}}}
        response = await self.send({"jsonrpc": "2.0", "id": question["id"], "result": result})
        equal(response.status_code, 202, "the status of an answer")


@check("bare", "a-question-comes-with-the-result")
async def _(url: str) -> None:
    question = f"Which, {label()}?"
    async with httpx.AsyncClient(timeout=10) as http:
        bare = Bare(http, url)
        await bare.open()
        task_id = await bare.start("ask", {"question": question, "delay": 0.3})
        await bare.until_status(task_id, "input_required")
        seen = []
        async for message in bare.messages("tasks/result", {"taskId": task_id}):
            seen.append(message.get("method", "response"))
            if message.get("method") == "elicitation/create":
                equal(message["params"]["message"], question, "the question")
                equal(message["params"]["_meta"][RELATED], {"taskId": task_id}, f"{RELATED} of the question")
                await bare.answer(message, "seven", task_id)
            elif "method" not in message:
                equal(message["result"]["content"][0]["text"], f"{question} seven", "the text")
                equal(message["result"]["_meta"][RELATED], {"taskId": task_id}, f"{RELATED} of the result")
        beside = [method for method in seen if not method.startswith("notifications/")]
        equal(beside, ["elicitation/create", "response"], "the messages")


@check("bare", "a-question-is-asked-again-of-who-lost-its-stream")
async def _(url: str) -> None:
    question = f"Which, {label()}?"
    async with httpx.AsyncClient(timeout=10) as http:
        bare = Bare(http, url)
        await bare.open()
        task_id = await bare.start("ask", {"question": question, "delay": 0.3})
        lost = bare.messages("tasks/result", {"taskId": task_id})
        first = None
        async for message in lost:
            if message.get("method") == "elicitation/create":
                first = message
                break
        await lost.aclose()  # the connection ends here, unanswered
        true(first is not None, "the question never came")
        equal(await bare.status(task_id), "input_required", "the status after it")
        async for message in bare.messages("tasks/result", {"taskId": task_id}):
            if message.get("method") == "elicitation/create":
                equal(message["id"], first["id"], "the id of the same question")
                await bare.answer(message, "at last", task_id)
            elif "method" not in message:
                equal(message["result"]["content"][0]["text"], f"{question} at last", "the text")


@check("bare", "a-question-lost-with-the-get-stream-comes-with-the-result")
async def _(url: str) -> None:
    question = f"Which, {label()}?"
    async with httpx.AsyncClient(timeout=10) as http:
        bare = Bare(http, url)
        await bare.open()
        async with http.stream("GET", url, headers=bare.headers | {"accept": "text/event-stream"}) as stream:
            equal(stream.status_code, 200, "the status of GET")
            task_id = await bare.start("ask", {"question": question, "delay": 0.3})
            async for line in stream.aiter_lines():
                if line.startswith("data:") and "elicitation/create" in line:
                    first = json.loads(line[5:])
                    break
        equal(first["params"]["_meta"][RELATED], {"taskId": task_id}, f"{RELATED} of the question")
        await asyncio.sleep(0.2)  # the proxy is to see that the stream is gone
        async for message in bare.messages("tasks/result", {"taskId": task_id}):
            if message.get("method") == "elicitation/create":
                equal(message["id"], first["id"], "the id of the same question")
                await bare.answer(message, "at last", task_id)
            elif "method" not in message:
                equal(message["result"]["content"][0]["text"], f"{question} at last", "the text")
                return
        raise AssertionError("no result")


@check("bare", "a-question-answered-twice-counts-once")
async def _(url: str) -> None:
    questions = [f"Which, {label()}?" for _ in range(2)]
    async with httpx.AsyncClient(timeout=10) as http:
        bare = Bare(http, url)
        await bare.open()
        task_id = await bare.start("dialogue", {"questions": questions, "delay": 0.3})
        async for message in bare.messages("tasks/result", {"taskId": task_id}):
            if message.get("method") == "elicitation/create":
                said = f"<{message['params']['message']}>"
                await bare.answer(message, said, task_id)
                result = {"action": "accept", "content": {"answer": "again"}}
                again = await bare.send({"jsonrpc": "2.0", "id": message["id"], "result": result})
                true(again.status_code in (202, 400), f"a second answer was given {again.status_code}")
            elif "method" not in message:
                text = message["result"]["content"][0]["text"]
                equal(text, " ".join(f"{each} <{each}>" for each in questions), "the text")


@check("bare", "an-ended-session-keeps-its-tasks")
async def _(url: str) -> None:
    name = label()
    async with httpx.AsyncClient(timeout=10) as http:
        bare, other = Bare(http, url), Bare(http, url)
        await bare.open()
        await other.open()
        task_id = await bare.start("slow", {"seconds": 20, "label": name})
        await asyncio.sleep(0.4)
        ended = await http.request("DELETE", url, headers=bare.headers)
        true(ended.status_code in (200, 204), f"DELETE was answered {ended.status_code}")
        answer = await bare.send(bare.request("tasks/get", {"taskId": task_id}))
        equal(answer.status_code, 404, "the status of tasks/get in the ended session")
        for method, status in (("tasks/get", "working"), ("tasks/cancel", "cancelled"), ("tasks/get", "cancelled")):
            shown = await other.call(method, {"taskId": task_id})
            equal(shown.get("result", shown).get("status"), status, f"another session's {method}")


@check("bare", "one-question-on-one-of-two-streams")
async def _(url: str) -> None:
    question = f"Which, {label()}?"
    async with httpx.AsyncClient(timeout=10) as http:
        bare = Bare(http, url)
        await bare.open()
        task_id = await bare.start("ask", {"question": question, "delay": 0.4})
        asked: list[int] = []

        async def wait(place: int) -> str:
            async for message in bare.messages("tasks/result", {"taskId": task_id}):
                if message.get("method") == "elicitation/create":
                    asked.append(place)
                    await bare.answer(message, "seven", task_id)
                elif "method" not in message:
                    return message["result"]["content"][0]["text"]
            raise AssertionError("no result")

        texts = await asyncio.gather(wait(0), wait(1))
        equal(texts, [f"{question} seven"] * 2, "the texts")
        equal(len(asked), 1, "the streams it was asked on")


@check("bare", "what-is-no-wish-is-refused")
async def _(url: str) -> None:
    async with httpx.AsyncClient(timeout=10) as http:
        bare = Bare(http, url)
        await bare.open()
        for task in ({"ttl": "long"}, {"ttl": -1}, [], "yes"):
            answer = await bare.call("tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}, "task": task})
            equal(answer.get("error", {}).get("code"), -32602, f"the code for {task!r}")
        # Members nobody knows are for somebody else.
        call = {"name": "add", "arguments": {"a": 1, "b": 2}, "task": {"ttl": TTL_MS, "priority": 3}}
        equal((await bare.call("tools/call", call))["result"]["task"]["status"], "working", "the status")
        for method in ("tasks/get", "tasks/result", "tasks/cancel"):
            for params in ({}, {"taskId": 7}, {"taskId": ""}):
                answer = await bare.call(method, params)
                equal(answer.get("error", {}).get("code"), -32602, f"the code for {method} of {params}")


@check("bare", "the-other-era-sees-nothing")
async def _(url: str) -> None:
    modern = "2026-07-28"
    meta = {
        "io.modelcontextprotocol/protocolVersion": modern,
        "io.modelcontextprotocol/clientInfo": {"name": "bare", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}},
    }
    async with httpx.AsyncClient(timeout=10) as http:
        bare = Bare(http, url)
        await bare.open()

        async def newer(method: str, name: str, params: dict[str, Any]) -> dict[str, Any]:
            headers = {"mcp-protocol-version": modern, "mcp-method": method, "mcp-name": name}
            headers["accept"] = "application/json, text/event-stream"
            body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
            return (await http.post(url, json=body, headers=headers)).json()

        older = await bare.start("slow", {"seconds": 2})
        young = (await newer("tools/call", "slow", {"name": "slow", "arguments": {"seconds": 2}}))["result"]["taskId"]
        for method in ("tasks/get", "tasks/cancel"):
            nobody = await newer(method, "no-such-task", {"taskId": "no-such-task"})
            seen = await newer(method, older, {"taskId": older})
            equal(seen["error"]["code"], nobody["error"]["code"], f"{method} of a task of the older era")
        for method in ("tasks/get", "tasks/result", "tasks/cancel"):
            answer = await bare.call(method, {"taskId": young})
            equal(answer.get("error", {}).get("code"), -32602, f"{method} of a task of the newer era")
        listed = [task["taskId"] for task in (await bare.call("tasks/list", {}))["result"]["tasks"]]
        equal(listed, [older], "tasks/list")
        equal(await bare.status(older), "working", "the older task")
        alive = await newer("tasks/get", young, {"taskId": young})
        equal(alive["result"]["status"], "working", "the newer task")
