// The admin page: shows the state from `/events` once a second, and cancels tasks.
//
// Text of tools, servers and clients is untrusted. It is inserted as text only (`textContent`, attributes), never as
// markup; the Content-Security-Policy of the page forbids other scripts and styles.

const uPlot = globalThis.uPlot;

/** Maximum number of rows; the rest is shown as a number, so that ten thousand tasks cost as much as two hundred. */
const ROWS = 200;
/** Maximum number of listed tools. */
const TOOLS = 60;
/** Milliseconds without data after which the stream counts as lost. The proxy sends an event once a second. */
const SILENCE = 10_000;
/** Milliseconds before a reconnect, doubled each time up to the maximum. */
const RETRY = [1_000, 10_000];
/** Milliseconds before a text search is repeated, because the proxy searches its store. */
const SEARCH_AGAIN = 5_000;
/** Seconds of calls in the chart: the length of the proxy's history. */
const DRAWN = 3_600;

// ---- utilities --------------------------------------------------------------------------------------------------------

const $ = id => document.getElementById(id);

function make(tag, className = '', text = '') {
  const element = document.createElement(tag);
  element.className = className;
  element.textContent = text;
  return element;
}

/** Updates only what differs, so that a second without changes costs nothing. */
function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
function set(element, name, value) {
  if (value === null || value === undefined) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

/** The number format: 12,345.6. */
const number = new Intl.NumberFormat('en', { maximumFractionDigits: 1 });
const several = (count, one, more = `${one}s`) => `${number.format(count)} ${count === 1 ? one : more}`;

/** "320 ms", "4.2 s", "3 min 5 s", "2 h 10 min", "3 d 4 h". */
function lasting(ms) {
  if (ms < 1) return `${number.format(ms * 1000)} µs`;
  if (ms < 1_000) return `${number.format(ms < 10 ? ms : Math.round(ms))} ms`;
  if (ms < 60_000) return `${number.format(ms / 1_000)} s`;
  const pair = (large, big, small, little) =>
    `${Math.floor(ms / large)} ${big}${Math.floor((ms % large) / small) ? ` ${Math.floor((ms % large) / small)} ${little}` : ''}`;
  if (ms < 3_600_000) return pair(60_000, 'min', 1_000, 's');
  if (ms < 86_400_000) return pair(3_600_000, 'h', 60_000, 'min');
  return pair(86_400_000, 'd', 3_600_000, 'h');
}
/** An age, in whole seconds. */
const aged = ms => lasting(Math.max(0, Math.floor(ms / 1_000)) * 1_000).replace(/^0 .*/, '0 s');
const micro = us => (us === null || us === undefined ? '–' : lasting(us / 1_000));

function sized(bytes) {
  let unit = 0;
  for (; bytes >= 1024 && unit < 4; unit += 1) bytes /= 1024;
  return `${number.format(bytes)} ${['B', 'KiB', 'MiB', 'GiB', 'TiB'][unit]}`;
}

const percent = share => (share > 0 && share < 0.001 ? '< 0.1 %' : `${number.format(share * 100)} %`);

const scheme = matchMedia('(prefers-color-scheme: dark)');
/** Colours of the style sheet, read once per scheme, because reading them forces a layout. */
const colors = new Map();
function color(name) {
  if (!colors.has(name)) colors.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
  return colors.get(name);
}

let toastEnds;
function toast(text) {
  say($('toast'), text);
  clearTimeout(toastEnds);
  toastEnds = setTimeout(() => say($('toast'), ''), 6_000);
}

// ---- the token --------------------------------------------------------------------------------------------------------

/**
 * Exchanges the one-time code in the URL for a session token, which this tab keeps. The code is removed from the URL
 * first, so that it does not stay in the browser history.
 */
async function signIn() {
  const code = new URLSearchParams(location.hash.slice(1)).get('code');
  if (!code) return;
  history.replaceState(null, '', location.pathname + location.search);
  try {
    const response = await fetch('/session', {
      method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify({ code }), cache: 'no-store'
    });
    if (!response.ok) return toast(`Not signed in: ${await problem(response)}`);
    sessionStorage.setItem('token', (await response.json()).token);
    wake();
  } catch {
    toast('Not signed in: the proxy does not respond.');
  }
}

function authorized() {
  const token = sessionStorage.getItem('token');
  return token ? { Authorization: `Bearer ${token}` } : {};
}

/**
 * Shows a dialog, and resolves with the value of the button that closed it. The `close` event comes later, when the dialog
 * may be open again: a pending promise is settled before the dialog is shown again, and a `close` event while the dialog
 * is open belongs to the previous one.
 */
function asked(dialog) {
  dialog.settle?.();
  return new Promise(resolve => {
    dialog.settle = () => {
      dialog.settle = null;
      resolve(dialog.returnValue);
    };
    dialog.onclose = () => dialog.open || dialog.settle?.();
    dialog.returnValue = '';
    dialog.showModal();
  });
}

/** Whether there is a token. */
async function askToken(why) {
  say($('ask-why'), why);
  $('ask-input').value = '';
  const token = (await asked($('ask-token'))) === 'use' ? $('ask-input').value.trim() : '';
  $('ask-input').value = '';
  if (token) sessionStorage.setItem('token', token);
  return Boolean(token);
}

/** The error message of a response. */
async function problem(response) {
  const said = await response.json().catch(() => ({}));
  return said.error ?? `the proxy responded with ${response.status}`;
}

// ---- state ------------------------------------------------------------------------------------------------------------

/** The newest state, its arrival time (`performance.now()`), and tasks that were fetched for the filter. */
const known = { state: null, at: 0, found: null };
let connected = false;

/** Draws in the next frame, however often it is called. */
let isDue = false;
function refresh() {
  if (isDue) return;
  isDue = true;
  requestAnimationFrame(() => {
    isDue = false;
    if (known.state) draw(known.state);
  });
}

/** Events of a stream. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let parts = [];
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    // The end of an event may be split across two chunks.
    const tail = parts.at(-1)?.slice(-1) ?? '';
    if (!(tail + value).includes('\n\n')) {
      parts.push(value);
      continue;
    }
    const whole = (parts.join('') + value).split('\n\n');
    parts = [whole.pop()];
    for (const event of whole) {
      const data = event.split('\n').filter(line => line.startsWith('data:')).map(line => line.slice(5));
      if (data.length) yield JSON.parse(data.join('\n'));
    }
  }
}

let wake = () => {};
/** Whether a prompt for the token may open by itself: not again after it was dismissed. */
let mayAsk = true;

/** Follows the event stream for as long as the page is open. */
async function follow() {
  let pause = RETRY[0];
  for (;;) {
    const stop = new AbortController();
    let silence = setTimeout(() => stop.abort(), SILENCE);
    let why = 'the proxy closed the connection';
    try {
      const response = await fetch('/events', { headers: authorized(), signal: stop.signal, cache: 'no-store' });
      if (!response.ok) {
        const said = await problem(response);
        if (response.status === 401) sessionStorage.removeItem('token');
        // Typing a token takes longer than the silence timeout, so the timeout is suspended.
        clearTimeout(silence);
        if (response.status === 401 && mayAsk && (mayAsk = await askToken(said))) continue;
        throw new Error(said);
      }
      await recall();
      for await (const state of events(response.body)) {
        clearTimeout(silence);
        silence = setTimeout(() => stop.abort(), SILENCE);
        pause = RETRY[0];
        took(state);
      }
    } catch (error) {
      why = stop.signal.aborted ? 'no data from the proxy' : error instanceof TypeError ? 'the proxy does not respond' : error.message;
    } finally {
      clearTimeout(silence);
      stop.abort();
    }
    await lost(why, pause);
    pause = Math.min(pause * 2, RETRY[1]);
  }
}

function took(state) {
  // Unchanged members may be absent; there are no tasks if the store fails.
  const tasks = state.tasks ?? known.state?.tasks ?? { tasks: [], next: null, counts: {} };
  known.state = { ...known.state, ...state, tasks };
  if (state.tasks) known.at = performance.now();
  connected = true;
  count(known.state);
  search();
  refresh();
}

async function lost(why, pause) {
  connected = false;
  const since = known.state && new Date(known.state.at).toLocaleTimeString();
  say($('lost-why'), `Not connected: ${why}. Retrying in ${lasting(pause)}.${since ? ` The data below is from ${since} and may be outdated.` : ''}`);
  showConnection();
  await new Promise(resolve => {
    wake = resolve;
    setTimeout(resolve, pause);
  });
}

function showConnection() {
  $('lost').hidden = connected;
  $('connection').className = `pill ${connected ? 'is-up' : 'is-down'}`;
  say($('connection'), connected ? 'live' : `not connected${known.state ? `: as of ${new Date(known.state.at).toLocaleTimeString()}` : ''}`);
  document.body.classList.toggle('is-lost', !connected);
  document.title = connected ? 'deferral' : 'deferral (not connected)';
}

// ---- now --------------------------------------------------------------------------------------------------------------

/** Times in seconds, and calls per second in the step that ends then. */
const rates = [[], []];
/** Seconds of a step in the proxy's history. */
let step = 5;
/** The previous state, and the state at the start of the step. */
let counted = null;
let begun = null;
/** Calls per second since the previous state. */
let rate = null;
let ratePlot;

/** Loads the proxy's history of the last hour, for a newly opened page. */
async function recall() {
  const response = await fetch('/history', { headers: authorized(), cache: 'no-store' }).catch(() => null);
  if (!response?.ok) return;
  const { step_ms: ms, until, ended } = await response.json();
  const last = Date.parse(until) / 1_000;
  step = ms / 1_000;
  rates[0] = ended.map((_, at) => last - (ended.length - 1 - at) * step);
  rates[1] = ended.map(calls => calls / step);
  [counted, begun] = [null, null];
}

/** Adds the calls since the last state. */
function count({ at, started, calls }) {
  const now = { at: Date.parse(at) / 1_000, started, total: calls.total };
  const follows = before => before && before.started === started && now.at > before.at && now.total >= before.total;
  const since = before => (now.total - before.total) / (now.at - before.at);
  rate = follows(counted) ? since(counted) : null;
  // A restart of the proxy resets the counter.
  if (!follows(begun)) begun = now;
  if (now.at - begun.at >= step) {
    rates[0].push(now.at);
    rates[1].push(since(begun));
    begun = now;
  }
  counted = now;
  while (rates[0].length && rates[0][0] < now.at - DRAWN) rates.forEach(each => each.shift());
}

function drawNow(state) {
  const { calls, tasks, questions_waiting: waiting } = state;
  const kept = Object.values(tasks.counts).reduce((sum, each) => sum + each, 0);
  const asking = tasks.counts.input_required ?? 0;
  const live = (tasks.counts.working ?? 0) + asking;
  say($('rate'), rate === null ? '–' : number.format(rate));
  say($('in-flight'), number.format(calls.in_flight));
  say($('calls-total'), `${number.format(calls.total)} so far`);
  say($('live'), number.format(live));
  say($('kept'), `${several(kept, 'task')} kept`);
  say($('questions'), number.format(waiting));
  say($('asking'), asking ? `of ${several(asking, 'task')}` : '');
  $('questions').classList.toggle('is-asking', waiting > 0);
  say($('version'), state.version ?? '');
  say($('uptime'), `up ${aged(Date.parse(state.at) - Date.parse(state.started))}`);
  drawReady(state.ready);
  const outcomes = Object.entries(calls.by_outcome).filter(([, times]) => times).sort((a, b) => b[1] - a[1]);
  drawList($('outcomes'), outcomes, ([outcome]) => outcome, () => {
    const item = make('li');
    item.append(make('span'), make('b'));
    return item;
  }, (item, [outcome, times]) => {
    say(item.firstChild, outcome.replaceAll('_', ' '));
    say(item.lastChild, number.format(times));
  });
  drawRate();
  say($('token'), authorized().Authorization ? 'Signed in' : 'Sign in');
}

/** `ready` is a boolean, or an object with details. */
function drawReady(ready) {
  const status = typeof ready === 'object' && ready ? ready.status : ready ? 'ready' : 'not ready';
  const failing = typeof ready === 'object' && ready?.store === 'failing';
  $('ready').hidden = ready === undefined;
  $('ready').className = `pill ${status === 'ready' && !failing ? 'is-up' : 'is-down'}`;
  say($('ready'), failing ? `${status}, the store fails` : String(status));
}

function drawRate() {
  ratePlot ??= plotIn($('rate-plot'), 84, {
    cursor: { show: false },
    scales: { x: { time: false, range: () => [counted.at - DRAWN, counted.at] }, y: { range: (_, low, high) => [0, Math.max(1, high * 1.1)] } },
    axes: [
      axis({ size: 20, splits: () => [-2_700, -900].map(ago => counted.at + ago), values: () => ['45 min ago', '15 min ago'] }),
      axis({ size: 44, space: 26, values: (_, all) => all.map(y => number.format(y)) })
    ],
    series: [{}, { stroke: () => color('--accent'), fill: () => color('--accent-soft'), width: 1.5, points: { show: false } }]
  });
  ratePlot.setData(rates.map(each => each.slice()));
  const most = rates[1].reduce((most, rate) => Math.max(most, rate), 0);
  set($('rate-plot'), 'aria-label', `Calls per second over the last hour: now ${number.format(rate ?? 0)}, at most ${number.format(most)}`);
}

// ---- lists and plots --------------------------------------------------------------------------------------------------

/** Makes the children of `list` match `items`, in order; existing children are updated, not replaced. */
function drawList(list, items, key, create, change) {
  const there = (list.items ??= new Map());
  const wanted = new Set(items.map(key));
  for (const [name, child] of there) {
    if (wanted.has(name)) continue;
    child.remove();
    there.delete(name);
  }
  let next = list.firstChild;
  for (const item of items) {
    const name = key(item);
    let child = there.get(name);
    if (!child) there.set(name, (child = create(item)));
    change(child, item);
    if (child === next) next = next.nextSibling;
    else list.insertBefore(child, next);
  }
}

const axis = more => ({
  stroke: () => color('--soft'), grid: { stroke: () => color('--line'), width: 1 }, ticks: { show: false },
  font: '11px system-ui, sans-serif', gap: 4, ...more
});

const plots = [];

/** A plot with the width of its element. */
function plotIn(element, height, options) {
  const data = options.series.map(() => []);
  const plot = new uPlot({ width: element.clientWidth || 300, height, legend: { show: false }, ...options }, data, element);
  new ResizeObserver(([{ contentRect }]) => {
    const width = Math.floor(contentRect.width);
    if (width && width !== plot.width) requestAnimationFrame(() => plot.setSize({ width, height }));
  }).observe(element);
  plots.push(plot);
  return plot;
}

// ---- tasks ------------------------------------------------------------------------------------------------------------

const STATES = { working: 'working', input_required: 'needs input', completed: 'completed', failed: 'failed', cancelled: 'cancelled' };
const LIVE = ['working', 'input_required'];
const isLive = task => LIVE.includes(task.status);
/** `after` is the start of the shown page of tasks; absent for the first page. */
const filter = { status: '', tool: '', words: '', after: '' };
const isFiltered = () => Boolean(filter.status || filter.tool || filter.words.trim());
/** Whether rows keep their position, so that a button does not move away from the mouse. */
let isHeld = false;
let shown = [];

/** Fetches the tasks that match the filter, if the proxy has more than it sends. One request at a time. */
let isSearching = false;
async function search() {
  if (!filter.after && (!isFiltered() || !known.state?.tasks.next)) {
    known.found = null;
    return;
  }
  // Older pages are fetched once, because ended tasks do not change.
  if (isSearching || (filter.after && known.found)) return;
  if (filter.words.trim() && known.found && performance.now() - known.found.at < SEARCH_AGAIN) return;
  isSearching = true;
  const query = new URLSearchParams({ limit: ROWS });
  if (filter.status) query.set('status', filter.status);
  if (filter.tool) ['route', 'tool'].forEach((name, at) => query.set(name, JSON.parse(filter.tool)[at]));
  if (filter.words.trim()) query.set('search', filter.words.trim());
  if (filter.after) query.set('after', filter.after);
  const asked = JSON.stringify(filter);
  try {
    const response = await fetch(`/tasks?${query}`, { headers: authorized(), cache: 'no-store' });
    if (response.ok && asked === JSON.stringify(filter)) known.found = { ...(await response.json()), at: performance.now() };
  } catch {
    // The event stream reports a lost connection.
  }
  isSearching = false;
  // The search text may have changed during the request.
  if (asked !== JSON.stringify(filter)) search();
  refresh();
}

/** The known tasks that match the filter, and the age of that information. */
function matching({ tasks }) {
  const from = known.found ?? { ...tasks, at: known.at };
  const words = filter.words.trim().toLowerCase();
  const fits = task =>
    (!filter.status || task.status === filter.status) &&
    (!filter.tool || JSON.stringify([task.route, task.tool]) === filter.tool) &&
    (!words || [task.message, task.caller, task.principal, task.task, task.tool, task.route].some(text => text?.toLowerCase().includes(words)));
  return { found: isFiltered() ? from.tasks.filter(fits) : from.tasks, since: connected ? performance.now() - from.at : 0, next: from.next };
}

function drawTasks(state) {
  const { found, since, next } = matching(state);
  if (isHeld) {
    const now = new Map(found.map(task => [task.task, task]));
    shown = shown.map(task => now.get(task.task) ?? task);
  } else {
    shown = found.slice(0, ROWS);
  }
  drawList($('rows'), shown, task => task.task, createRow, (row, task) => changeRow(row, task, since));
  $('no-tasks').hidden = shown.length > 0;
  say($('no-tasks'), filter.after && !known.found ? 'Loading …' : isFiltered() || filter.after ? 'No matching tasks.' : 'No tasks. A call that is still running at its threshold becomes one.');
  const { counts } = state.tasks;
  const all = Object.values(counts).reduce((sum, each) => sum + each, 0);
  const more = isFiltered() || filter.after ? 0 : all - shown.length;
  $('more').hidden = more <= 0 && !next && !isHeld && !filter.after;
  say($('more'), isHeld ? 'The list is paused while you point at it.'
    : filter.after ? (next ? 'An older page; more tasks follow.' : 'The last page.')
    : more > 0 ? `And ${number.format(more)} more.` : 'More tasks may follow.');
  $('newer').hidden = !filter.after;
  $('older').hidden = !next;
  $('older').after = next ?? '';
  drawStates(counts, all);
  drawToolChoice(state);
}

function createRow() {
  const row = $('row').content.firstElementChild.cloneNode(true);
  row.parts = Object.fromEntries([...row.querySelectorAll('[class]')].map(each => [each.classList[0], each]));
  set(row.parts.bar, 'aria-valuemin', 0);
  const { story } = row.parts;
  // The `toggle` event comes later: the row may have been redrawn, and its details fetched, in between.
  story.addEventListener('toggle', () => {
    if (!story.open) row.asking = null;
    else if (row.asking?.version !== versionOf(row)) tellStory(row);
  });
  return row;
}

const CAUSES = {
  threshold: ({ after_ms: after }) => `the call ran for ${lasting(after)}`, mode: ({ mode }) => `mode ${mode}`, request: () => 'the client requested a task',
  ticket: () => 'the call reached the time of the ticket', departure: () => 'the client disconnected', stop: () => 'the proxy was shutting down'
};

/** The task of a row and its version. */
const versionOf = ({ dataset }) => `${dataset.task} ${dataset.updated}`;

/** Shows why the call became a task, and its history. Fetched when a row is opened, because events do not contain it. */
async function tellStory(row) {
  const { cause, life } = row.parts;
  const handle = row.dataset.task;
  const asking = (row.asking = { version: versionOf(row) });
  try {
    const response = await fetch(`/tasks/${encodeURIComponent(handle)}`, { headers: authorized(), cache: 'no-store' });
    if (!response.ok) throw new Error(await problem(response));
    const task = await response.json();
    // The row was closed, or its details were requested again, during this request.
    if (row.asking !== asking) return;
    const by = task.cause && [(CAUSES[task.cause.by] ?? (() => task.cause.by))(task.cause), task.cause.rule && `rule ${task.cause.rule}`, task.cause.rollout && `rollout ${task.cause.rollout}`];
    say(cause, by ? `a task because ${by.filter(Boolean).join(', ')}` : 'why it became a task is not known');
    const began = Date.parse(task.created);
    const lines = (task.life ?? []).map(({ what, at, times }) =>
      `after ${lasting(Math.max(0, Date.parse(at) - began))}: ${what.replaceAll('_', ' ')}${times > 1 ? `, ${number.format(times)} times` : ''}`);
    life.replaceChildren(...lines.map(line => make('li', '', line)));
  } catch (error) {
    if (row.asking !== asking) return;
    say(cause, `not available: ${error.message}`);
    life.replaceChildren();
  }
}

function changeRow(row, task, since) {
  const { name, where, status, badge, age, message, asked, who, caller, quiet } = row.parts;
  const live = isLive(task);
  row.classList.toggle('is-ended', !live);
  row.dataset.task = task.task;
  row.dataset.updated = `${task.status} ${task.updated}`;
  if (row.parts.story.open && row.asking?.version !== versionOf(row)) tellStory(row);
  say(name, task.tool);
  set(name, 'title', task.tool);
  say(where, `${task.route} · ${task.task}`);
  say(status, STATES[task.status] ?? task.status);
  set(status, 'class', `status pill is-${task.status}`);
  set(status, 'title', `since ${task.status_since}, kept until ${task.kept_until ?? 'it ends'}`);
  say(badge, [task.view !== 'extension' ? task.view : '', live && !task.is_held ? 'not running here' : '', task.waits_for_store ? 'waiting for the store' : '']
    .filter(Boolean).join(' · '));
  say(age, aged(task.age_ms + (live ? since : 0)));
  set(age, 'title', `created ${task.created}`);
  say(message, task.message ?? '');
  set(message, 'title', task.message || null);
  changeProgress(row.parts.bar, live ? task.message : null, task.tool);
  say(asked, (task.questions ?? []).map(({ key, kind, since_ms: ms }) => `${key === kind ? kind : `${kind} ${key}`} ${aged(ms + since)}`).join(', '));
  say(who, task.waits ? several(task.waits, 'client') : live ? 'none' : '');
  say(caller, task.caller ?? task.principal ?? '');
  set(caller, 'title', task.principal);
  quiet.hidden = !live;
  set(quiet, 'aria-label', `Cancel ${task.tool}, task ${task.task}`);
}

/** The progress at the end of a message: `… (3/12)`. */
const PROGRESS = /\((\d{1,15}(?:\.\d{1,15})?)\/(\d{1,15}(?:\.\d{1,15})?)\)$/;

/** A progress bar, if the message has progress. */
function changeProgress(bar, message, tool) {
  const [, done, all] = (PROGRESS.exec((message ?? '').slice(-64)) ?? []).map(Number);
  bar.hidden = !(all > 0 && done <= all);
  if (bar.hidden) return;
  set(bar, 'aria-label', `progress of ${tool}`);
  set(bar, 'aria-valuemax', all);
  set(bar, 'aria-valuenow', done);
  bar.firstChild.style.transform = `scaleX(${done / all})`;
}

function drawStates(counts, all) {
  const states = [['', 'all', all], ...Object.entries(STATES).map(([status, name]) => [status, name, counts[status] ?? 0])];
  drawList($('states'), states, ([status]) => status, ([status]) => {
    const chip = make('button', 'chip');
    chip.type = 'button';
    chip.append(make('span'), make('b'));
    chip.addEventListener('click', () => choose({ status }));
    return chip;
  }, (chip, [status, name, times]) => {
    say(chip.firstChild, name);
    say(chip.lastChild, number.format(times));
    set(chip, 'aria-pressed', filter.status === status);
  });
}

function drawToolChoice({ tools }) {
  const choices = [['', 'all tools'], ...tools.map(({ route, tool }) => [JSON.stringify([route, tool]), `${tool} (${route})`])];
  drawList($('of-tool'), choices, ([value]) => value, ([value, text]) => {
    const option = $('of-tool').querySelector('option[value=""]');
    return value === '' && option ? option : new Option(text, value);
  }, (option, [, text]) => say(option, text));
}

function choose(change) {
  Object.assign(filter, { after: '' }, change);
  known.found = null;
  isHeld = false;
  search();
  refresh();
}

/** Asks for confirmation, and cancels. */
async function cancel(handle) {
  const task = shown.find(each => each.task === handle);
  if (!task) return;
  say($('confirm-tool'), task.tool);
  say($('confirm-what'), `${task.route} · ${task.task} · ${aged(task.age_ms)} old`);
  if ((await asked($('confirm'))) !== 'cancel') return;
  if (!authorized().Authorization && !(await askToken('Changes require the admin token.'))) return;
  for (;;) {
    let response;
    try {
      response = await fetch(`/tasks/${encodeURIComponent(handle)}/cancel`, { method: 'POST', headers: authorized() });
    } catch {
      return toast('The task was not cancelled: the proxy does not respond.');
    }
    if (response.status === 401) {
      sessionStorage.removeItem('token');
      if (await askToken(await problem(response))) continue;
      return;
    }
    if (!response.ok) return toast(`Not cancelled: ${await problem(response)}`);
    const now = await response.json();
    for (const list of [known.state.tasks, known.found].filter(Boolean)) {
      list.tasks = list.tasks.map(each => (each.task === handle ? { ...each, ...now } : each));
    }
    toast(`${task.tool} is cancelled.`);
    return refresh();
  }
}

// ---- latency ----------------------------------------------------------------------------------------------------------

/** Upper bounds of the histogram steps (µs): ten per power of ten, from 100 µs to 100,000 s. */
const BOUNDS = Array.from({ length: 9 }, (_, power) => [10, 12, 15, 20, 25, 30, 40, 50, 60, 80].map(tenths => tenths * 10 ** (power + 1))).flat();
BOUNDS.push(1e11);
/** Positions of the slider: from 10 ms to 50 min, each the bound of a step, so that shares are exact. */
const THRESHOLDS = BOUNDS.filter(bound => bound >= 1e4 && bound <= 3e9);
const lowerOf = end => (end === null ? BOUNDS.at(-1) : BOUNDS[BOUNDS.indexOf(end) - 1] ?? 0);

const latency = { chosen: null, whatIf: null, words: '', plot: null, steps: [], range: [3, 7] };
const keyOf = ({ route, tool }) => JSON.stringify([route, tool]);

/** The regular expression of a pattern with `*` and `?`. */
function matches(pattern, name) {
  const expression = pattern.replace(/[.+^${}()|[\]\\]/g, '\\$&').replaceAll('*', '.*').replaceAll('?', '.');
  return new RegExp(`^${expression}$`, 's').test(name);
}

/** Mode and threshold (µs) of a tool. */
function policyOf(routes, { route, tool }) {
  const of = routes.find(each => each.path === route);
  const rule = of?.tools?.find(each => matches(each.match, tool));
  const ms = rule?.after_ms ?? of?.after_ms ?? null;
  return { mode: rule?.mode ?? of?.mode ?? 'auto', after: ms === null ? null : ms * 1_000, rollout: rule?.rollout ?? of?.rollout ?? null };
}

/** Number of calls that took longer, interpolated within a step. */
function longerThan(calls, us) {
  return calls.steps.reduce((sum, [end, times]) => {
    const low = lowerOf(end);
    if (low >= us) return sum + times;
    if (end === null) return sum + (calls.longest_us > us ? times : 0);
    if (end <= us) return sum;
    const share = low > 0 ? Math.log(end / us) / Math.log(end / low) : (end - us) / end;
    return sum + times * share;
  }, 0);
}
const shareOver = (calls, us) => (calls.count && us !== null ? longerThan(calls, us) / calls.count : 0);

const MODES = {
  auto: after => `auto: a call that takes longer than ${after} becomes a task`,
  required: after => `required: as auto (${after}), and clients without task support are refused`,
  observe: after => `observe: no call becomes a task; calls that take longer than ${after} are logged`,
  always: () => 'always: every call is a task at once',
  never: () => 'never: no call becomes a task, however long it takes'
};

function drawLatency({ tools, routes }) {
  const has = tools.some(tool => tool.calls.count);
  $('no-tools').hidden = has;
  $('latency-body').hidden = !has;
  if (!has) return;
  // Sorted by the effect of the threshold. Moving the slider does not change the order.
  const slow = tool => longerThan(tool.calls, policyOf(routes, tool).after ?? Infinity);
  const called = tools.filter(tool => tool.calls.count).map(tool => ({ ...tool, slow: slow(tool) }))
    .sort((a, b) => b.slow - a.slow || b.calls.count - a.calls.count || keyOf(a).localeCompare(keyOf(b)));
  const chosen = called.find(tool => keyOf(tool) === latency.chosen) ?? called[0];
  latency.chosen = keyOf(chosen);
  drawTools(called, routes, chosen);
  drawChosen(chosen, policyOf(routes, chosen));
}

function drawTools(called, routes, chosen) {
  $('find-tool').hidden = called.length < 9;
  const words = latency.words.toLowerCase();
  const found = called.filter(tool => tool.tool.toLowerCase().includes(words));
  const listed = found.slice(0, TOOLS);
  drawList($('tools'), listed, keyOf, createTool, (item, tool) => changeTool(item, tool, policyOf(routes, tool), tool === chosen));
  $('more-tools').hidden = found.length <= TOOLS;
  say($('more-tools'), `And ${number.format(found.length - TOOLS)} more tools.`);
}

function createTool(tool) {
  const item = make('li');
  const button = make('button', 'tool-choice');
  button.type = 'button';
  button.append(make('span', 'name'), make('span', 'where'), make('canvas'), make('span', 'times'), make('span', 'percent'));
  button.children[2].width = 192;
  button.children[2].height = 44;
  button.children[2].setAttribute('aria-hidden', 'true');
  button.addEventListener('click', () => {
    latency.chosen = keyOf(tool);
    refresh();
  });
  item.append(button);
  return item;
}

function changeTool({ firstChild: button }, tool, { after }, isChosen) {
  const [name, where, canvas, times, share] = button.children;
  const at = latency.whatIf ?? after;
  set(button, 'aria-pressed', isChosen);
  say(name, tool.tool);
  set(name, 'title', tool.tool);
  say(where, tool.route);
  say(times, `${several(tool.calls.count, 'call')} · p50 ${micro(tool.p50_us)} · p99 ${micro(tool.p99_us)}`);
  say(share, at === null ? '–' : percent(shareOver(tool.calls, at)));
  set(share, 'title', at === null ? null : `took longer than ${micro(at)}`);
  // Redraw only if the data changed.
  const drawing = `${tool.calls.count} ${at} ${scheme.matches}`;
  if (canvas.drawing === drawing) return;
  canvas.drawing = drawing;
  drawSmall(canvas, tool.calls.steps, at);
}

/** A miniature histogram from 1 ms to 1,000 s. */
function drawSmall(canvas, steps, at) {
  const pen = canvas.getContext('2d');
  const x = us => (Math.log10(Math.min(Math.max(us, 1e3), 1e9)) - 3) / 6 * canvas.width;
  const top = Math.max(...steps.map(([, times]) => times));
  pen.clearRect(0, 0, canvas.width, canvas.height);
  for (const [end, times] of steps) {
    const [left, right] = [x(lowerOf(end)), x(end ?? 1e11)];
    const height = Math.max(3, times / top * (canvas.height - 2));
    pen.fillStyle = color(at !== null && lowerOf(end) >= at ? '--slow' : '--quick');
    pen.fillRect(Math.min(left, canvas.width - 3), canvas.height - height, Math.max(2, right - left - 1), height);
  }
}

function drawChosen(tool, { mode, after, rollout }) {
  const at = latency.whatIf ?? after;
  say($('chosen-name'), tool.tool);
  say($('chosen-mode'), `${tool.route} · ${(MODES[mode] ?? (() => mode))(micro(after))}${rollout ? `, for ${rollout}` : ''}`);
  drawThreshold(tool, at, after);
  const facts = [
    ['calls', number.format(tool.calls.count)], ['p50', micro(tool.p50_us)], ['p90', micro(tool.p90_us)], ['p99', micro(tool.p99_us)],
    ['longest', micro(tool.calls.longest_us)], ['timed out', tool.timed_out], ['abandoned by clients', tool.departed],
    ['became tasks', tool.tasks_created], ['completed', tool.tasks_completed], ['failed', tool.tasks_failed], ['cancelled', tool.tasks_cancelled]
  ];
  if (mode === 'observe' || rollout) facts.push(['would be tasks', tool.would_defer]);
  drawList($('facts'), facts, ([name]) => name, ([name]) => {
    const fact = make('div');
    fact.append(make('dt', '', name), make('dd'));
    return fact;
  }, (fact, [, value]) => say(fact.lastChild, typeof value === 'number' ? number.format(value) : value));
  drawHistogram(tool, at, after);
}

function drawThreshold(tool, at, after) {
  const slider = $('threshold');
  const index = THRESHOLDS.findIndex(bound => bound >= (at ?? 5e6));
  slider.max = THRESHOLDS.length - 1;
  if (document.activeElement !== slider || latency.whatIf === null) slider.value = index < 0 ? slider.max : index;
  set(slider, 'aria-valuetext', micro(at));
  say($('threshold-said'), micro(at));
  $('as-configured').hidden = latency.whatIf === null;
  const over = at === null ? 0 : longerThan(tool.calls, at);
  const share = shareOver(tool.calls, at);
  say($('share'), at === null ? '–' : percent(share));
  say($('share-of'), at === null ? 'no threshold is configured: move the slider to try one'
    : `of calls took longer than ${micro(at)} (${number.format(Math.round(over))} of ${number.format(tool.calls.count)}) and would become tasks`);
  $('share-bar').style.transform = `scaleX(${share})`;
  say($('share-now'), latency.whatIf !== null && after !== null && after !== at
    ? `With the configured threshold of ${micro(after)}: ${percent(shareOver(tool.calls, after))}` : '');
}

/** The bars on one side of the threshold; a bar spans its step. */
const bars = isSlow => plot => {
  const fill = new Path2D();
  const [low, high] = [Math.log10(latency.at ?? 1e12), plot.valToPos(0, 'y', true)];
  for (const [end, times] of latency.steps) {
    const from = Math.max(Math.log10(Math.max(lowerOf(end), 80)), isSlow ? low : -Infinity);
    const to = Math.min(Math.log10(end ?? 1.2e11), isSlow ? Infinity : low);
    if (from >= to) continue;
    const [left, right] = [plot.valToPos(from, 'x', true), plot.valToPos(to, 'x', true)];
    const height = Math.max(2 * devicePixelRatio, high - plot.valToPos(times, 'y', true));
    fill.rect(left, high - height, Math.max(1, right - left - 1), height);
  }
  return { stroke: null, fill };
};

/** Ticks of the time axis, as many as fit. */
function marks(plot, _, low, high) {
  const each = { 0: [1], 1: [1, 3], 2: [1, 2, 5] }[high - low > 3.5 ? 0 : high - low > 1.8 ? 1 : 2];
  const found = [];
  for (let power = 1; power <= 11; power += 1) found.push(...each.map(times => times * 10 ** power));
  return found.map(Math.log10).filter(at => at >= low && at <= high);
}

function makeHistogram() {
  const plot = plotIn($('plot'), 240, {
    cursor: { y: false, points: { show: false }, drag: { x: false, y: false } },
    scales: { x: { time: false, range: () => latency.range }, y: { range: (_, low, high) => [0, Math.max(1, high * 1.3)] } },
    axes: [
      axis({ size: 24, splits: marks, values: (_, all) => all.map(at => lasting(10 ** at / 1_000)) }),
      axis({ size: 44, space: 36, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 1e7, 1e8, 1e9], values: (_, all) => all.map(y => number.format(y)) })
    ],
    series: [
      {},
      { paths: bars(false), fill: () => color('--quick'), points: { show: false } },
      { paths: bars(true), fill: () => color('--slow'), points: { show: false } }
    ],
    hooks: { draw: [placeMarks], setCursor: [sayUnder] }
  });
  for (const name of ['after', 'what-if']) {
    const mark = make('div', `mark is-${name}`);
    mark.append(make('span'));
    plot.over.append(mark);
    latency[name] = mark;
  }
  plot.over.addEventListener('pointerdown', event => {
    const us = 10 ** plot.posToVal(event.clientX - plot.over.getBoundingClientRect().left, 'x');
    tryThreshold(nearest(us));
  });
  return plot;
}

