// An ordinary MCP server of the 2025-11-25 revision: Streamable HTTP with sessions, or a process that is spoken to over
// stdin and stdout, everything synchronous. It knows
// nothing of tasks, of MRTR or of the 2026-07-28 revision; a tool that needs an answer asks for it in mid-call.
// It offers what the conformance suite calls by name.
//
//   node legacy-server.mjs [--port N | --stdio] [--hard]
//
// --hard: as many real servers do, ask on the session's standalone GET stream (no relatedRequestId), and announce a
// changed list only to the session whose call changed it.

import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import { createMcpExpressApp } from '@modelcontextprotocol/sdk/server/express.js';
import { Server } from '@modelcontextprotocol/sdk/server/index.js';
import { StdioServerTransport } from '@modelcontextprotocol/sdk/server/stdio.js';
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import {
  CallToolRequestSchema, CompleteRequestSchema, CreateMessageResultSchema, ElicitResultSchema, GetPromptRequestSchema,
  ListPromptsRequestSchema, ListResourcesRequestSchema, ListResourceTemplatesRequestSchema, ListRootsResultSchema,
  ListToolsRequestSchema, ReadResourceRequestSchema, SubscribeRequestSchema, UnsubscribeRequestSchema
} from '@modelcontextprotocol/sdk/types.js';

const { values: flags } = parseArgs({
  options: {
    port: { type: 'string', default: '0' },
    stdio: { type: 'boolean', default: false },
    hard: { type: 'boolean', default: false }
  }
});

const PNG = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg==';
const WAV = 'UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA=';
const image = { type: 'image', data: PNG, mimeType: 'image/png' };
const embedded = (uri, text, mimeType = 'text/plain') => ({ type: 'resource', resource: { uri, mimeType, text } });

const text = value => ({ content: [{ type: 'text', text: value }] });
const object = (properties = {}, required = Object.keys(properties)) => ({ type: 'object', properties, required });
const string = { type: 'string' };
const boolean = { type: 'boolean' };

/** A failure of the request itself: a JSON-RPC error. Anything else a tool throws becomes an isError result. */
class RpcError extends Error {
  constructor(code, message, data) {
    super(message);
    Object.assign(this, { code, data });
  }
}

// ---- asking the client, in mid-call ---------------------------------------------------------------------------------

const RESULTS = {
  'elicitation/create': ElicitResultSchema,
  'sampling/createMessage': CreateMessageResultSchema,
  'roots/list': ListRootsResultSchema
};

/** Asks whatever the client declared; most SDK code does no more than this. */
function askAnyway({ server, extra }, method, params) {
  const request = { method, params };
  const options = { signal: extra.signal };
  return flags.hard
    ? server.request(request, RESULTS[method], options)
    : extra.sendRequest(request, RESULTS[method], options);
}

function ask(call, method, params) {
  const capability = method.split('/')[0];
  if (!call.server.getClientCapabilities()?.[capability]) throw new Error(`this client has no ${capability}`);
  return askAnyway(call, method, params);
}

const elicit = (call, message, properties, required) =>
  ask(call, 'elicitation/create', { message, requestedSchema: object(properties, required) });

async function sample(call, prompt, asker = ask) {
  const messages = [{ role: 'user', content: { type: 'text', text: prompt } }];
  const answer = await asker(call, 'sampling/createMessage', { messages, maxTokens: 100 });
  return answer.content.text;
}

const roots = async call => (await ask(call, 'roots/list', {})).roots;

// ---- tools ----------------------------------------------------------------------------------------------------------

const work = (call, ms) => sleep(ms, undefined, { signal: call.extra.signal });

async function progress(call, values) {
  const progressToken = call.extra._meta?.progressToken;
  for (const value of values) {
    if (value !== values[0]) await work(call, 50);
    if (progressToken === undefined) continue;
    const params = { progressToken, progress: value, total: 100, message: `Completed step ${value} of 100` };
    await call.extra.sendNotification({ method: 'notifications/progress', params });
  }
}

const log = (call, data) =>
  call.extra.sendNotification({ method: 'notifications/message', params: { level: 'info', logger: 'fixture', data } });

/** Lists that change at run time, shared by all sessions: a change adds or removes one entry. */
const shown = { tools: false, prompts: false };

