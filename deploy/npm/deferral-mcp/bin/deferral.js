#!/usr/bin/env node
// Runs the program of this system, which is in a package of its own, in place of this one as far as Node.js can:
// the same arguments, streams and signals, and the same end.
"use strict";

const { spawn } = require("node:child_process");
const { constants } = require("node:os");

const name = `deferral-mcp-${process.platform}-${process.arch}`;
let program;
try {
  program = require.resolve(`${name}/deferral`);
} catch {
  console.error(
    `error: there is no deferral for this system in node_modules (${name}): it is made for Linux on x86-64, and is an ` +
      "optional dependency, which `npm install --omit=optional` leaves out",
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