const nearest = us => THRESHOLDS.reduce((best, each) => (Math.abs(Math.log(each / us)) < Math.abs(Math.log(best / us)) ? each : best));

function drawHistogram(tool, at, after) {
  latency.at = at;
  latency.configured = after;
  latency.steps = tool.calls.steps;
  const ends = tool.calls.steps.flatMap(([end]) => [Math.max(lowerOf(end), 80), end ?? 1.2e11]).concat(at ?? [], after ?? []);
  latency.range = [Math.log10(Math.min(...ends)) - 0.15, Math.log10(Math.max(...ends)) + 0.15];
  latency.plot ??= makeHistogram();
  const xs = tool.calls.steps.map(([end]) => Math.log10(end ?? 1.2e11));
  const ys = tool.calls.steps.map(([, times]) => times);
  latency.plot.setData([xs, ys, ys]);
  say($('plot-said'), `Histogram of ${several(tool.calls.count, 'call')} of ${tool.tool} on a logarithmic axis of time. ${after === null ? '' : `Its threshold is ${micro(after)}.`}`);
}

/** Positions the two threshold markers. */
function placeMarks(plot) {
  const place = (mark, us, text) => {
    if (!mark) return;
    mark.hidden = us === null;
    if (us === null) return;
    const left = plot.valToPos(Math.log10(us), 'x');
    mark.dataset.us = us;
    mark.style.transform = `translateX(${Math.round(left)}px)`;
    mark.classList.toggle('is-left', left > plot.bbox.width / devicePixelRatio - 130);
    say(mark.firstChild, text);
  };
  place(latency.after, latency.configured ?? null, `after ${micro(latency.configured)}`);
  place(latency['what-if'], latency.whatIf, `if ${micro(latency.whatIf)}`);
}

