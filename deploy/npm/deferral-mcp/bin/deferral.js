#!/usr/bin/env node
// Runs the program of this platform, which is in a package of its own, with the same arguments, streams, signals and
// exit code.
"use strict";

const { spawn } = require("node:child_process");
const { constants } = require("node:os");

const name = `deferral-mcp-${process.platform}-${process.arch}`;
let program;
try {
  program = require.resolve(`${name}/deferral`);
} catch {
  console.error(
    `error: the package ${name} is not in node_modules: deferral is built for Linux x86-64, and this package is an ` +
      "optional dependency, which `npm install --omit=optional` skips",
  );
  process.exit(2);
}

const child = spawn(program, process.argv.slice(2), { stdio: "inherit" });
for (const signal of ["SIGTERM", "SIGINT", "SIGHUP"]) {
  process.on(signal, () => child.kill(signal));
}
child.on("error", (error) => {
  console.error(`error: ${program} does not start: ${error.message}`);
  process.exit(2);
});
child.on("exit", (code, signal) => process.exit(code ?? 128 + constants.signals[signal]));
