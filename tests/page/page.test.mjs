// The operator's page in a browser, in front of a proxy that is played: what it shows, and that nothing breaks it.

import assert from 'node:assert/strict';
import { after, afterEach, before, beforeEach, test } from 'node:test';
import { launch, open, until } from './browser.mjs';
import { CODE, Fake, TOKEN, counts, task, tool } from './fake.mjs';
import { EVIL, busy, crowded } from './states.mjs';

let browser, fake, page;

before(async () => {
  browser = await launch();
});
after(() => browser?.stop());
beforeEach(async () => {
  fake = await new Fake().start();
  fake.every = 100;
});
afterEach(async () => {
  await page?.close();
  await fake.stop();
});

async function visit(options, fragment = '') {
  page = await open(browser.context, fake.url + fragment, options);
}
const tell = tasks => {
  fake.state.tasks = { tasks, next: null, counts: counts(tasks) };
};
const text = selector => page.locator(selector).innerText();
const rows = () => page.locator('#rows tr');
const row = handle => page.locator(`#rows tr[data-task="${handle}"]`);
const says = (selector, words) => until(page, ([at, words]) => document.querySelector(at)?.innerText.includes(words), [selector, words]);
const frame = () => until(page, () => new Promise(resolve => requestAnimationFrame(() => resolve(true))));
const spotless = () => assert.deepEqual(page.faults, []);

test('a proxy with which nothing has happened yet is shown as such', async () => {
  await visit();
  await says('#connection', 'live');
  await says('#no-tasks', 'No tasks');
  await says('#no-tools', 'No tool has been called yet');
  assert.equal(await text('#in-flight'), '0');
  spotless();
});

test('a task appears with all that is known of it, ages, and ends', async () => {
  const one = task('0123456789ab', { message: 'page 3 of 7', questions: [{ key: 'when', kind: 'elicitation', since_ms: 4_000 }], waits: 2, age_ms: 61_000 });
  await visit();
  await says('#connection', 'live');
  assert.equal(await rows().count(), 0);
  tell([one]);
  await says('#rows', 'export_report');
  const shown = await row('0123456789ab').innerText();
  for (const words of ['/mcp', '0123456789ab', 'working', '1 min', 'page 3 of 7', 'elicitation when', '2 clients', 'anonymous']) {
    assert.ok(shown.includes(words), `${words} in ${shown}`);
  }
  one.age_ms = 125_000;
  await says('#rows .age', '2 min 5 s');
  one.status = 'completed';
  await says('#rows .status', 'completed');
  assert.equal(await row('0123456789ab').getByRole('button').count(), 0, 'what has ended cannot be cancelled');
  tell([]);
  await until(page, () => document.querySelectorAll('#rows tr').length === 0);
  spotless();
});

test('what strangers call things stays text', async () => {
  tell([task('0123456789ab', { tool: EVIL, message: EVIL, principal: EVIL, route: EVIL, questions: [{ key: EVIL, kind: 'elicitation', since_ms: 0 }] })]);
  fake.state.tools = [tool(EVIL, [[1_000_000, 5]], { route: EVIL })];
  fake.state.routes[0] = { ...fake.state.routes[0], path: EVIL, server: EVIL, is_up: false, failure: EVIL };
  fake.state.limits = [{ limit: EVIL, value: 1, used: 1, hits: 1 }];
  fake.state.processes = { routes: [{ path: EVIL, starts: 1, running: [], last_ended: { pid: 1, since: new Date(), at: new Date(), how: EVIL, is_wanted: false, said: [EVIL] } }] };
  await visit();
  for (const place of ['#rows .name', '#rows .message', '#rows .caller', '#rows .asked', '#chosen-name', '#tools .name', '#of-tool', '#routes h3', '#routes .warn', '#routes .ended pre', '#near code']) {
    await says(place, EVIL);
  }
  await row('0123456789ab').getByRole('button').click();
  await says('#confirm-tool', EVIL);
  assert.equal(await page.locator('img, main script').count(), 0);
  assert.equal(await page.evaluate(() => window.hurt), undefined);
  spotless();
});

