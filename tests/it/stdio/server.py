"""A server over stdio for the tests: plain, or nasty in the way that its first argument names."""

import json
import os
import signal
import subprocess
import sys
import time

# Calls that are answered when another comes.
LATER = []
NASTY = sys.argv[1] if len(sys.argv) > 1 else "plain"


def say(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def text(id, text, **more):
    say({"id": id, "result": {"content": [{"type": "text", "text": text}], **more}})


def stubborn():
    """Starts what does not end by itself: it ignores SIGTERM, and the end of its input."""
    words = "trap '' TERM HUP INT; while :; do sleep 1000; done"
    return ["sh", "-c", words]


def is_first(path):
    """Whether this is the first process that asks, of all that are given this path."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
        return True
    except FileExistsError:
        return False


def call(id, name, arguments, meta):
    if name == "echo":
        text(id, "x" * arguments.get("size", 1))
    elif name == "sleep":
        print("it sleeps", file=sys.stderr, flush=True)
        time.sleep(arguments["seconds"])
        text(id, "slept")
    elif name == "wait":
        print("it waits", file=sys.stderr, flush=True)
        # Until somebody writes to it.
        open(arguments["gate"]).read()
        text(id, "waited")
    elif name == "remark":
        for number in range(arguments["lines"]):
            print("remark", number, file=sys.stderr)
        sys.stderr.flush()
        text(id, "remarked")
    elif name == "print":
        for line in arguments["lines"]:
            print(line)
        os.write(1, b"\xff\xfe is no text\n")
        text(id, "printed")
    elif name == "fail":
        text(id, "it failed", isError=True)
    elif name == "die":
        print("the last words", file=sys.stderr, flush=True)
        os._exit(arguments["code"])
    elif name == "meta":
        text(id, json.dumps({"id": id, **meta}))
    elif name == "environment":
        text(id, json.dumps({"cwd": os.getcwd(), **os.environ}))
    elif name == "progress":
        for at in range(3):
            token = meta["progressToken"]
            say({"method": "notifications/progress", "params": {"progressToken": token, "progress": at, "total": 3}})
        text(id, "done")
    elif name == "ask":
        if "gate" in arguments:
            open(arguments["gate"]).read()
        form = {"type": "object", "properties": {"name": {"type": "string"}}}
        say({"id": "q", "method": "elicitation/create", "params": {"message": "who?", "requestedSchema": form}})
        if arguments.get("exits") == "asking":
            os._exit(5)
        answer = json.loads(sys.stdin.readline())
        if arguments.get("exits") == "answered":
            os._exit(6)
        if "error" in answer:
            text(id, answer["error"]["message"], isError=True)
        else:
            text(id, json.dumps(answer["result"]))
    elif name == "later":
        print("it is left for later", file=sys.stderr, flush=True)
        LATER.append(id)
    elif name == "ask behind":
        # With what answers another call, at once.
        answer = {"jsonrpc": "2.0", "id": LATER.pop(), "result": {"content": [{"type": "text", "text": "later"}]}}
        form = {"type": "object", "properties": {}}
        question = {"message": "who?", "requestedSchema": form}
        question = {"jsonrpc": "2.0", "id": "q", "method": "elicitation/create", "params": question}
        os.write(1, (json.dumps(answer) + "\n" + json.dumps(question) + "\n").encode())
        answer = json.loads(sys.stdin.readline())
        text(id, json.dumps(answer.get("result", answer.get("error"))), isError="error" in answer)
    elif name == "half":
        sys.stdout.write('{"jsonrpc":"2.0","id":%d,"result":{' % id)
        sys.stdout.flush()
        os._exit(0)
    elif name == "close":
        os.close(1)
        time.sleep(1000)
    else:
        say({"id": id, "error": {"code": -32602, "message": "no such tool"}})


def main():
    if NASTY == "exits":
        sys.exit(7)
    if NASTY == "hangs":
        time.sleep(1000)
    if NASTY in ("helper", "setsid", "both"):
        subprocess.Popen(stubborn(), stdin=subprocess.DEVNULL, stdout=sys.stdout, start_new_session=NASTY != "helper")
    if NASTY == "both":
        # It does not even mind that its parent has gone.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        script = ["sh", "-c", "setsid sh -c \"trap '' TERM; while :; do sleep 1000; done\" &"]
        subprocess.Popen(script, stdin=subprocess.DEVNULL).wait()
    if NASTY == "floods":
        block = b"y" * (1 << 20)
        for _ in range(50):
            os.write(2, block)
    for line in sys.stdin:
        message = json.loads(line)
        method, id = message.get("method"), message.get("id")
        params = message.get("params", {})
        if method == "initialize":
            about = {"name": "nasty", "version": "1"}
            result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": about}
            say({"id": id, "result": result})
        elif method == "tools/list":
            say({"id": id, "result": {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}})
            if NASTY == "deaf" and is_first(sys.argv[2]):
                time.sleep(1000)
        elif method == "tools/call":
            call(id, params["name"], params.get("arguments", {}), params.get("_meta", {}))
        elif id is not None and method is not None:
            say({"id": id, "error": {"code": -32601, "message": "unknown"}})
    if NASTY == "both":
        # Neither does it end with its input.
        while True:
            time.sleep(1000)


main()