async function change(call, list) {
  shown[list] = !shown[list];
  const audience = flags.hard || flags.stdio ? [call.server] : [...sessions.values()].map(session => session.server);
  const announce = server => (list === 'tools' ? server.sendToolListChanged() : server.sendPromptListChanged());
  await Promise.allSettled(audience.map(announce)); // a session may be closing
  return text(`${list} changed`);
}

// Exactly the schema that the suite wants to see again in tools/list.
const SCHEMA_2020_12 = {
  $schema: 'https://json-schema.org/draft/2020-12/schema',
  type: 'object',
  $defs: { address: { $anchor: 'addressDef', type: 'object', properties: { street: string, city: string } } },
  properties: {
    name: string,
    address: { $ref: '#/$defs/address' },
    contactMethod: { type: 'string', enum: ['phone', 'email'] },
    phone: string,
    email: string
  },
  allOf: [{ anyOf: [{ required: ['phone'] }, { required: ['email'] }] }],
  if: { properties: { contactMethod: { const: 'phone' } }, required: ['contactMethod'] },
  then: { required: ['phone'] },
  else: { required: ['email'] },
  additionalProperties: false
};

const FORM_DEFAULTS = {
  name: { type: 'string', description: 'User name', default: 'John Doe' },
  age: { type: 'integer', description: 'User age', default: 30 },
  score: { type: 'number', description: 'User score', default: 95.5 },
  status: { type: 'string', description: 'User status', enum: ['active', 'inactive', 'pending'], default: 'active' },
  verified: { type: 'boolean', description: 'Verification status', default: true }
};

const titled = (...pairs) => pairs.map(([value, title]) => ({ const: value, title }));
const FORM_ENUMS = {
  untitledSingle: { type: 'string', enum: ['option1', 'option2', 'option3'] },
  titledSingle: { type: 'string', oneOf: titled(['value1', 'First'], ['value2', 'Second'], ['value3', 'Third']) },
  legacyEnum: { type: 'string', enum: ['opt1', 'opt2', 'opt3'], enumNames: ['One', 'Two', 'Three'] },
  untitledMulti: {
    type: 'array', minItems: 1, maxItems: 3, items: { type: 'string', enum: ['option1', 'option2', 'option3'] }
  },
  titledMulti: {
    type: 'array', minItems: 1, maxItems: 3,
    items: { anyOf: titled(['value1', 'First'], ['value2', 'Second'], ['value3', 'Third']) }
  }
};

const outcome = ({ action, content }) => text(`action=${action}, content=${JSON.stringify(content ?? {})}`);
const confirm = async (call, message) => {
  const { action, content } = await elicit(call, message, { ok: boolean });
  return action === 'accept' && content.ok;
};