function sayUnder(plot) {
  const { left } = plot.cursor;
  const us = left >= 0 ? 10 ** plot.posToVal(left, 'x') : -1;
  const step = latency.steps.find(([end]) => us > lowerOf(end) && us <= (end ?? Infinity));
  say($('under'), step ? `${lasting(lowerOf(step[0]) / 1_000)} to ${step[0] === null ? 'more' : micro(step[0])}: ${several(step[1], 'call')}` : '');
}

function tryThreshold(us) {
  latency.whatIf = us;
  refresh();
}

// ---- limits and servers -----------------------------------------------------------------------------------------------

const SIZES = /bytes$|body_memory$/;
const TIMES = /^timeouts\.|\.start_timeout$|\.park$|\.deadline$/;
function amount(limit, value) {
  if (value === null || value === undefined) return '–';
  return SIZES.test(limit) ? sized(value) : TIMES.test(limit) ? lasting(value * 1_000) : number.format(value);
}

function drawLimits({ limits }) {
  const fullness = ({ used, value }) => (used === null || !value ? -1 : used / value);
  const isNear = limit => fullness(limit) >= 0 || limit.hits > 0;
  const near = limits.filter(isNear).sort((a, b) => (b.hits > 0) - (a.hits > 0) || fullness(b) - fullness(a) || a.limit.localeCompare(b.limit));
  const others = limits.filter(limit => !isNear(limit)).sort((a, b) => a.limit.localeCompare(b.limit));
  const list = (element, items) => drawList(element, items, ({ limit }) => limit, createLimit, (item, limit) => changeLimit(item, limit, fullness(limit)));
  list($('near'), near);
  list($('others'), others);
  say($('others-said'), `${several(others.length, 'other limit')}, not reached since the start`);
}

