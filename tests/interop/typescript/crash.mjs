// The calls of a TypeScript client whose server is killed in the middle of them. What they are, and what is
// told of them, is in python/crash.py.
//
//     node crash.mjs URL 1.x|2.x

import { setTimeout as sleep } from 'node:timers/promises';

const SECONDS = 60; // longer than anybody waits for a call here
const SILENCE_MS = 1000; // after which a call that says nothing has reached its server

const [url, version] = process.argv.slice(2);
const older = version === '1.x';
const { Client, StreamableHTTPClientTransport } = older
  ? {
      ...(await import('@modelcontextprotocol/sdk/client/index.js')),
      ...(await import('@modelcontextprotocol/sdk/client/streamableHttp.js')),
    }
  : await import('@modelcontextprotocol/client');

const say = (...words) => console.log(words.join(' '));

const callTool = (client, name, options) => {
  const params = { name, arguments: { seconds: SECONDS } };
  return older ? client.callTool(params, undefined, options) : client.callTool(params, options);
};

const calls = {
  talking: (client, onprogress) => callTool(client, 'slow', { onprogress }),
  silent: (client, onprogress) => {
    sleep(SILENCE_MS).then(onprogress);
    return callTool(client, 'rpc_error');
  },
};

/** One call in a session of its own, which `ends` says whether to end by DELETE. */
async function make(name, call, ends) {
  const versionNegotiation = { mode: 'auto' };
  const client = new Client({ name: 'crash', version: '1.0.0' }, { capabilities: {}, versionNegotiation });
  const transport = new StreamableHTTPClientTransport(new URL(url));
  client.onerror = ({ message }) => {
    if (/unknown message ID/.test(message)) say('astray', name, JSON.stringify(message));
  };
  await client.connect(transport);
  let told = false;
  const onprogress = () => {
    if (!told) say('working', name);
    told = true;
  };
  try {
    await call(client, onprogress);
    say('ended', name, 'result');
  } catch (error) {
    say('ended', name, error.code ?? error.name, JSON.stringify(error.message));
  }
  if (ends) await transport.terminateSession().catch(() => {});
  await client.close();
  say('left', name);
}

// A client whose server is gone may fail at more than its call.
process.on('unhandledRejection', () => {});

const made = Object.entries(calls).flatMap(([name, call]) =>
  older ? [make(`${name}-delete`, call, true), make(name, call, false)] : [make(name, call, false)],
);
await Promise.all(made);
process.exit(0);
