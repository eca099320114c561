// The checks made with the official TypeScript client 2.x, and with ext-tasks over it.
//
//     node client.mjs URL [--groups modern,core,tasks,questions,...] [--only SUBSTRING] [--revision REVISION]
//
// URL is an MCP endpoint that speaks 2026-07-28 in front of python/server.py or typescript/server.mjs.
// `core` without `modern` also holds against such a server itself, over the 2025-11-25 fall-back.
// Prints `ok NAME` or `FAIL NAME: why` for each check, and `done N` at the end.

import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import {
  createTaskSessionFromClient,
  resultFromTaskOutcome,
  toolDeclarationFromMcpTool,
} from '@modelcontextprotocol/ext-tasks/client';
import { check, failure, isDatabaseError, label, runChecks, textOf } from './checks.mjs';
import { dispatcher, MODERN } from './dispatcher.mjs';

const TASKS = 'io.modelcontextprotocol/tasks';
const CHECK_SECONDS = 60; // as in ../python/client.py
const BLOCK = '0123456789abcdef'.repeat(64); // the KiB of which `big` is made
const ASKING = ['aside', 'ask', 'dialogue', 'survey'];
const TOOLS = ['add', 'big', 'broken', 'cancelled', 'rpc_error', 'slow', 'touch', ...ASKING].sort();

const { values: options, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    groups: { type: 'string', default: 'modern,core,tasks' },
    only: { type: 'string', default: '' },
    revision: { type: 'string', default: '2025-11-25' }, // the newest with a handshake that the other side speaks
  },
});
const url = positionals[0];
if (url === undefined) {
  console.error('usage: node client.mjs URL [--groups LIST] [--only SUBSTRING]');
  process.exit(2);
}

const callTool = (client, name, args = {}, requestOptions) =>
  client.callTool({ name, arguments: args }, requestOptions);

async function withClient(use, { mode = 'auto', capabilities = {} } = {}) {
  const client = new Client(
    { name: 'interop', version: '1.0.0' },
    { capabilities, versionNegotiation: { mode } },
  );
  await client.connect(new StreamableHTTPClientTransport(new URL(url)));
  try {
    return await use(client);
  } finally {
    await client.close();
  }
}

const cancelledLabels = async (client) => JSON.parse(textOf(await callTool(client, 'cancelled')));

/** The labels the server saw cancelled, once `wanted` is among them. */
async function waitCancelled(client, wanted) {
  const deadline = Date.now() + 5000;
  for (;;) {
    const labels = await cancelledLabels(client);
    if (labels.includes(wanted)) return labels;
    assert.ok(Date.now() < deadline, `the server's work ${wanted} was not cancelled within 5 s`);
    await sleep(100);
  }
}

// --- connecting ----------------------------------------------------------------------------------

check('modern', 'auto-mode-negotiates-2026-07-28', () =>
  withClient(async (client) => {
    assert.equal(client.getNegotiatedProtocolVersion(), MODERN, 'the negotiated version');
    assert.equal(client.getProtocolEra(), 'modern', 'the era');
    const capabilities = client.getServerCapabilities();
    assert.deepEqual(capabilities.extensions?.[TASKS], {}, 'the value of the tasks extension');
    for (const name of ['tools', 'prompts', 'resources']) assert.ok(capabilities[name], `no ${name} capability`);
    assert.equal(client.getInstructions(), 'Tools for the interop test.', 'instructions');
  }),
);

check('modern', 'pinned-mode', () =>
  withClient(async (client) => assert.equal(textOf(await callTool(client, 'add', { a: 2, b: 3 })), '5'), {
    mode: { pin: MODERN },
  }),
);

check('legacy', 'legacy-mode', () =>
  withClient(
    async (client) => {
      assert.equal(client.getNegotiatedProtocolVersion(), options.revision, 'the negotiated version');
      assert.equal(textOf(await callTool(client, 'add', { a: 2, b: 3 })), '5', 'the text');
      const result = await callTool(client, 'slow', { seconds: 0.8, label: 'legacy' });
      assert.equal(textOf(result), 'slow legacy is done', 'the text of a slow call');
    },
    { mode: 'legacy' },
  ),
);

// --- lists, resources, prompts -------------------------------------------------------------------