function createLimit({ limit }) {
  const item = make('li');
  const bar = make('div', 'bar');
  bar.append(make('i'));
  set(bar, 'role', 'meter');
  set(bar, 'aria-label', limit);
  set(bar, 'aria-valuemin', 0);
  item.append(make('code', '', limit), make('span', 'hits'), make('span', 'amount'), bar);
  return item;
}

function changeLimit(item, { limit, value, used, hits }, full) {
  const [, met, taken, bar] = item.children;
  say(met, hits ? `reached ${several(hits, 'time')}` : '');
  say(taken, used === null ? amount(limit, value) : `${amount(limit, used)} of ${amount(limit, value)}`);
  bar.hidden = full < 0;
  if (full < 0) return;
  set(bar, 'aria-valuemax', value);
  set(bar, 'aria-valuenow', used);
  set(bar, 'class', `bar ${full >= 0.9 ? 'is-full' : full >= 0.7 ? 'is-high' : ''}`);
  bar.firstChild.style.transform = `scaleX(${Math.min(1, full)})`;
}

function drawServers({ routes, processes }) {
  const of = new Map((processes?.routes ?? []).map(each => [each.path, each]));
  drawList($('routes'), routes, ({ path }) => path, createRoute, (item, route) => changeRoute(item, route, of.get(route.path)));
}

