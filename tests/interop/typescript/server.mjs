// A synchronous tool server on the official TypeScript SDK 1.x: Streamable HTTP, stateful sessions; or over stdio.
// Nothing in it knows about the proxy in front of it, and nothing about tasks unless it is told to.
// The tools are those of python/server.py.
//
//     node server.mjs [--port PORT]        # 0, the default, takes a free port and prints it
//                     [--stdio]            # a message a line, from the standard input to the standard output
//                     [--labels FILE]      # which calls were cancelled is told by all processes that share the file
//                     [--resumable]        # with an event store: priming events, `retry`, Last-Event-ID; and with a
//                                          # comment at the head of each event stream
//                     [--tasks]            # with the SDK's own tasks of 2025-11-25

import { randomUUID } from 'node:crypto';
import { appendFileSync, existsSync, readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { parseArgs } from 'node:util';
import {
  InMemoryTaskMessageQueue,
  InMemoryTaskStore,
} from '@modelcontextprotocol/sdk/experimental/tasks/stores/in-memory.js';
import { Server } from '@modelcontextprotocol/sdk/server/index.js';
import { StdioServerTransport } from '@modelcontextprotocol/sdk/server/stdio.js';
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import {
  CallToolRequestSchema,
  CreateMessageResultSchema,
  ElicitResultSchema,
  GetPromptRequestSchema,
  isInitializeRequest,
  ListPromptsRequestSchema,
  ListResourcesRequestSchema,
  ListResourceTemplatesRequestSchema,
  ListRootsResultSchema,
  ListToolsRequestSchema,
  McpError,
  ReadResourceRequestSchema,
} from '@modelcontextprotocol/sdk/types.js';

const STEP = 0.2; // seconds between two progress reports
const RETRY_MS = 100; // how soon a client may come back for the rest of a stream

const { values: options } = parseArgs({
  options: {
    port: { type: 'string', default: '0' },
    stdio: { type: 'boolean', default: false },
    labels: { type: 'string' },
    resumable: { type: 'boolean', default: false },
    tasks: { type: 'boolean', default: false },
  },
});

const cancelledLabels = [];

function rememberCancelled(label) {
  cancelledLabels.push(label);
  if (options.labels) appendFileSync(options.labels, `${label}\n`);
}

const allCancelled = () =>
  options.labels && existsSync(options.labels)
    ? readFileSync(options.labels, 'utf8').trim().split('\n')
    : cancelledLabels;

const sleep = (seconds, signal) =>
  new Promise((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer);
      reject(new Error('cancelled'));
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener('abort', stop);
      resolve();
    }, seconds * 1000);
    signal?.addEventListener('abort', stop, { once: true });
  });

/** Sleeps, reporting progress each STEP; remembers the label when the call is cancelled. */
async function work({ seconds = 0, label = 'work' }, extra) {
  const steps = Math.max(1, Math.round(seconds / STEP));
  const progressToken = extra._meta?.progressToken;
  try {
    for (let step = 1; step <= steps; step++) {
      await sleep(seconds / steps, extra.signal);
      if (progressToken !== undefined) {
        const params = { progressToken, progress: step, total: steps, message: `${label} ${step}/${steps}` };
        await extra.sendNotification({ method: 'notifications/progress', params });
      }
    }
  } catch (error) {
    if (extra.signal.aborted) rememberCancelled(label);
    throw error;
  }
}

const text = (value) => ({ content: [{ type: 'text', text: value }] });
const failure = (value) => ({ ...text(value), isError: true });
const structured = (value) => ({ ...text(String(value)), structuredContent: { result: value } });

const schema = (properties, required = []) => ({ type: 'object', properties, required });
const string = { type: 'string' };
const number = { type: 'number' };
const integer = { type: 'integer' };

const form = (message) => ({
  method: 'elicitation/create',
  params: { message, requestedSchema: schema({ answer: string }, ['answer']) },
});