check('core', 'lists', () =>
  withClient(async (client) => {
    const { tools } = await client.listTools();
    assert.deepEqual(tools.map((tool) => tool.name).sort(), TOOLS, 'the tools');
    const add = tools.find((tool) => tool.name === 'add');
    assert.equal(add.description, 'Add two numbers.', 'a description');
    assert.deepEqual([...add.inputSchema.required].sort(), ['a', 'b'], 'the required arguments of add');
    assert.equal(add.outputSchema.properties.result.type, 'integer', 'the output of add');
    const { prompts } = await client.listPrompts();
    assert.deepEqual(prompts.map((prompt) => prompt.name), ['review'], 'the prompts');
    const { resources } = await client.listResources();
    assert.deepEqual(resources.map((resource) => resource.uri), ['interop://greeting'], 'the resources');
    const { resourceTemplates } = await client.listResourceTemplates();
    assert.deepEqual(resourceTemplates.map((each) => each.uriTemplate), ['interop://note/{name}'], 'the templates');
  }),
);

check('core', 'read-resource', () =>
  withClient(async (client) => {
    for (const [uri, text] of [
      ['interop://greeting', 'Hello from a resource.'],
      ['interop://note/alpha', 'The note alpha.'],
    ]) {
      const { contents } = await client.readResource({ uri });
      assert.deepEqual(contents.map((each) => [each.uri, each.text]), [[uri, text]], 'the contents');
    }
  }),
);

check('core', 'get-prompt', () =>
  withClient(async (client) => {
    const { messages } = await client.getPrompt({ name: 'review', arguments: { subject: 'the plan' } });
    assert.deepEqual(
      messages.map((message) => [message.role, message.content.text]),
      [['user', 'Please review the plan.']],
      'the messages',
    );
  }),
);

// --- calls without the extension -----------------------------------------------------------------

check('core', 'fast-call', () =>
  withClient(async (client) => {
    const result = await callTool(client, 'add', { a: Number.MAX_SAFE_INTEGER - 1, b: 1 });
    assert.equal(textOf(result), '9007199254740991', 'the text');
    assert.deepEqual(result.structuredContent, { result: 9007199254740991 }, 'the structured content');
  }),
);

check('core', 'slow-call-is-held', () =>
  withClient(async (client) => {
    const name = label();
    const began = performance.now();
    const result = await callTool(client, 'slow', { seconds: 1, label: name });
    const took = performance.now() - began;
    assert.equal(textOf(result), `slow ${name} is done`, 'the text');
    assert.ok(took >= 900, `answered after ${took} ms, before the work of 1 s was done`);
  }),
);

check('core', 'held-calls-do-not-mix', () =>
  withClient(async (client) => {
    const names = Array.from({ length: 8 }, label);
    const results = await Promise.all(
      names.map((name, place) => callTool(client, 'slow', { seconds: 1.2 - 0.1 * place, label: name })),
    );
    assert.deepEqual(results.map(textOf), names.map((name) => `slow ${name} is done`), 'the texts');
  }),
);

check('core', 'progress-of-a-held-call', () =>
  withClient(async (client) => {
    const name = label();
    const seen = [];
    const onprogress = ({ progress, total, message }) => seen.push([progress, total, message]);
    const result = await callTool(client, 'slow', { seconds: 1, label: name }, { onprogress });
    assert.equal(textOf(result), `slow ${name} is done`, 'the text');
    const want = [1, 2, 3, 4, 5].map((step) => [step, 5, `${name} ${step}/5`]);
    assert.ok(seen.length >= 4, `only ${seen.length} progress notifications`);
    assert.deepEqual(seen, want.slice(0, seen.length), 'progress');
  }),
);

check('core', 'progress-keeps-a-held-call-alive', () =>
  withClient(async (client) => {
    const name = label();
    const requestOptions = { timeout: 900, resetTimeoutOnProgress: true, onprogress: () => {} };
    const result = await callTool(client, 'slow', { seconds: 2, label: name }, requestOptions);
    assert.equal(textOf(result), `slow ${name} is done`, 'the text');
  }),
);

check('core', 'tool-error-of-a-held-call', () =>
  withClient(async (client) => {
    for (const seconds of [0, 0.7]) {
      const name = label();
      const result = await callTool(client, 'broken', { seconds, label: name });
      assert.equal(result.isError, true, 'isError');
      assert.ok(textOf(result).endsWith(`${name} is broken`), `the text is ${textOf(result)}`);
    }
  }),
);

