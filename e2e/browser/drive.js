// Drives Chromium as told by standard input, a line of JSON for each order, and answers
// each with a line of JSON on standard output. It ends with its input.
'use strict';

const readline = require('node:readline');
const { chromium } = require('playwright-core');

const pages = new Map();

// open makes a page in a browser of its own, as far as cookies and caches go, and keeps
// what is asked for and what goes wrong there.
async function open(browser, { url, width, height, scheme, headers, scale }) {
  const context = await browser.newContext({
    viewport: { width, height }, colorScheme: scheme, extraHTTPHeaders: headers, deviceScaleFactor: scale,
  });
  const page = await context.newPage();
  const events = { requests: [], errors: [] };
  page.on('request', (request) => {
    events.requests.push({ method: request.method(), url: request.url(), authorization: request.headers().authorization || '' });
  });
  page.on('console', (message) => {
    if (message.type() === 'error' || message.type() === 'warning') events.errors.push(message.text());
  });
  page.on('pageerror', (error) => events.errors.push(String(error)));
  await page.exposeFunction('reportViolation', (text) => { events.errors.push(text); });
  await page.addInitScript(() => {
    addEventListener('securitypolicyviolation', (e) => {
      window.reportViolation('violates ' + e.violatedDirective + ': ' + e.blockedURI);
    });
  });
  const answer = await page.goto(url, { waitUntil: 'load' });
  const id = String(pages.size + 1);
  pages.set(id, { page, context, events });
  return { id, status: answer.status(), headers: answer.headers() };
}

const orders = {
  open,
  eval: async (_, { id, expression }) => pages.get(id).page.evaluate(expression),
  resize: async (_, { id, width, height }) => pages.get(id).page.setViewportSize({ width, height }),
  scheme: async (_, { id, scheme }) => pages.get(id).page.emulateMedia({ colorScheme: scheme }),
  events: async (_, { id }) => pages.get(id).events,
  screenshot: async (_, { id, path }) => { await pages.get(id).page.screenshot({ path, fullPage: true, animations: 'disabled' }); },
  close: async (_, { id }) => pages.get(id).context.close(),
};

async function main() {
  const browser = await chromium.launch({
    executablePath: process.argv[2],
    // Nothing but what a test asks for goes over the network.
    args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
      '--disable-component-update', '--disable-sync'],
  });
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const { order, ...rest } = JSON.parse(line);
    let answer;
    try {
      answer = { result: await orders[order](browser, rest) };
    } catch (error) {
      answer = { error: String(error) };
    }
    process.stdout.write(JSON.stringify(answer) + '\n');
  }
  await browser.close();
}

main().catch((error) => {
  process.stderr.write(error.stack + '\n');
  process.exit(1);
});