const tools = {
  add: {
    description: 'Add two numbers.',
    inputSchema: schema({ a: integer, b: integer }, ['a', 'b']),
    outputSchema: schema({ result: integer }, ['result']),
    call: async ({ a, b }) => structured(a + b),
  },
  slow: {
    description: 'Work for some seconds, reporting progress.',
    inputSchema: schema({ seconds: number, label: string, fail: { type: 'boolean' } }, ['seconds']),
    outputSchema: schema({ result: string }, ['result']),
    call: async (args, extra) => {
      const label = args.label ?? 'work';
      const params = { level: 'info', data: `slow ${label} started` };
      await extra.sendNotification({ method: 'notifications/message', params });
      await work(args, extra);
      return args.fail ? failure(`slow ${label} failed`) : structured(`slow ${label} is done`);
    },
  },
  broken: {
    description: 'Work for some seconds, then fail as a tool fails: with isError.',
    inputSchema: schema({ seconds: number, label: string }),
    call: async (args, extra) => {
      await work(args, extra);
      return failure(`${args.label ?? 'work'} is broken`);
    },
  },
  rpc_error: {
    description: 'Work for some seconds, then fail as a request fails: with a JSON-RPC error.',
    inputSchema: schema({ seconds: number }),
    call: async ({ seconds = 0 }) => {
      await sleep(seconds);
      throw new McpError(-31001, 'the database is down', { retry: false });
    },
  },
  ask: {
    description: 'Ask the user a question after a delay, and work for some seconds with the answer.',
    inputSchema: schema({ question: string, delay: number, rest: number }, ['question']),
    call: async ({ question, delay = 0, rest = 0 }, extra) => {
      await sleep(delay, extra.signal);
      const reply = await extra.sendRequest(form(question), ElicitResultSchema);
      await sleep(rest, extra.signal);
      return text(`${question} ${reply.action === 'accept' ? reply.content.answer : reply.action}`);
    },
  },
  dialogue: {
    description: 'Ask the user one question after the other, with a delay before each.',
    inputSchema: schema({ questions: { type: 'array', items: string }, delay: number }, ['questions']),
    call: async ({ questions, delay = 0 }, extra) => {
      const said = [];
      for (const question of questions) {
        await sleep(delay, extra.signal);
        const reply = await extra.sendRequest(form(question), ElicitResultSchema);
        said.push(`${question} ${reply.content.answer}`);
      }
      return text(said.join(' '));
    },
  },
  survey: {
    description: "Ask the user, unless there is nobody, the model and the client's roots after a delay, all at once.",
    inputSchema: schema({ topic: string, delay: number, nobody: { type: 'boolean' } }, ['topic']),
    call: async ({ topic, delay = 0, nobody = false }, extra) => {
      await sleep(delay, extra.signal);
      const said = { type: 'text', text: `${topic}, model?` };
      const params = { messages: [{ role: 'user', content: said }], maxTokens: 10 };
      const [user, model, { roots }] = await Promise.all([
        nobody ? { content: { answer: 'nobody' } } : extra.sendRequest(form(`${topic}, user?`), ElicitResultSchema),
        extra.sendRequest({ method: 'sampling/createMessage', params }, CreateMessageResultSchema),
        extra.sendRequest({ method: 'roots/list' }, ListRootsResultSchema),
      ]);
      return text(`${topic} ${user.content.answer} ${model.content.text} ${roots[0].uri}`);
    },
  },
  aside: {
    description: "Ask the user a question after a delay, on the session's own stream.",
    inputSchema: schema({ question: string, delay: number }, ['question']),
    call: async ({ question, delay = 0 }, extra, server) => {
      await sleep(delay, extra.signal);
      const reply = await server.elicitInput(form(question).params);
      return text(`${question} ${reply.content.answer}`);
    },
  },
  big: {
    description: 'Return a text of that many KiB, after some seconds.',
    inputSchema: schema({ kib: integer, seconds: number }, ['kib']),
    call: async ({ kib, seconds = 0 }, extra) => {
      await sleep(seconds, extra.signal);
      return text('0123456789abcdef'.repeat(64 * kib));
    },
  },
  cancelled: {
    description: 'The labels of the calls that were cancelled while they worked.',
    inputSchema: schema({}),
    call: async () => text(JSON.stringify(allCancelled())),
  },
  touch: {
    description: 'Say that the list of tools has changed.',
    inputSchema: schema({}),
    call: async (_args, _extra, server) => {
      await server.sendToolListChanged();
      return text('touched');
    },
  },
};

if (options.resumable) {
  tools.parting = {
    description: 'Close the stream of the call, and answer to whoever comes back for the rest.',
    inputSchema: schema({ seconds: number }),
    call: async ({ seconds = 0.5 }, extra) => {
      const method = 'notifications/message';
      const say = (data) => extra.sendNotification({ method, params: { level: 'info', data } });
      await say('before the parting');
      extra.closeSSEStream();
      await sleep(seconds, extra.signal);
      await say('after the parting');
      return text('together again');
    },
  };
}

/** Every event of one session, numbered. */
function eventStore() {
  const events = []; // [stream, message]
  return {
    storeEvent: async (stream, message) => `event-${events.push([stream, message])}`,
    getStreamIdForEventId: async (id) => events[Number(id.slice(6)) - 1]?.[0],
    replayEventsAfter: async (id, { send }) => {
      const last = Number(id.slice(6));
      const [stream] = events[last - 1];
      for (const [place, [name, message]] of [...events.entries()].slice(last)) {
        if (name === stream && message.jsonrpc !== undefined) await send(`event-${place + 1}`, message);
      }
      return stream;
    },
  };
}

// --- tasks of its own ----------------------------------------------------------------------------

const TASK_TOOLS = ['ask', 'big', 'slow'];

/** As a server that knows tasks does it: a handle at once, questions through the task. */
async function runTask({ name, arguments: args, task: { ttl } }, extra, server) {
  const task = await extra.taskStore.createTask({ ttl: ttl ?? 60_000, pollInterval: 200 });
  const { taskId } = task;
  const inTask = {
    ...extra,
    _meta: undefined,
    sendNotification: async () => {},
    sendRequest: (request, result) => extra.sendRequest(request, result, { relatedTask: { taskId } }),
  };
  tools[name]
    .call(args, inTask, server)
    .then((result) => extra.taskStore.storeTaskResult(taskId, result.isError ? 'failed' : 'completed', result))
    .catch(() => {}); // cancelled
  return { task };
}

