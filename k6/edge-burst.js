// A burst over the edge of a window: more requests than the limit allows just before
// the edge, and as many just after.
//
//   ALGORITHM=fixed-window    lets the limit pass twice, within two seconds
//   ALGORITHM=sliding-window  lets it pass once, and hardly any more
//
// The other two algorithms have no edges; they get the same burst at any moment.
// README.md in this folder explains the settings and the summary.
import { check, fail, sleep } from 'k6';
import exec from 'k6/execution';
import http from 'k6/http';
import { Counter } from 'k6/metrics';
import { field, gateways, setting, wholeNumber } from './common.js';

const algorithm = setting('ALGORITHM', 'fixed-window');
const limit = wholeNumber('LIMIT', 100);
const windowSeconds = wholeNumber('WINDOW_SECONDS', 60);
const each = wholeNumber('REQUESTS', Math.ceil(limit * 1.25));
const vus = Math.min(wholeNumber('VUS', 10), 2 * each);

// Each half of the burst must be over within this time of the edge.
const sideSeconds = wholeNumber('SIDE_SECONDS', 1);

// How long after the edge the second half begins: gateways know the store's clock to
// a few milliseconds.
const marginMilliseconds = 50;

const allowed = new Counter('allowed');
const rejected = new Counter('rejected');
const unexpected = new Counter('unexpected');
const misplaced = new Counter('misplaced');

const expected = expectedFigures();

/** @type {import('k6/options').Options} */
export const options = {
  scenarios: {
    burst: {
      executor: 'shared-iterations',
      vus,
      iterations: 2 * each,
      maxDuration: `${2 * windowSeconds + 30}s`,
    },
  },
  // The set-up may wait for the gateways.
  setupTimeout: '120s',
  thresholds: {
    iterations: [`count==${2 * each}`],
    'allowed{side:before}': [`count>=${expected.before.least}`, `count<=${expected.before.most}`],
    'allowed{side:after}': [`count>=${expected.after.least}`, `count<=${expected.after.most}`],
    unexpected: ['count==0'],
    misplaced: ['count==0'],
    checks: ['rate==1'],
  },
};

// A refusal is an expected answer: it must not count as a failed request.
http.setResponseCallback(http.expectedStatuses(200, 429));

/**
 * What the set-up finds out for the run.
 *
 * @typedef {object} Run
 * @property {string} key the API key of this run, never used before
 * @property {number} earliest when the edge is at the earliest, in Unix milliseconds of this machine
 * @property {number} latest when it is at the latest
 */

/**
 * Waits until every gateway answers, and finds the next edge that leaves time for the
 * first half of the burst.
 *
 * @returns {Run}
 */
export function setup() {
  const run = `k6-${Date.now()}-${Math.floor(Math.random() * 1e9)}`;
  let probes = 0;

  // Each probe is a client of its own, so it uses nothing of the run's quota.
  /** @param {string} gateway */
  const probe = (gateway) =>
    http.get(`${gateway}/`, { headers: { 'X-API-Key': `${run}-probe-${++probes}` } });

  for (const gateway of gateways) {
    for (let attempt = 0; probe(gateway).status !== 200; attempt++) {
      if (attempt === 200) {
        fail(`${gateway} does not answer with 200`);
      }
      sleep(0.25);
    }
  }

  const edge = hasEdges() ? findEdge(() => secondsLeft(probe(String(gateways[0])))) : { earliest: Date.now(), latest: Date.now() };
  const from = Date.now() + (sideSeconds + 0.5) * 1000;
  while (edge.earliest < from) {
    const step = hasEdges() ? windowSeconds * 1000 : from - edge.earliest;
    edge.earliest += step;
    edge.latest += step;
  }
  console.log(
    `${algorithm}, limit ${limit} in ${windowSeconds} s: ${each} requests before and ${each} after ` +
      `${hasEdges() ? 'the edge' : 'a moment'} in ${((edge.earliest - Date.now()) / 1000).toFixed(1)} s, over ${gateways.join(' and ')}`,
  );
  return { key: run, ...edge };
}