check('core', 'json-rpc-error-of-a-held-call', () =>
  withClient(async (client) => {
    for (const seconds of [0, 0.7]) isDatabaseError(await failure(callTool(client, 'rpc_error', { seconds })));
  }),
);

check('core', 'closing-a-held-call-cancels-the-work', () =>
  withClient(async (client) => {
    const [gone, kept] = [label(), label()];
    const other = callTool(client, 'slow', { seconds: 2, label: kept });
    const abort = new AbortController();
    const call = failure(callTool(client, 'slow', { seconds: 20, label: gone }, { signal: abort.signal }));
    await sleep(800);
    abort.abort();
    await call;
    const labels = await waitCancelled(client, gone);
    assert.ok(!labels.includes(kept), 'another call was cancelled too');
    assert.equal(textOf(await other), `slow ${kept} is done`, 'the other call');
  }),
);

check('core', 'large-result', () =>
  withClient(async (client) => {
    assert.ok(textOf(await callTool(client, 'big', { kib: 5120 })) === BLOCK.repeat(5120), 'the text differs');
    const held = await callTool(client, 'big', { kib: 5120, seconds: 0.8 });
    assert.ok(textOf(held) === BLOCK.repeat(5120), 'the text of a held call differs');
  }),
);

// --- subscriptions -------------------------------------------------------------------------------

check('modern', 'listen-opens-and-closes', () =>
  withClient(async (client) => {
    const subscription = await client.listen({ toolsListChanged: true });
    assert.ok(!subscription.honoredFilter.promptsListChanged, 'a filter that was not asked for');
    assert.equal(textOf(await callTool(client, 'add', { a: 1, b: 1 })), '2', 'a call beside it');
    await subscription.close();
    assert.equal(await subscription.closed, 'local', 'how it was closed');
    assert.equal(textOf(await callTool(client, 'add', { a: 1, b: 2 })), '3', 'a call after it');
  }),
);

check('extra', 'listen-hears-list-changed', () =>
  withClient(async (client) => {
    const offered = client.getServerCapabilities().tools?.listChanged === true;
    const heard = new Promise((resolve) => {
      client.setNotificationHandler('notifications/tools/list_changed', () => resolve(true));
    });
    const subscription = await client.listen({ toolsListChanged: true });
    assert.equal(subscription.honoredFilter.toolsListChanged ?? false, offered, 'the honoured filter');
    if (offered) {
      assert.equal(textOf(await callTool(client, 'touch')), 'touched', 'the text');
      assert.equal(await Promise.race([heard, sleep(5000, false)]), true, 'the notification within 5 s');
    }
    await subscription.close();
  }),
);

// --- tasks, with ext-tasks -----------------------------------------------------------------------

function withSession(use, { onInputRequest, capabilities = {} } = {}) {
  return withClient(
    async (client) => {
      const counts = {};
      const session = createTaskSessionFromClient(client, {
        endpointId: 'interop',
        rawDispatch: dispatcher(url, counts),
        v2RequestFraming: {
          protocolVersion: MODERN,
          clientInfo: { name: 'interop', version: '1.0.0' },
          clientCapabilities: capabilities,
        },
        ...(onInputRequest === undefined ? {} : { onInputRequest }),
      });
      try {
        return await use(session, client, counts);
      } finally {
        await session.close();
      }
    },
    { capabilities },
  );
}

async function startTask(session, tool, args) {
  const execution = await session.callTool(tool, args);
  assert.equal(execution.kind, 'task', `${tool} was answered at once, not with a task`);
  assert.ok(execution.handle.taskId.length >= 16, 'the task id is too short to be hard to guess');
  return execution;
}

check('tasks', 'fast-call-is-no-task', () =>
  withSession(async (session) => {
    let execution;
    // On a machine busy enough, even this may reach the threshold.
    for (let tries = 0; tries < 3 && execution?.kind !== 'immediate'; tries++) {
      execution = await session.callTool('add', { a: 2, b: 3 });
    }
    assert.equal(execution.kind, 'immediate', 'the kind');
    assert.equal(textOf(resultFromTaskOutcome((await execution.settle()).outcome)), '5', 'the text');
  }),
);

