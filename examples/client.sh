#!/bin/sh
# A client of 2026-07-28 with task support, in curl: calls a slow tool, gets a task, polls it, prints the result.
#
#     deferral --after 1s -- python3 examples/slow_server.py   # in another terminal
#     sh examples/client.sh [URL [SECONDS]]
set -eu
url=${1:-http://127.0.0.1:8808/mcp}
seconds=${2:-3}

# Every request names its revision and declares the tasks extension.
meta='"_meta": {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": { "name": "client.sh", "version": "1.0.0" },
    "io.modelcontextprotocol/clientCapabilities": { "extensions": { "io.modelcontextprotocol/tasks": {} } }
}'

# request METHOD NAME PARAMS: the headers repeat the method and the name of the tool or task.
request() {
    curl --silent --show-error --max-time 60 "$url" \
        -H 'Content-Type: application/json' -H 'Accept: application/json, text/event-stream' \
        -H 'MCP-Protocol-Version: 2026-07-28' -H "Mcp-Method: $1" -H "Mcp-Name: $2" \
        -d "{ \"jsonrpc\": \"2.0\", \"id\": 1, \"method\": \"$1\", \"params\": { $3, $meta } }"
}

response=$(request tools/call count "\"name\": \"count\", \"arguments\": { \"seconds\": $seconds }")
task=$(printf '%s' "$response" | sed -n 's/.*"taskId": *"\([^"]*\)".*/\1/p')
if [ -z "$task" ]; then
    echo "no task, the result came at once: $response"
    exit
fi
echo "the call became the task $task"
while :; do
    response=$(request tasks/get "$task" "\"taskId\": \"$task\"")
    case $response in
    *'"status":"working"'*) echo "working"; sleep 1 ;;
    *) echo "$response"; break ;;
    esac
done
