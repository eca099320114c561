// The tasks of a TypeScript client whose proxy ends in the middle of them. What they are, and what is told of them,
// is in python/restart.py; here `work` is asked for while the proxy is away, too.
//
//     node restart.mjs URL FOLDER 1.x|2.x
//
// With 2.x they are those of ext-tasks, over 2026-07-28 and (`older`) over 2025-11-25.

import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { inspect } from 'node:util';
import { textOf } from './checks.mjs';
import { dispatcher, MODERN } from './dispatcher.mjs';

const [BRIEF, LONG] = [1.5, 8]; // seconds of work; restarts.py knows the second
const DELAYS = { ask: 1.5, late: 6 }; // seconds before a question
const POLL_MS = 100;
const TTL_MS = 60_000;
// By default the session's own stream is given up after two tries; on it ext-tasks is asked over 2025-11-25.
const reconnectionOptions = {
  initialReconnectionDelay: 200,
  maxReconnectionDelay: 500,
  reconnectionDelayGrowFactor: 1.5,
  maxRetries: 100,
};
const KEPT = 20; // connections, at most, that a client had to the proxy that ended
const KINDS = ['done', 'work', 'ask', 'late'];

const [url, folder, version] = process.argv.slice(2);

const say = (...words) => console.log(words.join(' '));
const isThere = (file) => existsSync(join(folder, file));

async function begins(name) {
  say('ready', name);
  await there('go');
}

async function there(file) {
  while (!isThere(file)) await sleep(20);
}

/** A task that failed, with what is known of why. */
class Failed extends Error {
  constructor(code, message) {
    super(message);
    this.code = code;
  }
}

const callOf = (kind, name) =>
  kind in DELAYS
    ? ['ask', { question: name, delay: DELAYS[kind] }]
    : ['slow', { seconds: kind === 'done' ? BRIEF : LONG, label: name }];

const isFarEnough = {
  done: ({ status }) => status === 'completed',
  // It has been heard of behind the handle.
  work: ({ statusMessage }) => Boolean(statusMessage),
  ask: ({ status }) => status === 'input_required',
  late: () => true,
};

/** Answers what is asked; it may be asked before the proxy goes, and answer the next one. */
async function answer({ message }) {
  await there('again');
  return { action: 'accept', content: { answer: `<${message}>` } };
}

/** Asks while the proxy is away, and until the next process answers. */
async function polled(task) {
  while (!isThere('again')) {
    await task.shown().catch(() => {});
    await sleep(POLL_MS);
  }
  await answered(task.shown);
}

/** On a busy machine a client may not have heard yet that a connection it keeps has ended: what is lost with one is asked again. */
async function answered(ask) {
  for (let left = KEPT; ; left -= 1) {
    try {
      return await ask();
    } catch (error) {
      if (left === 0 || !isLost(error)) throw error;
    }
    await sleep(POLL_MS);
  }
}

const isLost = (error) => error?.message === 'fetch failed' || (error?.cause !== undefined && isLost(error.cause));

async function run(kind, name, begin) {
  try {
    await begin(name, ...callOf(kind, name), async (task) => {
      while (!isFarEnough[kind](await task.shown())) await sleep(POLL_MS);
      say('working', name);
      await (kind === 'work' ? polled(task) : there('again'));
      try {
        say('ended', name, JSON.stringify(textOf(await answered(task.result))));
      } catch (error) {
        if (!(error instanceof Failed)) throw error;
        say('ended', name, error.code, JSON.stringify(error.message));
      }
    });
  } catch (error) {
    say('broken', name, JSON.stringify(inspect(error)));
  }
}

// --- the SDK 1.32 ----------------------------------------------------------------------------------