check('tasks', 'slow-call-becomes-a-task', () =>
  withSession(async (session, _client, counts) => {
    const name = label();
    const execution = await startTask(session, 'slow', { seconds: 2.5, label: name });
    const view = await session.task(execution.handle.taskId).snapshot();
    assert.equal(view.status, 'working', 'the status at once');
    const { outcome, lastTask } = await execution.settle();
    assert.equal(outcome.status, 'completed', 'the outcome');
    assert.equal(lastTask.taskId, execution.handle.taskId, 'the task id');
    assert.equal(textOf(outcome.result), `slow ${name} is done`, 'the text');
    assert.deepEqual(outcome.result.structuredContent, { result: `slow ${name} is done` }, 'structured content');
    // One of them is the snapshot above.
    assert.ok(counts['tasks/get'] >= 3, `only ${counts['tasks/get']} tasks/get`);
  }),
);

check('tasks', 'tasks-do-not-mix', () =>
  withSession(async (session) => {
    const names = Array.from({ length: 8 }, label);
    const executions = await Promise.all(
      names.map((name, place) => startTask(session, 'slow', { seconds: 2 - 0.1 * place, label: name })),
    );
    const settled = await Promise.all(executions.map((execution) => execution.settle()));
    const texts = settled.map(({ outcome }) => textOf(resultFromTaskOutcome(outcome)));
    assert.deepEqual(texts, names.map((name) => `slow ${name} is done`), 'the texts');
  }),
);

check('tasks', 'resume-from-another-connection', async () => {
  const name = label();
  let reference;
  await withSession(async (session) => {
    const execution = await startTask(session, 'slow', { seconds: 2, label: name });
    await execution.handoff((serialized) => {
      reference = JSON.parse(JSON.stringify(serialized));
    });
    // A session closed in the same turn as the hand-over still cancels the task.
    await sleep(10);
  });
  await withSession(async (session) => {
    const execution = await session.resumeTask(reference);
    const { outcome } = await execution.settle();
    assert.equal(textOf(resultFromTaskOutcome(outcome)), `slow ${name} is done`, 'the text');
  });
});

check('tasks', 'tool-error-in-a-task', () =>
  withSession(async (session) => {
    const name = label();
    const execution = await startTask(session, 'broken', { seconds: 1, label: name });
    const { outcome } = await execution.settle();
    assert.equal(outcome.status, 'completed', "the outcome: a tool's error is a result");
    assert.equal(outcome.result.isError, true, 'isError');
    assert.ok(textOf(outcome.result).endsWith(`${name} is broken`), `the text is ${textOf(outcome.result)}`);
  }),
);

check('tasks', 'json-rpc-error-in-a-task', () =>
  withSession(async (session) => {
    const execution = await startTask(session, 'rpc_error', { seconds: 1 });
    const { outcome } = await execution.settle();
    assert.equal(outcome.status, 'failed', 'the outcome');
    isDatabaseError(outcome.error);
  }),
);

check('tasks', 'cancel-reaches-the-server', () =>
  withSession(async (session, client) => {
    const [gone, kept] = [label(), label()];
    const one = await startTask(session, 'slow', { seconds: 20, label: gone });
    const other = await startTask(session, 'slow', { seconds: 2.5, label: kept });
    await one.cancel();
    const labels = await waitCancelled(client, gone);
    assert.ok(!labels.includes(kept), "another task's work was cancelled too");
    const deadline = Date.now() + 5000;
    while ((await session.task(one.handle.taskId).snapshot()).status !== 'cancelled') {
      assert.ok(Date.now() < deadline, 'the task was not cancelled within 5 s');
      await sleep(100);
    }
    const { outcome } = await other.settle();
    assert.equal(textOf(resultFromTaskOutcome(outcome)), `slow ${kept} is done`, 'the other task');
  }),
);

check('tasks', 'large-result-of-a-task', () =>
  withSession(async (session) => {
    const execution = await startTask(session, 'big', { kib: 5120, seconds: 1 });
    const { outcome } = await execution.settle();
    assert.ok(textOf(resultFromTaskOutcome(outcome)) === BLOCK.repeat(5120), 'the text differs');
  }),
);

check('tasks', 'unknown-task', () =>
  withSession(async (session) => {
    const error = await failure(session.task(`no-such-task-${randomUUID()}`).snapshot());
    assert.equal(error.code, -32602, `the code of ${error}`);
  }),
);

// --- questions the server asks while it works ----------------------------------------------------

