// The client the suite starts in client mode: a 2026-07-28 client in front of the proxy, whose upstream is the scenario's
// own (2025-11-25) server. What the suite judges is therefore the proxy's upstream side.
//
//   DEFERRAL=path/to/binary DRIVER_DIR=scratch client-driver.mjs SERVER_URL     (the suite appends the URL)

import assert from 'node:assert/strict';
import { setTimeout as sleep } from 'node:timers/promises';
import { atUrl, startProxy, stop } from './processes.mjs';

const VERSION = '2026-07-28';
const scenario = process.env.MCP_CONFORMANCE_SCENARIO;
const upstream = process.argv.at(-1);

// The suite gives up after 30 s and kills its shell, not us.
setTimeout(() => fail(new Error('took too long')), 25_000).unref();

function fail(error) {
  console.error(error);
  process.exit(1); // kills the proxy too
}

const proxy = await startProxy(process.env.DEFERRAL, atUrl(upstream), process.env.DRIVER_DIR).catch(fail);
let lastId = 0;

/** One modern request; resolves with its result. */
async function request(method, params = {}, capabilities = {}) {
  const id = ++lastId;
  const _meta = {
    'io.modelcontextprotocol/protocolVersion': VERSION,
    'io.modelcontextprotocol/clientInfo': { name: 'conformance-driver', version: '1.0.0' },
    'io.modelcontextprotocol/clientCapabilities': capabilities
  };
  const response = await fetch(proxy.url, {
    method: 'POST',
    headers: {
      'Content-Type': 'application/json',
      Accept: 'application/json, text/event-stream',
      'MCP-Protocol-Version': VERSION,
      'Mcp-Method': method,
      ...(params.name && { 'Mcp-Name': params.name })
    },
    body: JSON.stringify({ jsonrpc: '2.0', id, method, params: { ...params, _meta } }),
    signal: AbortSignal.timeout(10_000)
  });
  const body = await response.text(); // an event stream ends with the response
  const lines = response.headers.get('content-type')?.startsWith('text/event-stream')
    ? body.split('\n').filter(line => line.startsWith('data:')).map(line => line.slice(5))
    : [body];
  const answer = lines.map(line => JSON.parse(line)).find(message => message.id === id);
  assert(answer?.result, `${method}: HTTP ${response.status} ${body}`);
  return answer.result;
}

/** Calls a tool and accepts every form it asks for, with the form's defaults. */
async function call(name, args, capabilities) {
  const params = { name, arguments: args };
  let result = await request('tools/call', params, capabilities);
  while (result.resultType === 'input_required') {
    const inputResponses = {};
    for (const [key, { method, params }] of Object.entries(result.inputRequests)) {
      assert.equal(method, 'elicitation/create');
      const fields = Object.entries(params.requestedSchema.properties);
      inputResponses[key] = {
        action: 'accept', content: Object.fromEntries(fields.map(([field, schema]) => [field, schema.default]))
      };
    }
    const { requestState } = result;
    result = await request('tools/call', { ...params, inputResponses, requestState }, capabilities);
  }
  assert.equal(result.resultType, 'complete');
  assert(!result.isError, JSON.stringify(result));
  return result.content[0].text;
}

const list = async () => (await request('tools/list')).tools;

const scenarios = {
  async initialize() {},
  async tools_call() {
    await list();
    assert.match(await call('add_numbers', { a: 5, b: 3 }), /8/);
  },
  async 'sse-retry'() {
    await list();
    assert.match(await call('test_reconnection', {}), /success/);
  },
  async 'json-schema-2020-12-preservation'() {
    const [focal, echo] = await list();
    await call(echo.name, { schema: focal.inputSchema });
  },
  async 'json-schema-ref-no-deref'() {
    const [tool] = await list();
    assert.match(JSON.stringify(tool.inputSchema), /"\$ref":"http/);
    await sleep(300); // time in which a reference might be followed
  },
  async 'elicitation-sep1034-client-defaults'() {
    await list();
    assert.match(await call('test_client_elicitation_defaults', {}, { elicitation: {} }), /John Doe/);
  }
};

try {
  await request('server/discover');
  await scenarios[scenario]();
} catch (error) {
  fail(error);
}
if (!(await stop(proxy))) console.error('the proxy ignored SIGTERM');
process.exit(0);