// name: [description, run(call), input schema]. The first one takes no arguments: the suite calls tools[0] with {}.
const TOOLS = {
  test_simple_text: ['Plain text', () => text('This is a simple text response for testing.')],
  test_image_content: ['An image', () => ({ content: [image] })],
  test_audio_content: ['Audio', () => ({ content: [{ type: 'audio', data: WAV, mimeType: 'audio/wav' }] })],
  test_embedded_resource: ['An embedded resource', () => ({
    content: [embedded('test://embedded-resource', 'This is an embedded resource content.')]
  })],
  test_multiple_content_types: ['Text, image and resource', () => ({
    content: [
      { type: 'text', text: 'Multiple content types test:' },
      image,
      embedded('test://mixed-content-resource', '{"test":"data","value":123}', 'application/json')
    ]
  })],
  test_tool_with_logging: ['Logs while it works', async call => {
    for (const stage of ['started', 'processing', 'completed']) {
      await log(call, `Tool ${stage}`);
      await work(call, 50);
    }
    return text('Logged');
  }],
  test_tool_with_progress: ['Reports progress', async call => {
    await progress(call, [0, 50, 100]);
    return text('Progress reported');
  }],
  test_error_handling: ['Always fails', () => {
    throw new Error('This tool intentionally returns an error for testing');
  }],
  test_reconnection: ['Closes its stream in mid-call', async call => {
    call.extra.closeSSEStream?.(); // the answer follows when the client comes back with Last-Event-ID
    await work(call, 100);
    return text('Reconnected');
  }],
  json_schema_2020_12_tool: ['JSON Schema 2020-12 features', call => text(JSON.stringify(call.args)), SCHEMA_2020_12],
  test_header_param: [
    'A parameter mirrored in a header',
    call => text(`region=${call.args.region}`),
    object({ region: { type: 'string', 'x-mcp-header': 'Region' } })
  ],

  test_sampling: [
    'Asks the model', async call => text(`LLM response: ${await sample(call, call.args.prompt)}`), object({ prompt: string })
  ],
  test_elicitation: [
    'Asks the user',
    async call => outcome(await elicit(call, call.args.message, { response: { ...string, description: 'Your answer' } })),
    object({ message: string })
  ],
  test_elicitation_sep1034_defaults: ['A form with defaults', async call =>
    outcome(await elicit(call, 'Please review and update the form fields with defaults', FORM_DEFAULTS, []))],
  test_elicitation_sep1330_enums: ['A form with choices', async call =>
    outcome(await elicit(call, 'Please select options from the enum fields', FORM_ENUMS, []))],

  test_missing_capability: ['Asks the model without looking whether it may', async call =>
    text(`LLM response: ${await sample(call, 'Are you there?', askAnyway)}`)],
  test_streaming_elicitation: ['Reports progress, then asks', async call => {
    await progress(call, [50]);
    return outcome(await elicit(call, 'Go on?', { ok: boolean }));
  }],
  test_logging_tool: ['Logs on both streams', async call => {
    await log(call, 'on the stream of the call');
    await call.server.sendLoggingMessage({ level: 'info', data: 'on the stream of the session' }, call.extra.sessionId);
    return text('Logged');
  }],
  test_trigger_tool_change: ['Changes the list of tools', call => change(call, 'tools')],
  test_trigger_prompt_change: ['Changes the list of prompts', call => change(call, 'prompts')],

  test_input_required_result_elicitation: ['Asks for a name', async call => {
    const { content } = await elicit(call, 'What is your name?', { name: string });
    return text(`Hello, ${content?.name ?? 'stranger'}!`);
  }],
  test_input_required_result_sampling: ['Asks the model', async call =>
    text(`Answer: ${await sample(call, 'What is the capital of France?')}`)],
  test_input_required_result_list_roots: ['Asks for the roots', async call =>
    text(`Roots: ${(await roots(call)).map(root => root.uri).join(', ')}`)],
  test_input_required_result_request_state: ['Asks for confirmation', async call =>
    text((await confirm(call, 'Please confirm')) ? 'state-ok' : 'not confirmed')],
  test_input_required_result_tampered_state: ['Asks for confirmation', async call =>
    text((await confirm(call, 'Please confirm')) ? 'integrity-ok' : 'not confirmed')],
  test_input_required_result_multiple_inputs: ['Asks three things at once', async call => {
    const [who, greeting, where] = await Promise.all([
      elicit(call, 'What is your name?', { name: string }), sample(call, 'Generate a greeting'), roots(call)
    ]);
    return text(`${greeting} ${who.content?.name}, ${where.length} roots`);
  }],
  test_input_required_result_multi_round: ['Asks twice, one after the other', async call => {
    const first = await elicit(call, 'Step 1: What is your name?', { name: string });
    const second = await elicit(call, 'Step 2: What is your favorite color?', { color: string });
    return text(`${first.content?.name} likes ${second.content?.color}`);
  }],
  test_input_required_result_capabilities: ['Asks only what the client declared', async call => {
    const { elicitation, sampling } = call.server.getClientCapabilities() ?? {};
    const answers = await Promise.all([
      elicitation && elicit(call, 'A value?', { value: string }), sampling && sample(call, 'Sample request')
    ]);
    return text(`${answers.filter(Boolean).length} answers`);
  }],

  greet: ['Greets at once', call => text(`Hello, ${call.args.name}!`), object({ name: string })],
  slow_compute: [
    'Works for some seconds',
    async call => {
      await work(call, (call.args.seconds ?? 0) * 1000);
      return text(`Computed ${call.args.label ?? ''} in ${call.args.seconds ?? 0} s`);
    },
    object({ seconds: { type: 'number' }, label: string }, ['seconds'])
  ],
  failing_job: ['Works for a second and reports an error', async call => {
    await work(call, 1000);
    return { ...text('The job failed'), isError: true };
  }],
  protocol_error_job: ['Works for a second and breaks down', async call => {
    await work(call, 1000);
    throw new RpcError(-32050, 'The worker broke down', { worker: 7 });
  }],
  confirm_delete: [
    'Asks before it deletes',
    async call => {
      const { content } = await elicit(call, `Delete ${call.args.filename}?`, { confirm: boolean });
      return text(content?.confirm ? `Deleted ${call.args.filename}` : `Kept ${call.args.filename}`);
    },
    object({ filename: string })
  ],
  multi_input: ['Asks two things at once', async call => {
    const [who, sure] = await Promise.all([
      elicit(call, 'What is your name?', { name: string }), elicit(call, 'Are you sure?', { confirm: boolean })
    ]);
    return text(`${who.content?.name}: ${sure.content?.confirm}`);
  }],
  test_tool_with_task: ['Asks for a name, then works for a while', async call => {
    const { content } = await elicit(call, 'What is your name?', { name: string });
    await work(call, 1200);
    return text(`Done for ${content?.name}`);
  }]
};