test('a row that is opened tells how it became a task, and what has become of it since', async () => {
  const one = task('0123456789ab', { age_ms: 61_000 });
  const at = ms => new Date(Date.parse(one.created) + ms).toISOString();
  fake.story = {
    cause: { by: 'threshold', mode: 'auto', after_ms: 5_000, rule: 'export_*', rollout: '25% by principal' },
    life: [{ what: 'progressed', at: at(2_000), until: at(9_000), times: 3 }, { what: 'asked', at: at(30_000), until: at(30_000), times: 1 }]
  };
  await visit();
  tell([one]);
  await says('#rows', 'export_report');
  assert.ok(!fake.asked.includes('GET /tasks/0123456789ab'), 'nobody has opened it');
  await row('0123456789ab').locator('summary').click();
  await says('#rows .cause', 'a task because the call ran for 5 s, rule export_*, rollout 25% by principal');
  await says('#rows .life', 'after 2 s: progressed, 3 times');
  await says('#rows .life', 'after 30 s: asked');
  // Told late, when the row has been drawn open: it is known already.
  await row('0123456789ab').locator('details').dispatchEvent('toggle');
  fake.story.life.push({ what: EVIL, at: at(40_000), until: at(40_000), times: 1 });
  one.status = 'completed';
  await says('#rows .life', `after 40 s: ${EVIL.replaceAll('_', ' ')}`);
  assert.equal(fake.asked.filter(each => each === 'GET /tasks/0123456789ab').length, 2, 'once, and once it has changed');
  spotless();
});

test('what is told of a row late does not take the place of what is newer', async () => {
  let release;
  fake.held = new Promise(resolve => (release = resolve));
  fake.story = { cause: { by: 'stop' }, life: [] };
  await visit();
  tell([task('0123456789ab')]);
  await says('#rows', 'export_report');
  const summary = row('0123456789ab').locator('summary');
  const asked = page.waitForRequest(/0123456789ab/);
  await summary.click();
  await asked;
  await summary.click();
  fake.held = Promise.resolve();
  fake.story = { cause: { by: 'departure' }, life: [] };
  await summary.click();
  await says('#rows .cause', 'the client disconnected');
  const answered = page.waitForResponse(/0123456789ab/);
  release();
  await (await answered).finished();
  await frame();
  assert.equal(await row('0123456789ab').locator('.cause').textContent(), 'a task because the client disconnected');
  spotless();
});

test('the code of the address signs the tab in, and a cancel is asked about, and told', async () => {
  tell([task('0123456789ab'), task('ba9876543210')]);
  await visit({}, `#code=${CODE}`);
  await says('#token', 'Signed in');
  assert.equal(page.url(), fake.url, 'it does not stay in the address');
  assert.equal(fake.code, null, 'it is worthless now');
  await row('0123456789ab').getByRole('button').click();
  await page.getByRole('button', { name: 'Keep the task' }).click();
  assert.deepEqual(fake.cancelled, []);
  await row('0123456789ab').getByRole('button').click();
  await page.getByRole('button', { name: 'Cancel the task' }).click();
  await says('#toast', 'export_report is cancelled');
  // The row is drawn with the next state that is fetched.
  await until(page, () => [...document.querySelectorAll('#rows .status')].some(status => status.innerText === 'cancelled'));
  assert.equal(await row('0123456789ab').locator('.status').innerText(), 'cancelled');
  assert.deepEqual(fake.cancelled, ['0123456789ab'], 'that one alone');
  await says('#token', 'Signed in');
  spotless();
});

