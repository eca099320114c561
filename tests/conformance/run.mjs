// Runs the official conformance suite and compares the outcome with score.json, which may only ever rise.
//
//   node run.mjs [--deferral BINARY] [--only GROUP[,GROUP]] [--runs N] [--update]
//
// Groups: legacy-alone    the fixture by itself, at 2025-11-25 (shows that the fixture is sound)
//         legacy          the proxy in front of it, at 2025-11-25
//         modern          the proxy in front of it, at 2026-07-28 (includes the tasks-* scenarios)
//         tasks           only the tasks-* scenarios of `modern`
//         together        `legacy` and `modern` at the same time, against one proxy in front of one fixture; counted as
//                         together-legacy, together-modern and together-tasks. The set that is done first starts again
//                         until the other is done, so that neither ever has the proxy to itself
//         stdio-legacy    the proxy in front of the fixture as a process, at 2025-11-25; stdio-modern, stdio-tasks likewise
//         tickets-legacy  the proxy where every client that knows no tasks gets tickets; tickets-modern, tickets-tasks
//         NAME-hard       the same against the fixture's --hard variant
//         client          the proxy's upstream side: the suite plays the server
// Without --deferral only the legacy-alone groups run. A scenario passes when all of N runs did.
// The last line is "N passed, M failed", where failed counts what score.json says was better before.