function createRoute() {
  const item = make('li');
  const head = make('div', 'route');
  head.append(make('h3'), make('span', 'pill'), make('code', 'server'));
  item.append(head, make('p', 'warn'), make('p', 'soft'), make('ul', 'processes'), make('div', 'ended'));
  return item;
}

function changeRoute(item, route, processes) {
  const [head, why, facts, running, ended] = item.children;
  const [path, up, server] = head.children;
  say(path, route.path);
  say(up, route.is_up === null ? 'not contacted yet' : route.is_up ? 'up' : 'down');
  why.hidden = !route.failure;
  say(why, route.failure ? `down: ${route.failure}` : '');
  set(up, 'class', `pill ${route.is_up === null ? 'is-waiting' : route.is_up ? 'is-up' : 'is-down'}`);
  say(server, route.server);
  say(facts, [
    (MODES[route.mode] ?? (() => route.mode))(lasting(route.after_ms ?? 0)), route.rollout ? `for ${route.rollout}` : '', route.ticket_ms ? `tickets after ${lasting(route.ticket_ms)}` : '', several(route.in_flight, 'request') + ' in flight',
    several(route.sessions, 'session'), processes ? several(processes.starts, 'start') : ''
  ].filter(Boolean).join(' · '));
  drawList(running, processes?.running ?? [], ({ pid, since }) => `${pid} ${since}`, () => make('li'), (child, { pid, since, calls, caller }) =>
    say(child, `process ${pid ?? '…'} · up ${aged(Date.parse(known.state.at) - Date.parse(since))} · ${several(calls, 'call')} in flight${caller ? ` · of ${caller}` : ''}`));
  changeEnded(ended, processes?.last_ended);
}