const ADDED_TOOL = ['Comes and goes', () => text('Still here')];

async function callTool(call, name) {
  const tool = name === 'added_tool' && shown.tools ? ADDED_TOOL : Object.hasOwn(TOOLS, name) && TOOLS[name];
  if (!tool) throw new RpcError(-32602, `Unknown tool: ${name}`);
  try {
    return await tool[1](call);
  } catch (error) {
    if (error instanceof RpcError) throw error;
    return { ...text(error.message), isError: true };
  }
}

// ---- prompts and resources ------------------------------------------------------------------------------------------

const says = (...contents) => ({ messages: contents.map(content => ({ role: 'user', content })) });
const line = value => ({ type: 'text', text: value });

// name: [description, get(call), argument names]
const PROMPTS = {
  test_simple_prompt: ['A simple prompt', () => says(line('This is a simple prompt for testing.'))],
  test_prompt_with_arguments: [
    'A prompt with arguments',
    ({ args }) => says(line(`Prompt with arguments: arg1='${args.arg1}', arg2='${args.arg2}'`)),
    ['arg1', 'arg2']
  ],
  test_prompt_with_embedded_resource: [
    'A prompt with a resource',
    ({ args }) => says(embedded(args.resourceUri, 'Embedded resource content.'), line('Please process the resource above.')),
    ['resourceUri']
  ],
  test_prompt_with_image: ['A prompt with an image', () => says(image, line('Please analyze the image above.'))],
  test_input_required_result_prompt: ['A prompt that asks first', async call => {
    const { content } = await elicit(call, 'What context should the prompt use?', { context: string });
    return says(line(`Context: ${content?.context}`));
  }]
};
const ADDED_PROMPT = ['Comes and goes', () => says(line('Still here'))];

const RESOURCES = [
  { uri: 'test://static-text', name: 'static-text', mimeType: 'text/plain', text: 'The static text resource.' },
  { uri: 'test://static-binary', name: 'static-binary', mimeType: 'image/png', blob: PNG },
  { uri: 'test://watched-resource', name: 'watched-resource', mimeType: 'text/plain', text: 'The watched resource.' }
];
const TEMPLATE = { uriTemplate: 'test://template/{id}/data', name: 'template', mimeType: 'application/json' };

function readResource(uri) {
  const id = /^test:\/\/template\/([^/]+)\/data$/.exec(uri)?.[1];
  const found = id
    ? { uri, mimeType: TEMPLATE.mimeType, text: JSON.stringify({ id, templateTest: true, data: `Data for ID: ${id}` }) }
    : RESOURCES.find(resource => resource.uri === uri);
  if (!found) throw new RpcError(-32002, 'Resource not found', { uri });
  const { name, ...contents } = found;
  return { contents: [contents] };
}

// ---- one server per session -----------------------------------------------------------------------------------------