test('whoever has no token is asked for it, again where it is wrong', async () => {
  tell([task('0123456789ab')]);
  await visit({ expected: /401/ });
  const give = async token => {
    await page.locator('#ask-input').fill(token);
    await page.getByRole('button', { name: 'Use token' }).click();
  };
  await row('0123456789ab').getByRole('button').click();
  await page.getByRole('button', { name: 'Cancel the task' }).click();
  await says('#ask-why', 'Changes require the admin token');
  await give('wrong');
  await says('#ask-why', 'the line that the proxy prints');
  assert.deepEqual(fake.cancelled, []);
  await give(TOKEN);
  await until(page, () => document.querySelector('#rows .status').innerText === 'cancelled');
  assert.deepEqual(fake.cancelled, ['0123456789ab']);
  spotless();
});

test('where reading needs the token, too, it is asked for once, and when one wants', async () => {
  fake.isExposed = true;
  await visit({ expected: /401/ });
  await says('#ask-why', 'the line that the proxy prints');
  await page.getByRole('button', { name: 'Not now' }).click();
  await says('#lost', 'Not connected: the token is in the line');
  const asked = fake.asked.length;
  while (fake.asked.length < asked + 2) await frame();
  assert.ok(await page.locator('#ask-token').isHidden(), 'it is tried again, and not asked for');
  await page.getByRole('button', { name: 'Try now' }).click();
  await page.locator('#ask-input').fill(TOKEN);
  await page.getByRole('button', { name: 'Use token' }).click();
  await says('#connection', 'live');
  spotless();
});

test('a tool has its histogram with the threshold, and another threshold another share', async () => {
  // 60 calls within 1 s, 20 within 2 s, 20 within 10 s; the threshold is 5 s.
  fake.state.tools = [tool('slow', [[1_000_000, 60], [2_000_000, 20], [10_000_000, 20]]), tool('quick', [[1_500, 400]])];
  await visit();
  await says('#share', '20 %');
  await says('.mark.is-after', 'after 5 s');
  await says('#share-of', '20 of 100');
  assert.equal(await text('#chosen-name'), 'slow', 'it is the one that the threshold means most to');
  const right = selector => page.locator(selector).evaluate(mark => new DOMMatrix(getComputedStyle(mark).transform).e);
  const full = () => page.locator('#share-bar').evaluate(bar => bar.style.transform);
  assert.equal(await full(), 'scaleX(0.2)');
  const configured = await right('.mark.is-after');
  // The slider goes from 10 ms, ten steps to a power of ten: at 20 is 1 s.
  await page.locator('#threshold').fill('20');
  await says('#share', '40 %');
  await says('#threshold-said', '1 s');
  await says('.mark.is-what-if', 'if 1 s');
  await says('#share-now', '5 s: 20 %');
  assert.equal(await full(), 'scaleX(0.4)');
  assert.equal(await right('.mark.is-after'), configured, 'what is configured stays where it is');
  assert.ok((await right('.mark.is-what-if')) < configured);
  assert.match(await page.locator('#tools li', { hasText: 'quick' }).innerText(), /\n0 %/);
  await page.getByRole('button', { name: 'as configured' }).click();
  await says('#share', '20 %');
  // By the keyboard.
  await page.locator('#threshold').focus();
  for (let at = 0; at < 7; at += 1) await page.keyboard.press('ArrowLeft');
  await says('#share', '40 %');
  spotless();
});

test('thresholds are those of the first pattern that a tool matches', async () => {
  fake.state.routes[0].tools = [{ match: 'train_?', mode: 'always', after_ms: 7_000 }, { match: 'train_*', mode: 'required', after_ms: 2_000 }];
  for (const [name, words, after] of [['train_x', 'always: every call is a task at once', '7 s'], ['train_all', 'required: as auto (2 s)', '2 s'], ['other', 'longer than 5 s', '5 s']]) {
    fake.state.tools = [tool(name, [[1_000_000, 9]])];
    await visit();
    await says('#chosen-mode', words);
    await says('.mark.is-after', `after ${after}`);
    spotless();
    if (name !== 'other') await page.close();
  }
});

