// A proxy's operator's address without a proxy: the page as the program has it, and whatever state a test wants told.

import { createServer } from 'node:http';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';

const read = name => readFileSync(join(import.meta.dirname, '../../src/admin/page', name), 'utf8');
/** What is served where, as src/admin/page.rs has it: its type, and what is in it. */
export const FILES = {
  '/': ['text/html; charset=utf-8', () => read('index.html')],
  '/app.js': ['text/javascript; charset=utf-8', () => read('app.js')],
  '/icon.svg': ['image/svg+xml', () => read('icon.svg')],
  '/style.css': ['text/css; charset=utf-8', () => read('style.css')],
  '/uplot.js': ['text/javascript; charset=utf-8', () => `/*\n${read('uPlot.LICENSE')}*/\n${read('uPlot.iife.min.js')}`],
  '/uplot.css': ['text/css; charset=utf-8', () => read('uPlot.min.css')]
};
export const HEADERS = {
  'content-security-policy':
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
  'x-content-type-options': 'nosniff',
  'referrer-policy': 'no-referrer',
  'cache-control': 'no-store'
};
export const TOKEN = 'the-operators-token';
/** What is exchanged for it, once. */
export const CODE = '0123456789abcdef';

const ago = ms => new Date(Date.now() - ms).toISOString();

/** One task as `/tasks` shows it. */
export function task(handle, over = {}) {
  const ms = over.age_ms ?? 12_000;
  return {
    task: handle, route: '/mcp', tool: 'export_report', status: 'working', view: 'extension', created: ago(ms), age_ms: ms,
    updated: ago(1_000), status_since: ago(ms), ttl_ms: 3_600_000, kept_until: ago(-3_600_000), message: null, principal: 'anonymous',
    questions: [], waits: 1, is_held: true, waits_for_store: false, ...over
  };
}

/** What `/tools` says of a tool whose calls took so long (µs to count; null: longer than all steps). */
export function tool(name, steps, over = {}) {
  const count = steps.reduce((sum, [, times]) => sum + times, 0);
  const within = share => {
    let sum = 0;
    for (const [end, times] of steps) if ((sum += times) >= share * count) return end;
    return null;
  };
  return {
    route: '/mcp', tool: name, calls: { count, sum_us: 1, longest_us: steps.at(-1)?.[0] ?? 0, steps }, timed_out: 0, departed: 0,
    tasks_created: 0, tasks_completed: 0, tasks_failed: 0, tasks_cancelled: 0, tasks: { count: 0, sum_us: 0, longest_us: 0, steps: [] },
    would_defer: 0, p50_us: within(0.5), p90_us: within(0.9), p99_us: within(0.99), ...over
  };
}

export function counts(tasks) {
  const counts = {};
  for (const { status } of tasks) counts[status] = (counts[status] ?? 0) + 1;
  return counts;
}

/** A state in which nothing has happened yet. */
export const nothing = () => ({
  version: '0.1.0', started: ago(3_725_000), ready: true, calls: { in_flight: 0, total: 0, by_outcome: {} },
  tasks: { tasks: [], next: null, counts: {} }, tools: [], limits: [], questions_waiting: 0, processes: { routes: [] },
  routes: [{ path: '/mcp', mode: 'auto', after_ms: 5_000, ticket_ms: null, tools: [], server: 'http://127.0.0.1:9000/mcp', is_up: null, failure: null, sessions: 0, children: null, in_flight: 0 }]
});

export class Fake {
  /** What `/events` says next; a test changes it. */
  state = nothing();
  /** Milliseconds between states. */
  every = 1_000;
  /** Whether reading needs the token, as it does where others can reach the address. */
  isExposed = false;
  /** What `/history` says. */
  history = { step_ms: 5_000, until: null, ended: [] };
  /** The code that is taken, until it is used. */
  code = CODE;
  cancelled = [];
  asked = [];
  /** What `/tasks/NAME` says beside what the list does. */
  story = { cause: null, life: [] };
  /** What `/tasks/NAME` waits for, with what it had to say when it was asked. */
  held = Promise.resolve();
  /** How often the state was told. */
  told = 0;
  #streams = new Set();
  #server = createServer((request, response) => this.#answer(request, response));