/** The process that ended last, and its last output. */
function changeEnded(element, last) {
  element.hidden = !last;
  if (!last) return;
  if (!element.firstChild) element.append(make('p'), make('pre'));
  const [how, said] = element.children;
  set(how, 'class', last.is_wanted ? 'soft' : 'warn');
  say(how, `${last.is_wanted ? 'stopped by the proxy' : 'last unexpected exit'}: process ${last.pid ?? '?'}, ${last.how}, at ${new Date(last.at).toLocaleTimeString()}`);
  say(said, last.said.join('\n'));
  said.hidden = last.said.length === 0;
}

async function showConfig() {
  if (!$('config').open) return;
  try {
    const response = await fetch('/config', { headers: authorized(), cache: 'no-store' });
    if (!response.ok) throw new Error(await problem(response));
    const { file, settings } = await response.json();
    say($('config-file'), file ?? 'from the command line');
    say($('settings'), JSON.stringify(settings, null, 2));
  } catch (error) {
    say($('settings'), `not available: ${error.message}`);
  }
}

// ---- joined -----------------------------------------------------------------------------------------------------------

function draw(state) {
  showConnection();
  drawNow(state);
  drawTasks(state);
  drawLatency(state);
  drawServers(state);
  drawLimits(state);
}

scheme.addEventListener('change', () => {
  colors.clear();
  refresh();
  plots.forEach(plot => plot.redraw());
});

$('rows').addEventListener('click', event => {
  if (event.target.closest('button')) cancel(event.target.closest('tr').dataset.task);
});
$('rows').addEventListener('pointerenter', event => {
  isHeld = event.pointerType === 'mouse';
});
$('rows').addEventListener('pointerleave', () => {
  isHeld = false;
});
$('of-tool').addEventListener('change', event => choose({ tool: event.target.value }));
$('words').addEventListener('input', event => choose({ words: event.target.value }));
$('older').addEventListener('click', () => choose({ after: $('older').after }));
$('newer').addEventListener('click', () => choose({ after: '' }));
$('find-tool').addEventListener('input', event => {
  latency.words = event.target.value;
  refresh();
});
$('threshold').addEventListener('input', event => tryThreshold(THRESHOLDS[event.target.value]));
$('as-configured').addEventListener('click', () => tryThreshold(null));
$('config').addEventListener('toggle', showConfig);
$('retry').addEventListener('click', () => {
  mayAsk = true;
  wake();
});
$('token').addEventListener('click', async () => {
  await askToken(authorized().Authorization ? 'This tab is signed in already; a new token replaces the old one.' : 'Changes require the admin token.');
  wake();
});
addEventListener('hashchange', signIn);

await signIn();
follow();
