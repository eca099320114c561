// A client of 2026-07-28 with task support, in JavaScript without packages (Node 20 or later, or a browser).
//
//     deferral --after 1s -- python3 examples/slow_server.py   # in another terminal
//     node examples/client.mjs [URL [SECONDS]]

const [url = 'http://127.0.0.1:8808/mcp', seconds = '3'] = process.argv.slice(2);
const META = {
  'io.modelcontextprotocol/protocolVersion': '2026-07-28',
  'io.modelcontextprotocol/clientInfo': { name: 'client.mjs', version: '1.0.0' },
  'io.modelcontextprotocol/clientCapabilities': { extensions: { 'io.modelcontextprotocol/tasks': {} } },
};

/** Sends one request and returns its result, from a JSON document or from an event stream. */
async function request(method, params) {
  const response = await fetch(url, {
    method: 'POST',
    headers: {
      'Content-Type': 'application/json',
      Accept: 'application/json, text/event-stream',
      'MCP-Protocol-Version': '2026-07-28',
      'Mcp-Method': method,
      'Mcp-Name': params.taskId ?? params.name,
    },
    body: JSON.stringify({ jsonrpc: '2.0', id: 1, method, params: { ...params, _meta: META } }),
  });
  const text = await response.text();
  const isStream = response.headers.get('content-type').startsWith('text/event-stream');
  const messages = isStream ? [...text.matchAll(/^data: ?(.+)$/gm)].map(([, data]) => JSON.parse(data)) : [JSON.parse(text)];
  const { result, error } = messages.find((message) => message.id === 1) ?? messages.at(-1);
  if (error) throw new Error(`${error.message} (${error.code})`);
  return result;
}

let result = await request('tools/call', { name: 'count', arguments: { seconds: Number(seconds) } });
if (result.resultType === 'task') {
  const { taskId } = result;
  console.log(`the call became the task ${taskId}`);
  let task = result;
  while (task.status === 'working') {
    await new Promise((resolve) => setTimeout(resolve, task.pollIntervalMs ?? 1000));
    task = await request('tasks/get', { taskId });
    console.log(task.status, task.statusMessage ?? '');
  }
  // `input_required`, `failed` and `cancelled` have no result; a real client handles each.
  if (task.status !== 'completed') throw new Error(`the task is ${task.status}: ${JSON.stringify(task)}`);
  result = task.result;
}
console.log(result.content[0].text);