test('a rollout is told where its threshold is, and where its route is', async () => {
  fake.state.routes[0].rollout = '50% by principal';
  fake.state.routes[0].tools = [{ match: 'train_*', mode: 'auto', after_ms: 2_000, rollout: '25% by principal' }];
  for (const [name, share] of [['train_all', '25%'], ['other', '50%']]) {
    fake.state.tools = [tool(name, [[1_000_000, 9]])];
    await visit();
    await says('#chosen-mode', `for ${share} by principal`);
    await says('#routes', 'for 50% by principal');
    await says('#facts', 'would be tasks');
    spotless();
    if (name !== 'other') await page.close();
  }
});

test('calls a second are the difference of what was counted', async () => {
  let at = Date.now();
  fake.before = () => {
    Object.assign(fake.state, { at: new Date((at += 2_000)).toISOString() });
    fake.state.calls = { in_flight: 3, total: fake.state.calls.total + 90, by_outcome: { result: 80, tool_error: 10 } };
  };
  await visit();
  await until(page, () => document.querySelector('#rate').innerText === '45');
  await says('#outcomes', 'tool error');
  assert.equal(await text('#in-flight'), '3');
  spotless();
});

test('limits, servers, their last words and the configuration are shown', async () => {
  busy(fake);
  await visit();
  await says('#near', 'limits.tasks');
  const full = page.locator('#near li', { hasText: 'limits.tasks' }).first().getByRole('meter', { includeHidden: true });
  assert.equal(await page.getByRole('meter', { name: 'limits.tasks', exact: true }).getAttribute('aria-valuenow'), '7630');
  assert.equal(await full.count(), 1);
  await says('#near', 'reached 41 times');
  await says('#near', '239.4 MiB of 256 MiB');
  await says('#others-said', '8 other limits, not reached since the start');
  await says('#routes', "No such file or directory: 'archive.idx'");
  await says('#routes', 'process 4711');
  await says('#questions', '3');
  await page.locator('#config summary').click();
  await says('#settings', '"tokens": "…"');
  spotless();
});

test('a page that loses its proxy says so, and finds it again by itself', async () => {
  tell([task('0123456789ab')]);
  await visit({ expected: /ERR_(CONNECTION_REFUSED|INCOMPLETE_CHUNKED_ENCODING|CONNECTION_RESET|EMPTY_RESPONSE)/ });
  await says('#connection', 'live');
  await fake.stop();
  await says('#connection', 'not connected: as of');
  await says('#lost', 'Retrying in');
  await says('#lost', 'may be outdated');
  assert.ok(await page.evaluate(() => Number(getComputedStyle(document.querySelector('main')).opacity) < 1), 'it is visibly stale');
  const age = await text('#rows .age');
  const state = fake.state;
  fake = await new Fake().start(fake.port);
  fake.every = 100;
  fake.state = state;
  assert.equal(await text('#rows .age'), age, 'what nobody tells does not age');
  await says('#connection', 'live');
  assert.ok(await page.locator('#lost').isHidden());
  spotless();
});

test('while the store fails it is said, and the tasks that were known stay', async () => {
  tell([task('0123456789ab')]);
  await visit();
  await says('#rows', 'export_report');
  Object.assign(fake.state, { tasks: null, ready: { status: 'ready', store: 'failing' } });
  await says('#ready', 'the store fails');
  assert.equal(await rows().count(), 1);
  await page.close();
  await visit();
  await says('#connection', 'live');
  spotless();
});

test('a state or a tool that is beyond the newest is asked for', async () => {
  fake.everything = Array.from({ length: 500 }, (_, at) => task(`task${at}`, { status: at < 499 ? 'working' : 'failed', tool: at === 499 ? 'broken' : 'export_report' }));
  fake.state.tasks = { tasks: fake.everything.slice(0, 200), next: '200', counts: counts(fake.everything) };
  await visit();
  await says('#more', 'And 300 more');
  await page.getByRole('button', { name: 'failed' }).click();
  await says('#rows', 'broken');
  assert.equal(await rows().count(), 1);
  assert.ok(fake.asked.includes('GET /tasks'));
  spotless();
});

