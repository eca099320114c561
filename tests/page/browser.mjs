// Chromium without a window, that reaches nothing but this machine, and writes down whatever a page does that it should not.

import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { chromium } from 'playwright-core';

const ARGUMENTS = [
  '--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
  '--disable-component-update', '--disable-sync', '--disable-dev-shm-usage', '--disable-extensions',
  // Names are not looked up: this machine has an address.
  '--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1'
];

export async function launch() {
  const profile = mkdtempSync(join(tmpdir(), 'deferral-page-profile-'));
  const executablePath = process.env.CHROMIUM ?? '/usr/bin/chromium';
  const context = await chromium.launchPersistentContext(profile, { executablePath, args: ARGUMENTS, chromiumSandbox: false });
  return {
    context,
    async stop() {
      await context.close();
      rmSync(profile, { recursive: true, force: true });
    }
  };
}

/**
 * A page at that address. `faults` has what it did wrong: each violation of its policy, error, line on the console and
 * request to elsewhere. `expected` says which lines of the console are no fault.
 */
export async function open(context, url, { expected, ...options } = {}) {
  const page = await context.newPage();
  const faults = [];
  await page.exposeFunction('violated', text => faults.push(`policy: ${text}`));
  await page.addInitScript(() => {
    document.addEventListener('securitypolicyviolation', event => window.violated(`${event.effectiveDirective} ${event.blockedURI} ${event.sample}`));
    window.longTasks = [];
    new PerformanceObserver(list => list.getEntries().forEach(entry => window.longTasks.push(entry.duration)))
      .observe({ type: 'longtask', buffered: true });
  });
  page.on('console', message => {
    if (!expected?.test(message.text())) faults.push(`console: ${message.type()} ${message.text()}`);
  });
  page.on('pageerror', error => faults.push(`error: ${error.stack}`));
  page.on('request', request => {
    const to = new URL(request.url());
    if (to.origin !== new URL(url).origin) faults.push(`request to ${to.origin}`);
  });
  page.faults = faults;
  await page.setViewportSize({ width: options.width ?? 1280, height: options.height ?? 900 });
  if (options.colorScheme) await page.emulateMedia({ colorScheme: options.colorScheme });
  await page.goto(url);
  return page;
}

/** Waits until a function is true in the page. Playwright's own way needs `eval`, which the page's policy forbids. */
export async function until(page, holds, ...given) {
  for (const deadline = Date.now() + 10_000; ; await new Promise(resolve => setTimeout(resolve, 50))) {
    if (await page.evaluate(holds, ...given)) return;
    if (Date.now() > deadline) throw new Error(`still not: ${holds} ${JSON.stringify(given)}; faults: ${page.faults.slice(0, 3).join('; ')}`);
  }
}
