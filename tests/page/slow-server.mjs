// A legacy server over Streamable HTTP, whose slow tools go on until they are let go or cancelled.

import { createServer } from 'node:http';
import { EVIL } from './states.mjs';

export class SlowServer {
  /** What is at work: tool, and what ends it. */
  working = new Map();
  /** Ids of the calls that were cancelled. */
  cancelled = [];
  #server = createServer((request, response) => this.#receive(request, response));

  async start() {
    await new Promise(resolve => this.#server.listen(0, '127.0.0.1', resolve));
    this.url = `http://127.0.0.1:${this.#server.address().port}/mcp`;
    return this;
  }

  stop() {
    this.#server.closeAllConnections();
    this.#server.close();
  }

  /** Tells progress of what is at work. */
  tell(message) {
    for (const call of this.working.values()) call.tell(message);
  }

  /** Lets the calls of a tool end with a result. */
  release(tool) {
    for (const [id, call] of this.working) {
      if (call.tool !== tool) continue;
      this.working.delete(id);
      call.end({ content: [{ type: 'text', text: 'done' }] });
    }
  }

  async #receive(request, response) {
    if (request.method !== 'POST') return response.writeHead(405).end();
    let body = '';
    for await (const part of request) body += part;
    const { id, method, params } = JSON.parse(body);
    const answer = result => {
      response.writeHead(200, { 'content-type': 'application/json' });
      response.end(JSON.stringify({ jsonrpc: '2.0', id, result }));
    };
    if (method === 'notifications/cancelled') {
      this.cancelled.push(params.requestId);
      this.working.get(params.requestId)?.leave();
      this.working.delete(params.requestId);
    }
    if (id === undefined) return response.writeHead(202).end();
    if (method === 'initialize') {
      return answer({ protocolVersion: '2025-06-18', capabilities: { tools: {} }, serverInfo: { name: 'slow', version: '1' } });
    }
    if (method === 'tools/list') {
      return answer({ tools: ['quick', 'slow', EVIL].map(name => ({ name, inputSchema: { type: 'object' } })) });
    }
    if (method !== 'tools/call') return answer({});
    if (params.name === 'quick') return answer({ content: [{ type: 'text', text: 'done' }] });
    this.#work(id, params, response);
  }

  #work(id, { name, _meta }, response) {
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    const say = message => response.write(`data: ${JSON.stringify({ jsonrpc: '2.0', ...message })}\n\n`);
    this.working.set(id, {
      tool: name,
      tell: message => {
        const progressToken = _meta?.progressToken;
        if (progressToken !== undefined) say({ method: 'notifications/progress', params: { progressToken, progress: 3, total: 7, message } });
      },
      end: result => {
        say({ id, result });
        response.end();
      },
      leave: () => response.end()
    });
  }
}
