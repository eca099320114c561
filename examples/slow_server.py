#!/usr/bin/env python3
"""An MCP server as many are: stdio, one slow tool, no support for tasks. Standard library only.

    deferral --after 1s -- python3 examples/slow_server.py

The tool `count` counts seconds and reports progress. It runs in a thread, so that a cancellation can be read meanwhile.
"""

import json
import sys
import threading
import time

TOOL = {
    "name": "count",
    "description": "Count seconds.",
    "inputSchema": {"type": "object", "properties": {"seconds": {"type": "number"}}, "required": ["seconds"]},
}
output = threading.Lock()
cancelled = set()


def send(message):
    with output:
        print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def count(id, params):
    seconds = params["arguments"]["seconds"]
    token = params.get("_meta", {}).get("progressToken")
    start = time.monotonic()
    while (passed := time.monotonic() - start) < seconds and id not in cancelled:
        if token is not None:
            send({"method": "notifications/progress", "params": {"progressToken": token, "progress": round(passed, 1), "total": seconds}})
        time.sleep(min(0.5, seconds - passed))
    if id not in cancelled:
        send({"id": id, "result": {"content": [{"type": "text", "text": f"counted {seconds} s"}]}})


for line in sys.stdin:
    message = json.loads(line)
    id, method, params = message.get("id"), message.get("method"), message.get("params", {})
    if method == "initialize":
        info = {"name": "slow-server", "version": "1.0.0"}
        send({"id": id, "result": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}})
    elif method == "tools/list":
        send({"id": id, "result": {"tools": [TOOL]}})
    elif method == "tools/call" and params["name"] == TOOL["name"]:
        threading.Thread(target=count, args=(id, params), daemon=True).start()
    elif method == "notifications/cancelled":
        cancelled.add(params["requestId"])
    elif method == "ping":
        send({"id": id, "result": {}})
    elif id is not None:
        send({"id": id, "error": {"code": -32601, "message": f"{method} is not supported"}})