function createServer() {
  const server = new Server({ name: 'legacy-fixture', version: '1.0.0' }, {
    instructions: 'Offers one tool, prompt or resource for everything the conformance suite asks for.',
    capabilities: {
      tools: { listChanged: true },
      prompts: { listChanged: true },
      resources: { subscribe: true, listChanged: true },
      logging: {},
      completions: {}
    }
  });
  const on = (schema, handler) => server.setRequestHandler(schema, ({ params }, extra) => handler(params ?? {}, extra));
  const call = (params, extra) => ({ server, extra, args: params.arguments ?? {} });

  on(ListToolsRequestSchema, () => ({
    tools: Object.entries({ ...TOOLS, ...(shown.tools && { added_tool: ADDED_TOOL }) })
      .map(([name, [description, , inputSchema = object()]]) => ({ name, description, inputSchema }))
  }));
  on(CallToolRequestSchema, (params, extra) => callTool(call(params, extra), params.name));

  on(ListPromptsRequestSchema, () => ({
    prompts: Object.entries({ ...PROMPTS, ...(shown.prompts && { added_prompt: ADDED_PROMPT }) })
      .map(([name, [description, , names = []]]) =>
        ({ name, description, arguments: names.map(name => ({ name, required: true })) }))
  }));
  on(GetPromptRequestSchema, (params, extra) => {
    const prompt = { ...PROMPTS, ...(shown.prompts && { added_prompt: ADDED_PROMPT }) }[params.name];
    if (!prompt) throw new RpcError(-32602, `Unknown prompt: ${params.name}`);
    return prompt[1](call(params, extra));
  });

  on(ListResourcesRequestSchema, () => ({ resources: RESOURCES.map(({ text, blob, ...listed }) => listed) }));
  on(ListResourceTemplatesRequestSchema, () => ({ resourceTemplates: [TEMPLATE] }));
  on(ReadResourceRequestSchema, params => readResource(params.uri));
  on(SubscribeRequestSchema, () => ({}));
  on(UnsubscribeRequestSchema, () => ({}));
  on(CompleteRequestSchema, ({ argument }) => {
    const values = ['paris', 'park', 'party', 'test'].filter(value => value.startsWith(argument.value));
    return { completion: { values, total: values.length, hasMore: false } };
  });
  return server;
}

/** Keeps a session's events, so that a broken stream can be resumed with Last-Event-ID. */
class EventLog {
  #events = [];

  async storeEvent(streamId, message) {
    const eventId = `${streamId}_${this.#events.length}`;
    this.#events.push({ eventId, streamId, message });
    return eventId;
  }

  async replayEventsAfter(lastEventId, { send }) {
    const index = this.#events.findIndex(event => event.eventId === lastEventId);
    if (index < 0) throw new Error('unknown event id');
    const { streamId } = this.#events[index];
    for (const event of this.#events.slice(index + 1)) {
      // A priming event has no message of its own.
      if (event.streamId === streamId && event.message.jsonrpc) await send(event.eventId, event.message);
    }
    return streamId;
  }
}

// ---- HTTP -----------------------------------------------------------------------------------------------------------

const sessions = new Map(); // session id -> { server, transport }

async function openSession() {
  const server = createServer();
  const transport = new StreamableHTTPServerTransport({
    sessionIdGenerator: randomUUID,
    eventStore: new EventLog(),
    retryInterval: 500,
    onsessioninitialized: id => void sessions.set(id, { server, transport })
  });
  server.onclose = () => sessions.delete(transport.sessionId);
  await server.connect(transport);
  return transport;
}

const refuse = (res, status, message) =>
  res.status(status).json({ jsonrpc: '2.0', error: { code: -32000, message }, id: null });

function listen() {
  const app = createMcpExpressApp(); // refuses foreign Host headers (DNS rebinding)
  app.all('/mcp', async (req, res) => {
    const id = req.headers['mcp-session-id'];
    if (id && !sessions.has(id)) return refuse(res, 404, 'Session not found');
    if (!id && req.body?.method !== 'initialize') return refuse(res, 400, 'Bad Request: no session');
    const transport = id ? sessions.get(id).transport : await openSession();
    await transport.handleRequest(req, res, req.body);
  });

  const listener = app.listen(Number(flags.port), '127.0.0.1', error => {
    if (error) throw error;
    console.log(`listening on http://127.0.0.1:${listener.address().port}/mcp`);
  });
}

if (flags.stdio) await createServer().connect(new StdioServerTransport());
else listen();