async function older() {
  const { Client } = await import('@modelcontextprotocol/sdk/client/index.js');
  const { StreamableHTTPClientTransport } = await import('@modelcontextprotocol/sdk/client/streamableHttp.js');
  const { CallToolResultSchema, CreateTaskResultSchema, ElicitRequestSchema } = await import(
    '@modelcontextprotocol/sdk/types.js'
  );

  async function begin(name, tool, args, use) {
    const client = new Client({ name: 'restart', version: '1.0.0' }, { capabilities: { elicitation: {} } });
    client.setRequestHandler(ElicitRequestSchema, ({ params }) => answer(params));
    const transport = new StreamableHTTPClientTransport(new URL(url));
    await client.connect(transport);
    await begins(name);
    const params = { name: tool, arguments: args };
    const options = { task: { ttl: TTL_MS } };
    const { task } = await client.request({ method: 'tools/call', params }, CreateTaskResultSchema, options);
    const { tasks } = client.experimental;
    const shown = () => tasks.getTask(task.taskId);
    await use({
      shown,
      result: async () => {
        try {
          return await tasks.getTaskResult(task.taskId, CallToolResultSchema);
        } catch (error) {
          throw (await shown()).status === 'failed' ? new Failed(error.code, error.message) : error;
        }
      },
    });
    await transport.terminateSession().catch(() => {});
    await client.close();
  }

  return KINDS.map((kind) => run(kind, `typescript1.32-${kind}`, begin));
}

// --- the client 2.x, with ext-tasks ------------------------------------------------------------------

async function newer() {
  const { Client, StreamableHTTPClientTransport } = await import('@modelcontextprotocol/client');
  const { createTaskSessionFromClient, toolDeclarationFromMcpTool } = await import(
    '@modelcontextprotocol/ext-tasks/client'
  );
  const clientInfo = { name: 'restart', version: '1.0.0' };
  const capabilities = { elicitation: {} };

  async function connected(mode) {
    const client = new Client(clientInfo, { capabilities, versionNegotiation: { mode } });
    client.setRequestHandler('elicitation/create', ({ params }) => answer(params));
    await client.connect(new StreamableHTTPClientTransport(new URL(url), { reconnectionOptions }));
    return client;
  }

  async function follow(client, session, execution, use) {
    assert.equal(execution.kind, 'task', 'the call was answered at once');
    // It asks by itself else, and ends with the first request that finds no proxy.
    let reference;
    await execution.handoff((given) => {
      reference = given;
    });
    await use({
      shown: () => session.task(execution.handle.taskId).snapshot(),
      result: async () => {
        const { outcome } = await (await session.resumeTask(reference)).settle();
        if (outcome.status !== 'completed') throw new Failed(String(outcome.error?.code), outcome.error?.message);
        return outcome.result;
      },
    });
    await session.close();
    await client.close();
  }

  async function begin(name, tool, args, use) {
    const client = await connected('auto');
    const session = createTaskSessionFromClient(client, {
      endpointId: 'restart',
      rawDispatch: dispatcher(url),
      v2RequestFraming: { protocolVersion: MODERN, clientInfo, clientCapabilities: capabilities },
      onInputRequest: ({ params }) => answer(params),
    });
    await begins(name);
    await follow(client, session, await session.callTool(tool, args), use);
  }

  async function beginOlder(name, tool, args, use) {
    const client = await connected('legacy');
    const declared = (await client.listTools()).tools.find((each) => each.name === tool);
    const session = createTaskSessionFromClient(client, { endpointId: 'restart' });
    await begins(name);
    const execution = await session.callTool(tool, args, {
      declaration: toolDeclarationFromMcpTool(declared),
      task: { preference: 'prefer', retentionMs: TTL_MS },
    });
    await follow(client, session, execution, use);
  }

  return [
    ...KINDS.map((kind) => run(kind, `typescript-${kind}`, begin)),
    ...KINDS.map((kind) => run(kind, `typescript-older-${kind}`, beginOlder)),
  ];
}

// A client whose proxy is gone may fail at more than what it asks for.
process.on('unhandledRejection', () => {});

await Promise.all(await (version === '1.x' ? older() : newer()));
process.exit(0);