function newServer() {
  const own = options.tasks ? { tasks: { list: {}, cancel: {}, requests: { tools: { call: {} } } } } : {};
  const server = new Server(
    { name: 'interop-typescript', version: '1.0.0' },
    {
      capabilities: { tools: { listChanged: true }, resources: {}, prompts: {}, logging: {}, ...own },
      instructions: 'Tools for the interop test.',
      ...(options.tasks && { taskStore: new InMemoryTaskStore(), taskMessageQueue: new InMemoryTaskMessageQueue() }),
    },
  );
  const execution = (name) => options.tasks && TASK_TOOLS.includes(name) && { execution: { taskSupport: 'optional' } };
  server.setRequestHandler(ListToolsRequestSchema, async () => ({
    tools: Object.entries(tools).map(([name, { call, ...tool }]) => ({ name, ...tool, ...execution(name) })),
  }));
  server.setRequestHandler(CallToolRequestSchema, async ({ params }, extra) => {
    const tool = Object.hasOwn(tools, params.name) ? tools[params.name] : undefined;
    if (tool === undefined) throw new McpError(-32602, `Unknown tool: ${params.name}`);
    if (options.tasks && params.task && TASK_TOOLS.includes(params.name)) return runTask(params, extra, server);
    return tool.call(params.arguments ?? {}, extra, server);
  });
  server.setRequestHandler(ListResourcesRequestSchema, async () => ({
    resources: [{ uri: 'interop://greeting', name: 'greeting', mimeType: 'text/plain' }],
  }));
  server.setRequestHandler(ListResourceTemplatesRequestSchema, async () => ({
    resourceTemplates: [{ uriTemplate: 'interop://note/{name}', name: 'note', mimeType: 'text/plain' }],
  }));
  server.setRequestHandler(ReadResourceRequestSchema, async ({ params: { uri } }) => {
    const note = /^interop:\/\/note\/(.+)$/.exec(uri);
    if (uri !== 'interop://greeting' && note === null) throw new McpError(-32002, 'Resource not found', { uri });
    const content = note === null ? 'Hello from a resource.' : `The note ${note[1]}.`;
    return { contents: [{ uri, mimeType: 'text/plain', text: content }] };
  });
  server.setRequestHandler(ListPromptsRequestSchema, async () => ({
    prompts: [
      { name: 'review', description: 'Ask for a review.', arguments: [{ name: 'subject', required: true }] },
    ],
  }));
  server.setRequestHandler(GetPromptRequestSchema, async ({ params }) => ({
    messages: [{ role: 'user', content: { type: 'text', text: `Please review ${params.arguments.subject}.` } }],
  }));
  return server;
}

/**
 * Writes a comment at the head of an event stream, as servers do that want their headers sent at once. One whose length
 * is announced is written as it is: the SDK writes an answer whole to those who know no priming event.
 */
function withComment(response) {
  const { writeHead } = response;
  response.writeHead = (...args) => {
    writeHead.apply(response, args);
    const words = args.flatMap((arg) => (arg instanceof Object ? Object.entries(arg) : [])).flat(2).join(' ').toLowerCase();
    if (words.includes('text/event-stream') && !words.includes('content-length')) {
      response.write(': the stream is open\n\n');
    }
    return response;
  };
  return response;
}

const sessions = new Map();

async function handle(request, response) {
  if (new URL(request.url, 'http://localhost').pathname !== '/mcp') {
    response.writeHead(404).end();
    return;
  }
  let body;
  if (request.method === 'POST') {
    const chunks = [];
    for await (const chunk of request) chunks.push(chunk);
    body = JSON.parse(Buffer.concat(chunks).toString('utf8'));
  }
  const id = request.headers['mcp-session-id'];
  let transport = id === undefined ? undefined : sessions.get(id);
  if (transport === undefined) {
    if (id !== undefined || !isInitializeRequest(body)) {
      const [status, message] = id === undefined ? [400, 'No session'] : [404, 'Session not found'];
      response.writeHead(status, { 'content-type': 'application/json' });
      response.end(JSON.stringify({ jsonrpc: '2.0', id: null, error: { code: -32000, message } }));
      return;
    }
    transport = new StreamableHTTPServerTransport({
      sessionIdGenerator: randomUUID,
      ...(options.resumable && { eventStore: eventStore(), retryInterval: RETRY_MS }),
      onsessioninitialized: (session) => sessions.set(session, transport),
    });
    transport.onclose = () => sessions.delete(transport.sessionId);
    await newServer().connect(transport);
  }
  await transport.handleRequest(request, options.resumable ? withComment(response) : response, body);
}

if (options.stdio) {
  await newServer().connect(new StdioServerTransport());
} else {
  const http = createServer((request, response) => {
    handle(request, response).catch((error) => {
      console.error(error);
      if (!response.headersSent) response.writeHead(500);
      response.end();
    });
  });
  http.listen(Number(options.port), '127.0.0.1', () => {
    console.log(`listening on http://127.0.0.1:${http.address().port}/mcp`);
  });
}