check('questions', 'question-of-a-held-call', () =>
  withClient(
    async (client) => {
      const asked = [];
      client.setRequestHandler('elicitation/create', async ({ params }) => {
        asked.push(params.message);
        return { action: 'accept', content: { answer: 'forty-two' } };
      });
      for (const delay of [0, 0.8]) {
        const question = `Which, ${label()}?`;
        const result = await callTool(client, 'ask', { question, delay });
        assert.equal(textOf(result), `${question} forty-two`, 'the text');
        assert.deepEqual(asked.splice(0), [question], 'the questions seen');
      }
    },
    { capabilities: { elicitation: {} } },
  ),
);

/** An answer in which its question can be found again. */
const answers = {
  elicitation: ({ message }) => ({ action: 'accept', content: { answer: `<${message}>` } }),
  sampling: ({ messages }) => {
    const { content } = messages[0];
    const { text } = Array.isArray(content) ? content[0] : content;
    return { role: 'assistant', model: 'parrot', content: { type: 'text', text: `<${text}>` } };
  },
  roots: () => ({ roots: [{ uri: 'file:///home/ada' }] }),
};
const everything = { elicitation: {}, sampling: {}, roots: {} };
const surveyed = (topic) => `${topic} <${topic}, user?> <${topic}, model?> file:///home/ada`;

function answerEverything(client) {
  client.setRequestHandler('elicitation/create', async ({ params }) => answers.elicitation(params));
  client.setRequestHandler('sampling/createMessage', async ({ params }) => answers.sampling(params));
  client.setRequestHandler('roots/list', async () => answers.roots());
}

const withAsked = (use) =>
  withClient(
    (client) => {
      answerEverything(client);
      return use(client);
    },
    { capabilities: everything },
  );

const questionsOf = (count) => Array.from({ length: count }, () => `Which, ${label()}?`);
const answered = (questions) => questions.map((question) => `${question} <${question}>`);

check('questions', 'questions-of-every-kind-at-once', () =>
  withAsked(async (client) => {
    for (const delay of [0, 0.8]) {
      const topic = label();
      assert.equal(textOf(await callTool(client, 'survey', { topic, delay })), surveyed(topic), 'the text');
    }
  }),
);

check('questions', 'one-question-after-another', () =>
  withAsked(async (client) => {
    const questions = questionsOf(5);
    const result = await callTool(client, 'dialogue', { questions, delay: 0.1 });
    assert.equal(textOf(result), answered(questions).join(' '), 'the text');
  }),
);

check('questions', 'questions-on-the-stream-of-the-session', () =>
  withAsked(async (client) => {
    const questions = questionsOf(6);
    // The first tells a proxy, which takes the server for one that asks on its calls' own streams,
    // that such questions need a session for each call.
    assert.equal(textOf(await callTool(client, 'aside', { question: 'First?' })), 'First? <First?>', 'the text');
    const results = await Promise.all(
      questions.map((question, place) => callTool(client, 'aside', { question, delay: 0.2 * (place % 3) })),
    );
    assert.deepEqual(results.map(textOf), answered(questions), 'the texts');
  }),
);

const withAskedSession = (use) =>
  withSession(use, {
    onInputRequest: async (request) => answers[request.kind](request.params),
    capabilities: everything,
  });

check('task-questions', 'questions-of-every-kind-in-a-task', () =>
  withAskedSession(async (session) => {
    const topic = label();
    const execution = await startTask(session, 'survey', { topic, delay: 1 });
    const { outcome } = await execution.settle();
    assert.equal(textOf(resultFromTaskOutcome(outcome)), surveyed(topic), 'the text');
  }),
);

check('task-questions', 'one-question-after-another-in-a-task', () =>
  withAskedSession(async (session) => {
    const questions = questionsOf(4);
    const execution = await startTask(session, 'dialogue', { questions, delay: 0.5 });
    const { outcome } = await execution.settle();
    assert.equal(textOf(resultFromTaskOutcome(outcome)), answered(questions).join(' '), 'the text');
  }),
);

check('task-questions', 'a-call-that-asked-becomes-a-task', () =>
  withAskedSession(async (session) => {
    const question = `Which, ${label()}?`;
    const execution = await startTask(session, 'ask', { question, rest: 1.5 });
    const { outcome } = await execution.settle();
    assert.equal(textOf(resultFromTaskOutcome(outcome)), answered([question])[0], 'the text');
  }),
);

