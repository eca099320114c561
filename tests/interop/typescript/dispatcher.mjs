// How ext-tasks reaches a server of 2026-07-28, whose SDK has no way yet to send what it does not know.

import assert from 'node:assert/strict';

export const MODERN = '2026-07-28';

/** The dispatcher ext-tasks asks its host for: one HTTP exchange for each request. */
export function dispatcher(url, counts = {}) {
  let nextId = 0;
  return async ({ method, params }, { signal, context } = {}) => {
    counts[method] = (counts[method] ?? 0) + 1;
    const id = `ext-${++nextId}`;
    const headers = new Headers({
      'content-type': 'application/json',
      accept: 'application/json, text/event-stream',
      'mcp-protocol-version': MODERN,
      'mcp-method': method,
      'mcp-name': params.taskId ?? params.name,
    });
    // Replacing, not adding: ext-tasks sends Mcp-Name itself on tasks/*.
    for (const [name, value] of Object.entries(context?.headers ?? {})) headers.set(name, value);
    const response = await fetch(url, {
      method: 'POST',
      headers,
      body: JSON.stringify({ jsonrpc: '2.0', id, method, params }),
      signal: signal ?? null,
    });
    const body = await response.text();
    const messages = response.headers.get('content-type')?.startsWith('text/event-stream')
      ? body.split(/\r?\n\r?\n/).map(eventData).filter(Boolean).map((data) => JSON.parse(data))
      : [JSON.parse(body)];
    const answer = messages.find((message) => message.id === id);
    assert.ok(answer, `no answer to ${method} in ${body.slice(0, 300)}`);
    return answer.error ? { kind: 'error', error: answer.error } : { kind: 'result', result: answer.result };
  };
}

const eventData = (event) =>
  event
    .split(/\r?\n/)
    .filter((line) => line.startsWith('data:'))
    .map((line) => line.slice(5).trim())
    .join('\n');
