// Clients that know no tasks, as their makers have them call tools, with the time-outs that they come with.
//
//     clients.mjs NAME URL
//
// Prints the names of the tools (a line of JSON), then reads calls, `{"name": …, "arguments": {…}}`, a line each, and
// prints for each `{"said": …}`, what a model would read of the answer, or `{"died": …}`.

import { execFile } from "node:child_process";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

/** What the SDK's own result says. */
function texts(result) {
    const said = result.content.map((block) => block.text ?? "").join("\n");
    if (result.isError) throw new Error(said);
    return said;
}

async function typescript(url) {
    const { Client } = await import("@modelcontextprotocol/sdk/client/index.js");
    const { StreamableHTTPClientTransport } = await import("@modelcontextprotocol/sdk/client/streamableHttp.js");
    const client = new Client({ name: "typescript", version: "1" });
    await client.connect(new StreamableHTTPClientTransport(new URL(url)));
    const { tools } = await client.listTools();
    return {
        tools: tools.map((tool) => tool.name),
        call: async (name, args) => texts(await client.callTool({ name, arguments: args })),
        close: () => client.close(),
    };
}

async function langchain(url) {
    const { MultiServerMCPClient } = await import("@langchain/mcp-adapters");
    const client = new MultiServerMCPClient({ mcpServers: { slow: { transport: "http", url } } });
    const tools = await client.getTools();
    return {
        tools: tools.map((tool) => tool.name),
        call: (name, args) => tools.find((tool) => tool.name === name).invoke(args),
        close: () => client.close(),
    };
}

async function ai(url) {
    const { createMCPClient } = await import("@ai-sdk/mcp");
    const client = await createMCPClient({ transport: { type: "http", url } });
    const tools = await client.tools();
    return {
        tools: Object.keys(tools),
        call: async (name, args) => texts(await tools[name].execute(args, { toolCallId: "1", messages: [] })),
        close: () => client.close(),
    };
}

/** A program, which is started anew for each call. */
async function inspector(url) {
    const program = fileURLToPath(new URL("node_modules/.bin/mcp-inspector", import.meta.url));
    const run = async (...flags) => {
        const command = ["--cli", url, "--transport", "http", ...flags];
        const { stdout } = await promisify(execFile)(program, command, { maxBuffer: 1 << 24 }).catch((error) => {
            throw new Error(error.stderr || error.stdout || error.message);
        });
        return JSON.parse(stdout);
    };
    const { tools } = await run("--method", "tools/list");
    const flags = (args) => Object.entries(args).flatMap(([key, value]) => ["--tool-arg", `${key}=${value}`]);
    return {
        tools: tools.map((tool) => tool.name),
        call: async (name, args) => texts(await run("--method", "tools/call", "--tool-name", name, ...flags(args))),
        close: () => {},
    };
}

const CLIENTS = { "typescript1.32": typescript, "langchain-js": langchain, "ai-sdk": ai, inspector };

const tell = (value) => console.log(JSON.stringify(value));
const [name, url] = process.argv.slice(2);
const { tools, call, close } = await CLIENTS[name](url);
tell(tools);
for await (const line of createInterface({ input: process.stdin })) {
    const wanted = JSON.parse(line);
    try {
        const said = await call(wanted.name, wanted.arguments);
        tell({ said: typeof said === "string" ? said : JSON.stringify(said) });
    } catch (error) {
        tell({ died: String(error?.message ?? error) });
    }
}
await close();
process.exit();
