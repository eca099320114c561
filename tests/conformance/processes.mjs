// Starting and stopping the two servers of a run: the legacy fixture and the proxy in front of it, which starts the
// fixture itself where it is a process.

import { spawn } from 'node:child_process';
import { closeSync, existsSync, openSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

const here = import.meta.dirname;
const bundled = join(here, 'node_modules/node/bin/node');
/** The suite needs Node 22 or newer; the machine's own may be older. */
export const NODE = existsSync(bundled) ? bundled : process.execPath;

const children = new Set();
process.on('exit', () => children.forEach(child => child.kill('SIGKILL')));
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.on(signal, () => process.exit(1));

/** Starts a program whose output goes to a file. Resolves `exited` with its exit code (null if it was killed). */
export function start(command, args, log, options = {}) {
  const fd = openSync(log, 'a');
  const child = spawn(command, args, { stdio: ['ignore', fd, fd], ...options });
  closeSync(fd);
  children.add(child);
  child.log = log;
  child.exited = new Promise(resolve => {
    child.on('error', error => resolve(error));
    child.on('exit', resolve);
  });
  child.exited.then(code => {
    child.ended = true;
    child.code = code;
    children.delete(child);
  });
  return child;
}

/** Stops politely, then not. True if SIGTERM was enough. */
export async function stop(child, patience = 5000) {
  if (child.ended) return true;
  child.kill('SIGTERM');
  const polite = await Promise.race([child.exited.then(() => true), sleep(patience, false, { ref: false })]);
  if (!polite) child.kill('SIGKILL');
  await child.exited;
  return polite;
}

async function listening(child, what) {
  for (const deadline = Date.now() + 15_000; Date.now() < deadline && !child.ended; await sleep(20)) {
    child.url = /^listening on (http:\S+)$/m.exec(readFileSync(child.log, 'utf8'))?.[1];
    if (child.url) return child;
  }
  await stop(child);
  throw new Error(`${what} did not start: ${readFileSync(child.log, 'utf8').trim().slice(-500) || child.code}`);
}

const fixture = (hard, ...args) => [join(here, 'legacy-server.mjs'), ...args, ...(hard ? ['--hard'] : [])];

export function startFixture(dir, hard) {
  return listening(start(NODE, fixture(hard, '--port', '0'), join(dir, 'fixture.log')), 'the fixture');
}

/** The fixture as a route's `upstream`: at its address, or as a process. */
export const atUrl = url => ({ url });
// The suite walks away from questions, in calls and in tasks, and each keeps its process from others that may be asked
// until `park` is over; so that is soon. It declares more sets of capabilities than there are processes by default.
export const asProcess = hard => ({ command: [NODE, ...fixture(hard, '--stdio')] });

// A process is started for each set of capabilities that clients declare, which on a busy machine takes longer than
// `after`, and than the suite waits for a stream to begin. Those that it declares are there before it begins.
const DECLARED = [{}, { elicitation: {} }, { sampling: {} }, { roots: {} }, { elicitation: {}, sampling: {}, roots: {} }];

export async function warm(url) {
  for (const capabilities of DECLARED) {
    const _meta = {
      'io.modelcontextprotocol/protocolVersion': '2026-07-28',
      'io.modelcontextprotocol/clientInfo': { name: 'warm', version: '1' },
      'io.modelcontextprotocol/clientCapabilities': capabilities
    };
    const response = await fetch(url, {
      method: 'POST',
      headers: {
        'Content-Type': 'application/json',
        Accept: 'application/json, text/event-stream',
        'MCP-Protocol-Version': '2026-07-28',
        'Mcp-Method': 'tools/list'
      },
      body: JSON.stringify({ jsonrpc: '2.0', id: 1, method: 'tools/list', params: { _meta } })
    });
    const said = await response.text();
    if (!response.ok) throw new Error(`a process does not start: ${said}`);
  }
}

// Four facts that no synchronous server can express, and one to keep an instant tool out of the timing. The suite walks away
// from tasks, too: without a folder for them, a proxy that is told to stop waits for `drain` that somebody comes for them.
const config = (upstream, tickets) => `\
listen: 127.0.0.1:0
admin: off
drain: 1s
routes:
  - path: /mcp
    upstream: ${JSON.stringify(upstream)}
    defer: { mode: auto, after: 400ms }
    tools:
      - { match: failing_job, mode: required }
      - { match: confirm_delete, mode: always }
      - { match: multi_input, mode: always }
      - { match: greet, mode: never }
      - { match: test_input_required_result_elicitation, keys: [user_name] }
    questions: { park: ${upstream.command ? '3s' : '5m'} }
${tickets ? '    tickets: { for: [{ client: "*", after: 45s }] }\n' : ''}`;

export function startProxy(binary, upstream, dir, tickets = false) {
  const file = join(dir, 'deferral.yaml');
  writeFileSync(file, config(upstream, tickets));
  return listening(start(binary, ['serve', '--config', file], join(dir, 'deferral.log'), { cwd: dir }), 'the proxy');
}