/**
 * Finds out when the window ends. Windows are cut by the store's clock, which may differ
 * from that of this machine, so the gateways are asked. They tell whole seconds, rounded
 * up: when that number changes, so many seconds are left and no fraction of one.
 *
 * @param {() => number} secondsLeft asks how many seconds are left
 */
function findEdge(secondsLeft) {
  const begin = Date.now();
  let asked = begin;
  let left = secondsLeft();
  while (Date.now() - begin < 5000) {
    sleep(0.02);
    const askedAgain = Date.now();
    const now = secondsLeft();
    if (now !== left) {
      // Two milliseconds for what was rounded on the way.
      return { earliest: asked + now * 1000 - 2, latest: Date.now() + now * 1000 };
    }
    asked = askedAgain;
  }
  return fail(`X-RateLimit-Reset stays at ${left}: is the algorithm ${algorithm}?`);
}

/**
 * How many seconds are left of the window, by the answer to a client that is not known.
 *
 * @param {import('k6/http').RefinedResponse<any>} response
 */
function secondsLeft(response) {
  const reset = field(response, 'X-RateLimit-Reset');
  if (!/^\d+$/.test(reset)) {
    fail('an answer has no X-RateLimit-Reset: is the limiter on this route?');
  }
  return Number(reset);
}

/** @param {Run} run */
export default function burst(run) {
  const number = exec.scenario.iterationInTest;
  const side = number < each ? 'before' : 'after';
  sleepUntil(side === 'before' ? run.earliest - sideSeconds * 1000 : run.latest + marginMilliseconds);

  const response = http.get(`${gateways[number % gateways.length]}/`, { headers: { 'X-API-Key': run.key } });

  if (Date.now() >= run.earliest + (side === 'before' ? 0 : sideSeconds * 1000)) {
    // It may have been counted elsewhere, or later than the figures allow for.
    misplaced.add(1);
  }
  if (response.status === 200) {
    allowed.add(1, { side });
  } else if (response.status === 429) {
    rejected.add(1, { side });
    check(response, {
      'Retry-After is whole seconds': (r) => /^[1-9]\d*$/.test(field(r, 'Retry-After')),
    });
  } else {
    unexpected.add(1);
  }
  check(response, {
    'status is 200 or 429': (r) => r.status === 200 || r.status === 429,
    'RateLimit-Policy states the quota and the window': (r) =>
      new RegExp(`^"[A-Za-z0-9@._-]+";q=${limit};w=${windowSeconds}$`).test(field(r, 'RateLimit-Policy')),
    'the store has decided': (r) => field(r, 'X-RateLimit-Decision') === 'shared',
  });
}

/** @param {number} milliseconds Unix time */
function sleepUntil(milliseconds) {
  const left = milliseconds - Date.now();
  if (left > 0) {
    sleep(left / 1000);
  }
}

/** Tells whether the algorithm counts in windows that stand on the clock. */
function hasEdges() {
  return algorithm === 'fixed-window' || algorithm === 'sliding-window';
}

/**
 * How many requests may pass on either side.
 *
 * @returns {Record<'before' | 'after', {least: number, most: number}>}
 */
function expectedFigures() {
  if (windowSeconds < 4 * sideSeconds) {
    throw new Error(`WINDOW_SECONDS is ${windowSeconds}: it must be at least four times SIDE_SECONDS`);
  }
  if (each <= limit) {
    throw new Error(`REQUESTS is ${each}: it must be more than LIMIT`);
  }
  /** @param {number} seconds */
  const gained = (seconds) => Math.ceil((limit * seconds) / windowSeconds);
  const once = { least: limit, most: limit };
  switch (algorithm) {
    case 'fixed-window':
      return { before: once, after: once };
    case 'sliding-window':
      // As much as has left the window that ends now.
      return { before: once, after: { least: 0, most: gained(sideSeconds) } };
    case 'sliding-log':
      return { before: once, after: { least: 0, most: 0 } };
    case 'token-bucket':
      // As many tokens as came meanwhile.
      return {
        before: { least: limit, most: limit + gained(sideSeconds) },
        after: { least: 0, most: gained(2 * sideSeconds) },
      };
  }
  throw new Error(`ALGORITHM is "${algorithm}": it must be fixed-window, sliding-window, sliding-log or token-bucket`);
}