import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { availableParallelism, tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { parseArgs } from 'node:util';
import { parse as parseYaml } from 'yaml';
import { NODE, asProcess, atUrl, start, startFixture, startProxy, stop, warm } from './processes.mjs';

const here = import.meta.dirname;
const suite = join(here, 'node_modules/@modelcontextprotocol/conformance');
const SCORE = join(here, 'score.json');

const { values: flags } = parseArgs({
  options: {
    deferral: { type: 'string' },
    only: { type: 'string' },
    runs: { type: 'string', default: '1' },
    update: { type: 'boolean', default: false }
  }
});
const binary = flags.deferral && resolve(flags.deferral);
const runs = Number(flags.runs);
const only = flags.only?.split(',');

// ---- what there is to run -------------------------------------------------------------------------------------------

function requirements(revision) {
  const set = parseYaml(readFileSync(join(suite, 'requirements', `${revision}.yaml`), 'utf8'));
  const extra = set.not_scored.filter(entry => entry.leg === 'server').map(entry => entry.scenario);
  return { revision, scored: set.server, names: [...set.server, ...extra] };
}
const legacy = requirements('2025-11-25');
const modern = requirements('2026-07-28');
const isTask = name => name.startsWith('tasks-');

// The suite's other client scenarios need a client that logs in, or a modern upstream.
const CLIENT = [
  'initialize', 'tools_call', 'sse-retry', 'json-schema-2020-12-preservation', 'json-schema-ref-no-deref',
  'elicitation-sep1034-client-defaults'
];

const jobs = [
  { group: 'legacy-alone', set: legacy, alone: true },
  { group: 'modern', set: modern },
  { group: 'modern-hard', set: modern, hard: true },
  { group: 'legacy', set: legacy },
  { group: 'legacy-hard', set: legacy, hard: true },
  { group: 'legacy-alone-hard', set: legacy, hard: true, alone: true },
  { group: 'together', sets: [legacy, modern] },
  { group: 'together-hard', sets: [legacy, modern], hard: true },
  { group: 'stdio-legacy', set: legacy, stdio: true },
  { group: 'stdio-modern', set: modern, stdio: true },
  { group: 'tickets-legacy', set: legacy, tickets: true },
  { group: 'tickets-modern', set: modern, tickets: true },
  { group: 'client', client: true }
].flatMap(job => {
  if (!binary && !job.alone) return [];
  if (!only || only.includes(job.group)) return [job];
  const tasks = job.set === modern && only.includes(groupOf(job, 'tasks-'));
  return tasks ? [{ ...job, scenarios: modern.names.filter(isTask) }] : [];
});

if (!jobs.length) {
  console.error(binary ? `no such group: ${flags.only}` : `${flags.only} needs --deferral BINARY`);
  process.exit(2);
}

const scratch = mkdtempSync(join(tmpdir(), 'deferral-conformance-'));

/** The tasks-* scenarios come out of the same run as `modern`, but are counted apart. */
function groupOf(job, scenario) {
  return isTask(scenario) ? job.group.replace('modern', 'tasks') : job.group;
}

// ---- running --------------------------------------------------------------------------------------------------------

/** A dead server "passes" dozens of checks, so see that one is there before scoring it. */
async function probe(url, set) {
  const _meta = {
    'io.modelcontextprotocol/protocolVersion': set.revision,
    'io.modelcontextprotocol/clientInfo': { name: 'probe', version: '1' },
    'io.modelcontextprotocol/clientCapabilities': {}
  };
  const [method, params] = set === modern
    ? ['server/discover', { _meta }]
    : ['initialize', { protocolVersion: set.revision, capabilities: {}, clientInfo: { name: 'probe', version: '1' } }];
  const response = await fetch(url, {
    method: 'POST',
    headers: {
      'Content-Type': 'application/json',
      Accept: 'application/json, text/event-stream',
      ...(set === modern && { 'MCP-Protocol-Version': set.revision, 'Mcp-Method': method })
    },
    body: JSON.stringify({ jsonrpc: '2.0', id: 1, method, params }),
    signal: AbortSignal.timeout(10_000)
  });
  const body = await response.text();
  if (!body.includes('"jsonrpc"')) throw new Error(`no answer to ${method}: HTTP ${response.status} ${body.slice(0, 200)}`);
}

async function runSuite(args, dir, env = {}) {
  const child = start(NODE, [join(suite, 'dist/index.js'), ...args, '-o', dir], join(dir, 'suite.log'), {
    env: { ...process.env, ...env }
  });
  const limit = setTimeout(() => stop(child), 300_000);
  await child.exited;
  clearTimeout(limit);
}

/** The verdict on one scenario: "clean", "warnings", "skipped" or "failed", with the checks that are to blame. */
function judge(dir, scenario, { client, group }) {
  const path = readdirSync(dir).find(name => name.replace(/^server-/, '').replace(/-\d{4}-\d\d-\d\dT.*$/, '') === scenario);
  let checks;
  try {
    checks = JSON.parse(readFileSync(join(dir, path, 'checks.json'), 'utf8'));
  } catch {
    return { verdict: 'failed', blame: [{ id: 'unfinished', errorMessage: 'the scenario left no result' }] };
  }
  if (client && /CLIENT (TIMED OUT|EXITED WITH ERROR)/.test(readFileSync(join(dir, 'suite.log'), 'utf8'))) {
    const errorMessage = readFileSync(join(dir, path, 'stderr.txt'), 'utf8').trim();
    checks.push({ id: 'client-driver', status: 'FAILURE', errorMessage });
  }
  const having = status => checks.filter(check => check.status === status);
  const blame = [...having('FAILURE'), ...having('WARNING')];
  // Some scenarios downgrade everything to warnings or skips when nobody answers: no success, no pass.
  const verdict = having('FAILURE').length ? 'failed'
    : !having('SUCCESS').length ? (blame.length ? 'failed' : 'skipped')
    : blame.length ? 'warnings' : 'clean';
  return { verdict, blame };
}

/** A job of several sets, as a job for each. */
function partsOf(job) {
  if (!job.sets) return [job];
  const name = set => (set === modern ? 'modern' : 'legacy');
  return job.sets.map(set => ({ ...job, set, group: job.group.replace('together', `together-${name(set)}`) }));
}

/** Runs one set once. */
async function runSet(job, url, dir) {
  const names = job.scenarios ?? job.set.names;
  if (job.scenarios) {
    for (const name of names) {
      await runSuite(['server', '--url', url, '--scenario', name, '--spec-version', job.set.revision, '--force'], dir);
    }
  } else {
    await runSuite(['server', '--url', url, '--requirements', job.set.revision], dir);
  }
  names.forEach(name => record(job, name, judge(dir, name, job)));
}

async function runServerJob(job, dir) {
  const processes = [];
  const parts = partsOf(job);
  try {
    if (!job.stdio) processes.push(await startFixture(dir, job.hard));
    if (!job.alone) {
      const upstream = job.stdio ? asProcess(job.hard) : atUrl(processes[0].url);
      processes.push(await startProxy(binary, upstream, dir, job.tickets));
    }
    const { url } = processes.at(-1);
    if (job.stdio) await warm(url);
    for (const part of parts) await probe(url, part.set);
    const unfinished = new Set(parts);
    await Promise.all(
      parts.map(async part => {
        for (let round = 1; round === 1 || unfinished.size; round++) {
          const own = join(dir, `${part.group}-${round}`);
          mkdirSync(own);
          await runSet(part, url, own);
          rounds[part.group] = (rounds[part.group] ?? 0) + 1;
          unfinished.delete(part);
        }
      })
    );
    const dead = processes.find(child => child.ended);
    if (dead) throw new Error(`${dead.spawnfile} ended during the run`);
  } finally {
    for (const child of processes.reverse()) {
      if (!(await stop(child))) note(job.group, `${child.spawnfile} ignored SIGTERM`);
    }
  }
}

async function runClientJob(job, dir) {
  for (const name of CLIENT) {
    const own = join(dir, name);
    mkdirSync(own);
    const command = `'${process.execPath}' '${join(here, 'client-driver.mjs')}'`;
    // --force: json-schema-ref-no-deref is of 2026-07-28, but its server answers 2025-11-25 clients just as well.
    await runSuite(
      ['client', '--command', command, '--scenario', name, '--spec-version', legacy.revision, '--force'], own,
      { DEFERRAL: binary, DRIVER_DIR: own }
    );
    record(job, name, judge(own, name, job));
  }
}

// ---- collecting -----------------------------------------------------------------------------------------------------

const LEVEL = { failed: 0, skipped: 0, warnings: 1, clean: 2 };
const outcome = {}; // group -> scenario -> { verdict, blame }
const rounds = {}; // group -> how often its set ran
const unscored = new Set(); // groups whose server was not there
const notes = [];
const note = (group, message) => notes.push(`${group}: ${message}`);

function record(job, scenario, result) {
  const group = (outcome[groupOf(job, scenario)] ??= {});
  const before = group[scenario];
  if (!before || LEVEL[result.verdict] < LEVEL[before.verdict]) group[scenario] = result;
  if (before && before.verdict !== result.verdict) note(groupOf(job, scenario), `${scenario} is flaky`);
}

async function runJob(job, run) {
  const dir = join(scratch, `${job.group}-${run}`);
  mkdirSync(dir);
  try {
    await (job.client ? runClientJob : runServerJob)(job, dir);
  } catch (error) {
    // Not scored at all: whatever score.json expects here counts as lost.
    note(job.group, `not scored, ${error.message}`);
    for (const part of partsOf(job)) {
      for (const scenario of part.scenarios ?? part.set?.names ?? CLIENT) {
        record(part, scenario, { verdict: 'failed', blame: [] });
        unscored.add(groupOf(part, scenario));
      }
    }
  }
}

for (let run = 1; run <= runs; run++) {
  // Two at a time; client mode measures a delay of 500 ms to within 200 ms and is left alone.
  const queue = jobs.filter(job => !job.client);
  const lane = async () => {
    for (let job; (job = queue.shift()); ) await runJob(job, run);
  };
  await Promise.all(Array.from({ length: Math.min(2, availableParallelism()) }, lane));
  for (const job of jobs.filter(job => job.client)) await runJob(job, run);
}

// ---- reporting ------------------------------------------------------------------------------------------------------

let score = {};
try {
  score = JSON.parse(readFileSync(SCORE, 'utf8'));
} catch (error) {
  if (error.code !== 'ENOENT') throw error;
}

let passed = 0;
const lost = [];
for (const group of new Set(jobs.flatMap(partsOf).flatMap(job => [job.group, groupOf(job, 'tasks-')]))) {
  const scenarios = outcome[group] ?? {}; // `--only tasks` leaves nothing for `modern`
  const all = Object.entries(scenarios);
  if (!all.length) continue;
  const set = group.includes('legacy') ? legacy : group.includes('modern') ? modern : undefined;
  const scored = set?.scored ?? Object.keys(scenarios);
  const pass = entries => entries.filter(([, { verdict }]) => LEVEL[verdict]).length;
  const share = (entries, label) => {
    const skipped = entries.filter(([, { verdict }]) => verdict === 'skipped').length;
    return entries.length ? `  ${pass(entries)}/${entries.length - skipped} ${label}${skipped ? `, ${skipped} skipped` : ''}` : '';
  };
  passed += pass(all);
  console.log(
    `${group.padEnd(21)}${share(all.filter(([name]) => scored.includes(name)), 'scored')}` +
    `${share(all.filter(([name]) => !scored.includes(name)), 'others')}` +
    `${rounds[group] > runs ? `  (ran ${rounds[group]} times)` : ''}`
  );
  for (const [name, { verdict, blame }] of all) {
    const expected = score[group]?.[name];
    const regression = expected && LEVEL[verdict] < LEVEL[expected];
    if (regression) lost.push(`${group}: ${name} was ${expected}, is ${verdict}`);
    if (verdict === 'clean' || (verdict === 'skipped' && !regression) || unscored.has(group)) continue;
    console.log(`  ${verdict.padEnd(8)} ${name}`);
    for (const check of blame) {
      const message = (check.errorMessage ?? check.details?.message ?? check.description ?? '').replace(/\s+/g, ' ');
      console.log(`           ${check.status === 'WARNING' ? '(warning) ' : ''}${check.id}: ${message.slice(0, 300)}`);
    }
  }
}
for (const line of notes) console.log(`note: ${line}`);
for (const line of lost) console.log(`REGRESSION ${line}`);

if (flags.update) {
  for (const [group, scenarios] of Object.entries(outcome)) {
    const kept = (score[group] ??= {});
    for (const [name, { verdict }] of Object.entries(scenarios)) {
      if (LEVEL[verdict] > (LEVEL[kept[name]] ?? 0)) kept[name] = verdict;
    }
  }
  const sorted = Object.entries(score).filter(([, kept]) => Object.keys(kept).length).sort();
  writeFileSync(SCORE, `${JSON.stringify(Object.fromEntries(sorted), null, 2)}\n`);
}

const spotless = Object.values(outcome).every(group => Object.values(group).every(({ verdict }) => verdict !== 'failed'));
if (spotless && !notes.length) rmSync(scratch, { recursive: true });
else console.log(`details: ${scratch}`);
console.log(`${passed} passed, ${lost.length} failed`);
process.exit(lost.length || unscored.size ? 1 : 0);