test('a code that was used or is too old is said, and nothing is kept', async () => {
  fake.code = null;
  await visit({ expected: /403/ }, `#code=${CODE}`);
  await says('#toast', 'Not signed in: the code was used already');
  assert.equal(page.url(), fake.url);
  await says('#token', 'Sign in');
  assert.equal(await page.evaluate(() => sessionStorage.getItem('token')), null);
  spotless();
});

test('a page that was opened just now shows the last hour of calls', async () => {
  fake.history = { step_ms: 5_000, until: new Date().toISOString(), ended: Array.from({ length: 720 }, (_, at) => (at === 100 ? 1_000 : 50)) };
  await visit();
  await says('#connection', 'live');
  await until(page, () => document.querySelector('#rate-plot').getAttribute('aria-label').includes('at most 200'));
  spotless();
});

test('words are searched for in all tasks, and pages lead to the last', async () => {
  fake.everything = Array.from({ length: 450 }, (_, at) => task(`task${at}`, { message: at === 444 ? 'Needle in the haystack' : null }));
  fake.state.tasks = { tasks: fake.everything.slice(0, 200), next: '200', counts: counts(fake.everything) };
  await visit();
  await says('#more', 'And 250 more');
  await page.locator('#words').fill('needle');
  await says('#rows', 'Needle in the haystack');
  assert.equal(await rows().count(), 1);
  await page.locator('#words').fill('');
  await page.getByRole('button', { name: 'Next page' }).click();
  await says('#rows', 'task200');
  await page.getByRole('button', { name: 'Next page' }).click();
  await says('#rows', 'task400');
  // Rows out of sight have no `innerText`.
  assert.ok((await page.locator('#rows').evaluate(it => it.textContent)).includes('task449'));
  assert.equal(await rows().count(), 50);
  await says('#more', 'The last page');
  assert.ok(await page.getByRole('button', { name: 'Next page' }).isHidden());
  await page.getByRole('button', { name: 'First page' }).click();
  await says('#more', 'And 250 more');
  spotless();
});

test('progress that a message ends with is a bar, and other words are none', async () => {
  tell([task('0123456789ab', { message: 'reading (3/12)' }), task('ba9876543210', { message: 'reading (13/12)' }), task('00aa00aa00aa', { message: `(1/2) ${EVIL}` })]);
  await visit();
  await says('#rows', 'reading (3/12)');
  const bar = row('0123456789ab').getByRole('progressbar');
  assert.equal(await bar.getAttribute('aria-valuenow'), '3');
  assert.equal(await bar.getAttribute('aria-valuemax'), '12');
  assert.equal(await bar.locator('i').evaluate(it => it.style.transform), 'scaleX(0.25)');
  assert.equal(await page.getByRole('progressbar').count(), 1);
  spotless();
});

test('a server that is down has its reason beside it', async () => {
  fake.state.routes[0] = { ...fake.state.routes[0], is_up: false, failure: 'Connection refused (os error 111)' };
  await visit();
  await says('#routes', 'down: Connection refused (os error 111)');
  spotless();
});

test('rows keep their places while a mouse points at them', async () => {
  const [old, born] = [task('0000000000aa'), task('0000000000bb')];
  tell([old]);
  await visit();
  await row(old.task).hover();
  tell([born, { ...old, message: 'changed' }]);
  await says('#rows', 'changed');
  assert.equal(await rows().count(), 1);
  await says('#more', 'is paused');
  await page.locator('h1').hover();
  await until(page, () => document.querySelectorAll('#rows tr').length === 2);
  assert.equal(await rows().first().getAttribute('data-task'), born.task);
  spotless();
});

