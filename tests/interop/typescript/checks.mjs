// What the checks of both clients are made with: how one is declared, run and told.

import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';

const checks = [];

/** Declares a check, in a group or several. */
export function check(groups, name, run) {
  for (const group of [groups].flat()) checks.push({ group, name: `${group}/${name}`, run });
}

/** A name no other call of this run has. */
export const label = () => `ts-${randomUUID().slice(0, 13)}`;

export function textOf(result) {
  assert.deepEqual(result.content.map((block) => block.type), ['text'], 'the types of the content blocks');
  return result.content[0].text;
}

/** The error that a promise fails with. */
export async function failure(promise) {
  let result;
  try {
    result = await promise;
  } catch (error) {
    return error;
  }
  throw new assert.AssertionError({ message: `a result instead of an error: ${JSON.stringify(result).slice(0, 300)}` });
}

export function isDatabaseError({ code, message, data }) {
  assert.equal(code, -31001, 'the code');
  assert.match(message, /the database is down$/, 'the message');
  assert.deepEqual(data, { retry: false }, 'the data');
}

function reason(error) {
  const failed = error instanceof assert.AssertionError;
  const parts = [failed ? error.message : `${error?.name}: ${error?.message}`];
  if (failed && /Equal$/.test(error.operator ?? '')) {
    parts[0] = parts[0].split(/\n|\+ actual/)[0].trim();
    parts.push(`got ${JSON.stringify(error.actual)}, want ${JSON.stringify(error.expected)}`);
  }
  for (let cause = error?.cause; cause; cause = cause.cause) parts.push(`caused by ${cause.message ?? cause}`);
  return parts.join(': ').replace(/\s+/g, ' ').slice(0, 600);
}

/** Runs the checks of these groups one after the other, each for so long at most, and ends the process. */
export async function runChecks({ groups, only }, seconds) {
  const wanted = groups.split(',');
  const parts = only.split(',');
  const chosen = checks.filter(({ group, name }) => wanted.includes(group) && parts.some((part) => name.includes(part)));
  let failed = 0;
  for (const { name, run } of chosen) {
    let timer;
    const limit = new Promise((_resolve, reject) => {
      const late = new assert.AssertionError({ message: `took longer than ${seconds} s` });
      timer = setTimeout(reject, seconds * 1000, late);
    });
    try {
      await Promise.race([run(), limit]);
      console.log(`ok ${name}`);
    } catch (error) {
      failed += 1;
      console.log(`FAIL ${name}: ${reason(error)}`);
    } finally {
      clearTimeout(timer);
    }
  }
  console.log(`done ${chosen.length}`);
  process.exit(failed > 0 ? 1 : 0);
}
