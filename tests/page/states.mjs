// States for the fake to tell: a day like many, and more than anybody can read.

import { counts, task, tool } from './fake.mjs';

const handle = at => (0x5eed00000000 + at * 0x9e3779b1 % 0xffffffff).toString(16).padStart(12, '0').slice(-12);
/** What a stranger may call a tool. It must stay text. */
export const EVIL = '<img src=x onerror="window.hurt=1">';

const TOOLS = ['export_report', 'train_model', 'search_archive', 'book_table', 'summarize', EVIL];
const MESSAGES = [
  'page 41 of 120: joining the quarterly tables', null, 'epoch 3 of 10, loss 0.412', 'Waiting for a worker',
  'Looking through 1.2 million documents for what was asked, in the order of their dates, the oldest first', null
];

/** Steps as they come: most around a middle, on the time axis of ten steps to a power of ten. */
function around(middle, wide, count, slow = []) {
  const BOUNDS = Array.from({ length: 7 }, (_, power) => [10, 12, 15, 20, 25, 30, 40, 50, 60, 80].map(tenths => tenths * 10 ** (power + 2))).flat();
  const shape = us => Math.exp(-(((Math.log10(us) - Math.log10(middle)) / wide) ** 2));
  const late = us => slow.reduce((sum, [at, width, share]) => sum + share * Math.exp(-(((Math.log10(us) - Math.log10(at)) / width) ** 2)), 0);
  const weight = BOUNDS.map(us => shape(us) + late(us));
  const whole = weight.reduce((a, b) => a + b, 0);
  return BOUNDS.map((us, at) => [us, Math.round((weight[at] / whole) * count)]).filter(([, times]) => times);
}

export function busy(fake) {
  const { state } = fake;
  const tasks = Array.from({ length: 34 }, (_, at) => {
    const status = at < 14 ? (at % 5 === 3 ? 'input_required' : 'working') : ['completed', 'completed', 'failed', 'cancelled'][at % 4];
    const asks = status === 'input_required';
    return task(handle(at), {
      tool: TOOLS[at % TOOLS.length], route: at % 7 === 5 ? '/archive' : '/mcp', status, age_ms: 3_000 + at * at * 3_700,
      message: asks ? 'waits for an answer' : MESSAGES[at % MESSAGES.length], principal: ['alice', 'ci', '#5f0c91be', 'anonymous'][at % 4],
      questions: asks ? [{ key: 'when_and_who', kind: 'elicitation', since_ms: 14_000 }] : [], waits: at % 3,
      view: at % 9 === 4 ? 'ticket' : at % 11 === 6 ? 'experimental' : 'extension', is_held: at !== 4
    });
  });
  state.tasks = { tasks, next: null, counts: counts(tasks) };
  state.questions_waiting = 3;
  state.tools = [
    tool('export_report', around(2.2e6, 0.35, 4_180, [[3e7, 0.25, 0.3]]), { tasks_created: 1_190, tasks_completed: 1_120, tasks_failed: 31, tasks_cancelled: 25, departed: 12, timed_out: 3 }),
    tool('search_archive', around(9e4, 0.3, 18_240, [[4e6, 0.2, 0.03]]), { tasks_created: 240, tasks_completed: 238 }),
    tool('train_model', around(2.4e8, 0.3, 96), { tasks_created: 96, tasks_completed: 80, tasks_failed: 9 }),
    tool('book_table', around(7e5, 0.3, 730, [[2e7, 0.3, 0.4]]), { tasks_created: 201 }),
    tool('summarize', around(5e6, 0.25, 1_204), { tasks_created: 590 }),
    tool('greet', around(1.4e3, 0.2, 52_000)),
    tool(EVIL, around(3e5, 0.4, 41))
  ];
  state.routes = [
    { path: '/mcp', mode: 'auto', after_ms: 5_000, ticket_ms: null, tools: [{ match: 'train_*', mode: 'always', after_ms: 5_000 }, { match: 'greet', mode: 'never', after_ms: null }],
      server: 'http://tools.internal:9000/mcp', is_up: true, sessions: 4, children: null, in_flight: 17 },
    { path: '/archive', mode: 'observe', after_ms: 2_000, ticket_ms: 45_000, tools: [], server: 'python', is_up: false, failure: 'the server did not start: exited with 1', sessions: 1, children: 1, in_flight: 1 }
  ];
  state.processes = { routes: [{ path: '/archive', starts: 4, running: [{ pid: 4711, since: new Date(Date.now() - 62_000).toISOString(), capabilities: {}, calls: 1 }],
    last_ended: { pid: 4688, since: new Date(Date.now() - 600_000).toISOString(), at: new Date(Date.now() - 65_000).toISOString(), how: 'exited with 1', is_wanted: false,
      said: ['Traceback (most recent call last):', '  File "server.py", line 88, in search', '    index = open(PATH, "rb")', "FileNotFoundError: [Errno 2] No such file or directory: 'archive.idx'"] } }] };
  const limit = (limit, value, used = null, hits = 0) => ({ limit, value, used, hits });
  state.limits = [
    limit('limits.connections', 1024, 212), limit('limits.calls', 10000, 18), limit('limits.tasks', 10000, 7630), limit('limits.stored_bytes', 268435456, 251_003_000),
    limit('limits.body_memory', 67108864, 1_204_000), limit('limits.identities', 10000, 41), limit('limits.tasks_per_principal', 100, null, 7), limit('limits.departed', 1000, 3),
    limit('limits.client_sessions', 10000, 4), limit('limits.polls_per_second', 10, null, 41), limit('limits.body_bytes', 4194304), limit('timeouts.connect', 5), limit('timeouts.call', 3600),
    limit('limits.depth', 64), limit('timeouts.queue', 30), limit('questions.park', 300), limit('limits.header_bytes', 16384), limit('upstream.instances', 4)
  ];
  let total = 91_204;
  let beat = 0;
  const began = Date.now();
  fake.before = () => {
    beat += 1;
    // Each state is a second of it, however fast they are told.
    state.at = new Date(began + beat * 1_000).toISOString();
    total += Math.round(38 + 14 * Math.sin(beat / 11) + 6 * Math.sin(beat * 1.7));
    state.calls = { in_flight: 18, total, by_outcome: { result: total - 3_102, task: 2_240, tool_error: 402, input_required: 240, refused: 190, departed: 18, timed_out: 12 } };
  };
}

/** Ten thousand tasks, of which a hundred are new each time that the state is told; of which so many are told. */
export function crowded(fake, told) {
  const { state } = fake;
  let made = 10_000;
  const one = at => task(handle(at), { tool: TOOLS[at % TOOLS.length], age_ms: at * 10, message: MESSAGES[at % MESSAGES.length], principal: `caller ${at % 97}` });
  let tasks = Array.from({ length: made }, (_, at) => one(at));
  state.tools = [tool('export_report', around(2.2e6, 0.4, 10_000))];
  fake.before = () => {
    const born = Array.from({ length: 100 }, () => one((made += 1)));
    tasks = [...born, ...tasks].slice(0, 10_000);
    fake.everything = tasks;
    state.tasks = { tasks: tasks.slice(0, told), next: told < tasks.length ? String(told) : null, counts: counts(tasks) };
    state.calls = { in_flight: 10_000, total: made, by_outcome: { task: made } };
  };
}