test('a keyboard is enough to cancel, or not', async () => {
  tell([task('0123456789ab')]);
  await visit({}, `#code=${CODE}`);
  await says('#rows', 'export_report');
  const button = row('0123456789ab').getByRole('button', { name: 'Cancel export_report, task 0123456789ab' });
  for (let tabs = 0; !(await button.evaluate(it => it === document.activeElement)); tabs += 1) {
    assert.ok(tabs < 40, 'it is reached');
    await page.keyboard.press('Tab');
  }
  const outline = await button.evaluate(it => getComputedStyle(it).outlineStyle);
  assert.equal(outline, 'solid', 'it is seen where one is');
  await page.keyboard.press('Enter');
  await says('#confirm', 'Cancel this task?');
  await page.keyboard.press('Escape');
  assert.deepEqual(fake.cancelled, []);
  assert.ok(await button.evaluate(it => it === document.activeElement), 'one is back where one was');
  await page.keyboard.press('Enter');
  await page.keyboard.press('Tab');
  await page.keyboard.press('Enter');
  await says('#rows .status', 'cancelled');
  spotless();
});

test('a dialog that is opened again before the browser told that it was closed waits for its own answer', async () => {
  tell([task('0123456789ab')]);
  await visit({}, `#code=${CODE}`);
  await says('#rows', 'export_report');
  // A fast hand: the browser tells of a close once it has time, and the dialog may be open again by then.
  await page.evaluate(() => {
    const [button, dialog] = [document.querySelector('#rows button'), document.querySelector('#confirm')];
    button.click();
    dialog.close();
    button.click();
  });
  await frame();
  assert.deepEqual(fake.cancelled, [], 'what was closed without a word cancels nothing');
  await page.getByRole('button', { name: 'Cancel the task' }).click();
  await says('#rows .status', 'cancelled');
  assert.deepEqual(fake.cancelled, ['0123456789ab'], 'once');
  spotless();
});

test('what was said to a dialog holds although it is opened again at once', async () => {
  tell([task('0123456789ab'), task('ba9876543210')]);
  await visit({}, `#code=${CODE}`);
  await says('#rows', 'export_report');
  await page.evaluate(() => {
    const [first, second] = document.querySelectorAll('#rows button');
    const dialog = document.querySelector('#confirm');
    first.click();
    dialog.querySelector('[value="cancel"]').click();
    second.click();
  });
  await until(page, () => document.querySelectorAll('#rows .is-cancelled').length === 1);
  await page.getByRole('button', { name: 'Keep the task' }).click();
  await frame();
  assert.deepEqual(fake.cancelled, ['0123456789ab']);
  spotless();
});

for (const width of [320, 400, 800, 1280, 2000]) {
  test(`at ${width} px nothing is wider than the window, in light and in dark`, async () => {
    busy(fake);
    for (const colorScheme of ['light', 'dark']) {
      await visit({ width, colorScheme });
      await says('#rows', 'export_report');
      await says('#plot-said', 'Histogram');
      assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth));
      spotless();
      if (colorScheme === 'light') await page.close();
    }
  });
}

test('ten thousand tasks, a hundred of them new each second, do not freeze it', async () => {
  crowded(fake, 200);
  fake.every = 1_000;
  await visit();
  await says('#live', '10,000');
  await says('#more', 'And 9,800 more');
  for (const from = fake.told; fake.told < from + 8; ) await frame();
  assert.equal(await rows().count(), 200);
  await page.locator('#threshold').press('ArrowLeft');
  await page.getByRole('button', { name: 'working' }).click();
  await frame();
  const longest = await page.evaluate(() => Math.max(0, ...window.longTasks));
  console.log(`the longest task of the page took ${longest} ms`);
  // It keeps up with what it is told, on whatever machine: some 100 ms on most.
  assert.ok(longest < fake.every, `${longest} ms`);
  spotless();
});

test('of more tasks than are asked for no more are drawn', async () => {
  crowded(fake, 10_000);
  fake.every = 1_000;
  await visit();
  await says('#more', 'And 9,800 more');
  assert.equal(await rows().count(), 200);
  await page.locator('#words').fill('caller 96');
  await until(page, () => [...document.querySelectorAll('#rows .caller')].every(caller => caller.textContent === 'caller 96'));
  spotless();
});