check('task-questions', 'questions-on-the-stream-of-the-session-in-tasks', () =>
  withAskedSession(async (session) => {
    const questions = questionsOf(6);
    const executions = await Promise.all(
      questions.map((question) => startTask(session, 'aside', { question, delay: 1 })),
    );
    const settled = await Promise.all(executions.map((execution) => execution.settle()));
    const texts = settled.map(({ outcome }) => textOf(resultFromTaskOutcome(outcome)));
    assert.deepEqual(texts, answered(questions), 'the texts');
  }),
);

check('task-questions', 'question-in-a-task', () => {
  const asked = [];
  const onInputRequest = async (request) => {
    assert.equal(request.kind, 'elicitation', 'the kind of the question');
    asked.push(request.params.message);
    return { action: 'accept', content: { answer: 'seven' } };
  };
  return withSession(
    async (session) => {
      const question = `Which, ${label()}?`;
      const execution = await startTask(session, 'ask', { question, delay: 1 });
      const { outcome } = await execution.settle();
      assert.equal(textOf(resultFromTaskOutcome(outcome)), `${question} seven`, 'the text');
      assert.deepEqual(asked, [question], 'the questions seen');
    },
    { onInputRequest, capabilities: { elicitation: {} } },
  );
});

// --- tasks of 2025-11-25, with ext-tasks over the older handshake -----------------------------------

/** ext-tasks polls with tasks/get alone, and asks for the result when there is one. */
function withOlderTasks(use, asked = []) {
  return withClient(
    async (client) => {
      client.setRequestHandler('elicitation/create', async ({ params }) => {
        asked.push(params.message);
        return { action: 'accept', content: { answer: 'seven' } };
      });
      const declared = new Map((await client.listTools()).tools.map((tool) => [tool.name, tool]));
      const session = createTaskSessionFromClient(client, { endpointId: 'interop' });
      const call = (name, args) =>
        session.callTool(name, args, {
          declaration: toolDeclarationFromMcpTool(declared.get(name)),
          task: { preference: 'prefer', retentionMs: 60_000 },
        });
      try {
        return await use(call, session);
      } finally {
        await session.close();
      }
    },
    { mode: 'legacy', capabilities: { elicitation: {} } },
  );
}

check('legacy-tasks', 'ext-tasks-follows-a-call', () =>
  withOlderTasks(async (call) => {
    const name = label();
    const execution = await call('slow', { seconds: 1.5, label: name });
    assert.equal(execution.kind, 'task', 'the kind');
    const { outcome } = await execution.settle();
    assert.equal(textOf(resultFromTaskOutcome(outcome)), `slow ${name} is done`, 'the text');
  }),
);

check('legacy-tasks', 'ext-tasks-answers-a-question', () => {
  const asked = [];
  return withOlderTasks(async (call) => {
    await sleep(300); // for the GET stream to be open
    const question = `Which, ${label()}?`;
    const { outcome } = await (await call('ask', { question, delay: 0.6 })).settle();
    assert.equal(textOf(resultFromTaskOutcome(outcome)), `${question} seven`, 'the text');
    assert.deepEqual(asked, [question], 'the questions seen');
  }, asked);
});

check('legacy-tasks', 'ext-tasks-sees-why-a-task-failed', () =>
  withOlderTasks(async (call) => {
    const name = label();
    const { outcome } = await (await call('broken', { seconds: 0.8, label: name })).settle();
    assert.equal(outcome.status, 'failed', 'the outcome');
    assert.ok(outcome.error.message.includes(`${name} is broken`), `the error is ${outcome.error.message}`);
  }),
);

check('legacy-tasks', 'ext-tasks-cancels', () =>
  withOlderTasks(async (call) => {
    // The first call of a client may wait until a process has started; what never began says nothing.
    await (await call('slow', { seconds: 0.1, label: label() })).settle();
    const name = label();
    const execution = await call('slow', { seconds: 20, label: name });
    await sleep(400); // for the work to begin, which then says that it was cancelled
    await execution.cancel();
    assert.equal((await execution.result()).status, 'cancelled', 'the outcome');
    await withClient((client) => waitCancelled(client, name), { mode: 'legacy' });
  }),
);

// --- running -------------------------------------------------------------------------------------

// A check that failed may leave a request behind that fails, too.
process.on('unhandledRejection', () => {});

await runChecks(options, CHECK_SECONDS);