  async start(port = 0) {
    await new Promise(resolve => this.#server.listen(port, '127.0.0.1', resolve));
    this.port = this.#server.address().port;
    this.url = `http://127.0.0.1:${this.port}/`;
    return this;
  }

  /** Nobody answers any more. */
  async stop() {
    const closed = new Promise(resolve => this.#server.close(resolve));
    this.#server.closeAllConnections();
    await closed;
  }

  #answer(request, response) {
    const { pathname, searchParams } = new URL(request.url, this.url);
    this.asked.push(`${request.method} ${pathname}`);
    if (FILES[pathname]) {
      const [type, body] = FILES[pathname];
      response.writeHead(200, { 'content-type': type, ...HEADERS });
      return response.end(body());
    }
    const json = (status, body) => {
      response.writeHead(status, { 'content-type': 'application/json', 'cache-control': 'no-store' });
      response.end(JSON.stringify(body));
    };
    if (request.method === 'POST' && pathname === '/session') return this.#signIn(request, json);
    const isOperator = request.headers.authorization === `Bearer ${TOKEN}`;
    const refused = () => json(401, { error: 'the token is in the line that the proxy prints at its start' });
    if (this.isExposed && !isOperator) return refused();
    if (pathname === '/events') return this.#tell(response);
    if (pathname === '/history') return json(200, this.history);
    if (pathname === '/tasks') return json(200, this.#page(searchParams));
    if (pathname === '/config') return json(200, { file: 'deferral.yaml', settings: { listen: ['127.0.0.1:8808'], access: { tokens: '…' } } });
    const cancel = /^\/tasks\/(\w+)\/cancel$/.exec(pathname);
    if (cancel && request.method === 'POST') {
      if (!isOperator) return refused();
      const found = this.state.tasks.tasks.find(each => each.task === cancel[1]);
      if (!found) return json(404, { error: 'no such task' });
      this.cancelled.push(found.task);
      Object.assign(found, { status: 'cancelled', status_since: ago(0) });
      this.state.tasks.counts = counts(this.state.tasks.tasks);
      return json(200, found);
    }
    const one = /^\/tasks\/(\w+)$/.exec(pathname);
    const story = one && this.state.tasks.tasks.find(each => each.task === one[1]);
    if (story) {
      const said = { ...story, ...this.story };
      return this.held.then(() => json(200, said));
    }
    json(404, { error: 'nothing is served there' });
  }

  async #signIn(request, json) {
    let body = '';
    for await (const part of request) body += part;
    if (!this.code || JSON.parse(body).code !== this.code) return json(403, { error: 'the code was used already' });
    this.code = null;
    json(200, { token: TOKEN });
  }

  #page(query) {
    const words = query.get('search');
    const fits = task => ['status', 'route', 'tool'].every(name => !query.get(name) || task[name] === query.get(name)) &&
      (!words || [task.tool, task.message, task.task].some(text => text?.toLowerCase().includes(words.toLowerCase())));
    const all = (this.everything ?? this.state.tasks.tasks).filter(fits);
    const limit = Number(query.get('limit') ?? 200);
    const from = Number(query.get('after') ?? 0);
    return { tasks: all.slice(from, from + limit), next: all.length > from + limit ? String(from + limit) : null, counts: counts(all) };
  }

  #tell(response) {
    response.writeHead(200, { 'content-type': 'text/event-stream', 'cache-control': 'no-store' });
    this.#streams.add(response);
    const tell = () => {
      this.before?.();
      this.told += 1;
      response.write(`event: state\ndata: ${JSON.stringify({ at: new Date().toISOString(), ...this.state })}\n\n`);
      timer = setTimeout(tell, this.every);
    };
    let timer = setTimeout(tell, 0);
    response.on('close', () => {
      clearTimeout(timer);
      this.#streams.delete(response);
    });
  }
}
