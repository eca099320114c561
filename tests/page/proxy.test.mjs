// The operator's page in a browser, as the program serves it, with a slow server behind.
//
//   DEFERRAL=target/release/deferral node --test proxy.test.mjs

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { after, before, test } from 'node:test';
import { launch, open, until } from './browser.mjs';
import { FILES, HEADERS } from './fake.mjs';
import { SlowServer } from './slow-server.mjs';
import { EVIL } from './states.mjs';

const binary = process.env.DEFERRAL;
const options = { skip: binary ? false : 'DEFERRAL names no program' };
const META = {
  'io.modelcontextprotocol/protocolVersion': '2026-07-28',
  'io.modelcontextprotocol/clientInfo': { name: 'page', version: '1' },
  'io.modelcontextprotocol/clientCapabilities': { extensions: { 'io.modelcontextprotocol/tasks': {} } }
};

let browser, server, proxy;

before(async () => {
  if (!binary) return;
  [browser, server] = [await launch(), await new SlowServer().start()];
  proxy = await start(server.url);
});
after(async () => {
  await browser?.stop();
  await proxy?.stop();
  server?.stop();
});

/** The program in front of that server; `url` is for clients, `operators` is the page, and `token` what signs in. */
async function start(upstream) {
  const folder = mkdtempSync(join(tmpdir(), 'deferral-page-'));
  const file = join(folder, 'deferral.yaml');
  writeFileSync(file, `\
listen: 127.0.0.1:0
admin: 127.0.0.1:0
drain: 0s
routes:
  - path: /mcp
    upstream: { url: ${JSON.stringify(upstream)} }
    defer: { mode: auto, after: 200ms }
`);
  const env = { ...process.env, XDG_RUNTIME_DIR: folder };
  const child = spawn(resolve(binary), ['serve', '--config', file], { stdio: ['ignore', 'pipe', 'pipe'], env });
  const ended = new Promise(resolve => child.on('exit', resolve));
  let said = '';
  for (const stream of [child.stdout, child.stderr]) stream.on('data', part => (said += part));
  const heard = async pattern => {
    for (const deadline = Date.now() + 15_000; Date.now() < deadline && child.exitCode === null; await new Promise(resolve => setTimeout(resolve, 20))) {
      const found = pattern.exec(said);
      if (found) return found[1];
    }
    throw new Error(`not said: ${pattern}; said was: ${said}`);
  };
  return {
    url: await heard(/listening on (http:\S+)/),
    operators: await heard(/^admin: (http:\S+)/m),
    token: readFileSync(await heard(/^admin token: (\S+)$/m), 'utf8').trim(),
    async stop() {
      child.kill('SIGTERM');
      await ended;
      rmSync(folder, { recursive: true, force: true });
    }
  };
}

async function ask(method, params) {
  const response = await fetch(proxy.url, {
    method: 'POST',
    headers: {
      'Content-Type': 'application/json', Accept: 'application/json, text/event-stream',
      'MCP-Protocol-Version': '2026-07-28', 'Mcp-Method': method, ...((params.name ?? params.taskId) && { 'Mcp-Name': params.name ?? params.taskId })
    },
    body: JSON.stringify({ jsonrpc: '2.0', id: 1, method, params: { ...params, _meta: { ...META, progressToken: 'p' } } })
  });
  const body = await response.text();
  const data = body.startsWith('{') ? body : body.split('\n').filter(line => line.startsWith('data:')).at(-1).slice(5);
  return JSON.parse(data);
}
const call = name => ask('tools/call', { name, arguments: {} });
const reads = (page, selector, words) => until(page, ([at, words]) => document.querySelector(at)?.textContent === words, [selector, words]);
const says = (page, selector, words) => until(page, ([at, words]) => document.querySelector(at)?.textContent.includes(words), [selector, words]);

test('the program serves the page as it is in the tree, with its policy', options, async () => {
  const at = new URL(proxy.operators);
  for (const [path, [type, body]] of Object.entries(FILES)) {
    const response = await fetch(new URL(path, at.origin));
    assert.equal(response.status, 200, path);
    assert.equal(response.headers.get('content-type'), type, path);
    for (const [name, value] of Object.entries(HEADERS)) assert.equal(response.headers.get(name), value, path);
    assert.equal(await response.text(), body(), path);
  }
});

test('tasks of a real proxy appear, are cancelled, and are counted', options, async () => {
  const page = await open(browser.context, proxy.operators, { expected: /ERR_/ });
  await says(page, '#connection', 'live');
  await page.locator('#token').click();
  await page.locator('#ask-input').fill(proxy.token);
  await page.getByRole('button', { name: 'Use token' }).click();
  await says(page, '#token', 'Signed in');
  assert.ok((await call('quick')).result);
  const slow = (await call('slow')).result;
  const evil = (await call(EVIL)).result;
  assert.ok(slow.taskId && evil.taskId, 'both are tasks');
  await until(page, () => document.querySelectorAll('#rows tr:not(.is-ended)').length === 2);
  await says(page, '#rows', EVIL);
  server.tell(`page 3 of 7 ${EVIL}`);
  await says(page, '#rows', `page 3 of 7 ${EVIL}`);
  assert.equal(await page.locator('img').count(), 0);
  assert.ok(!(await page.content()).includes(slow.taskId), 'its id is a secret of its caller');

  // A cancel reaches the server, and the client hears of it.
  await page.locator('#rows tr', { has: page.locator('.name', { hasText: EVIL }) }).getByRole('button').click();
  await page.getByRole('button', { name: 'Cancel the task' }).click();
  await says(page, '#rows tr.is-ended .status', 'cancelled');
  assert.equal((await ask('tasks/get', { taskId: evil.taskId })).result.status, 'cancelled');
  assert.equal((await ask('tasks/get', { taskId: slow.taskId })).result.status, 'working', 'that one alone');
  for (const deadline = Date.now() + 10_000; !server.cancelled.length; await new Promise(resolve => setTimeout(resolve, 20))) {
    assert.ok(Date.now() < deadline, 'the server is told');
  }

  // What ends is counted: it took longer than the threshold, and not as long as the longest there is to try.
  server.release('slow');
  await says(page, '#rows', 'completed');
  await says(page, '#tools', 'slow');
  await page.locator('#tools button', { hasText: 'slow' }).first().click();
  await reads(page, '#chosen-name', 'slow');
  await says(page, '.mark.is-after', 'after 200 ms');
  await reads(page, '#share', '100 %');
  await page.locator('#threshold').press('End');
  await reads(page, '#share', '0 %');
  await says(page, '#routes', new URL(server.url).host);
  await says(page, '#near', 'limits.tasks');
  await page.locator('#config summary').click();
  await says(page, '#settings', '200');

  await proxy.stop();
  await says(page, '#connection', 'not connected');
  assert.deepEqual(page.faults, []);
});
