// The reference experiment: 250 requests of one client, alternating over the
// gateways, inside one window.
//
//   MODE=shared  one count for all gateways:   100 allowed, 150 rejected
//   MODE=local   one count for each gateway:   200 allowed,  50 rejected
//
// It passes when the figures are exact, not when they are close. README.md in
// this folder explains the settings and the summary.
import { check, fail, sleep } from 'k6';
import exec from 'k6/execution';
import http from 'k6/http';
import { Counter } from 'k6/metrics';
import { field, gateways, setting, wholeNumber } from './common.js';

const mode = setting('MODE', 'shared');
const limit = wholeNumber('LIMIT', 100);
const windowSeconds = wholeNumber('WINDOW_SECONDS', 60);
const requests = wholeNumber('REQUESTS', 250);
const vus = Math.min(wholeNumber('VUS', 10), requests);
const replicas = wholeNumber('REPLICAS', 2);

// A run takes a few seconds; it starts only in a window that has this many left.
const secondsNeeded = Math.min(wholeNumber('SECONDS_NEEDED', 15), Math.ceil(windowSeconds / 2));

const allowed = new Counter('allowed');
const rejected = new Counter('rejected');
const unexpected = new Counter('unexpected');
const afterWindow = new Counter('after_window');
const instanceRequests = new Counter('instance_requests');

const expected = expectedFigures();

/** @type {import('k6/options').Options} */
export const options = {
  scenarios: {
    experiment: {
      executor: 'shared-iterations',
      vus,
      iterations: requests,
      maxDuration: `${windowSeconds}s`,
    },
  },
  // The set-up may wait for the gateways, and then for the next window.
  setupTimeout: `${windowSeconds + 120}s`,
  thresholds: {
    iterations: [`count==${requests}`],
    allowed: [`count==${expected.allowed}`],
    rejected: [`count==${expected.rejected}`],
    unexpected: ['count==0'],
    after_window: ['count==0'],
    checks: ['rate==1'],
    ...eachReplicaAnswers(),
  },
};

// A refusal is an expected answer: it must not count as a failed request.
http.setResponseCallback(http.expectedStatuses(200, 429));

/**
 * What the set-up finds out for the run.
 *
 * @typedef {object} Run
 * @property {string} key the API key of this run, never used before
 * @property {string[]} instances the X-Instance-ID of each replica
 * @property {number} end when the window ends at the earliest, in Unix milliseconds
 */

/**
 * Waits until every gateway reaches every replica, and until enough of the
 * window is left. How much is left is asked of the gateways, since windows are
 * cut by the store's clock (floor(unix seconds / window)), which may differ
 * from the clock of this machine.
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

  const instances = new Set();
  for (const gateway of gateways) {
    const found = new Set();
    for (let attempt = 0; found.size < replicas; attempt++) {
      if (attempt === 200) {
        fail(`${gateway} reached ${found.size} of ${replicas} instances: [${[...found].join(', ')}]`);
      }
      const response = probe(gateway);
      const instance = field(response, 'X-Instance-ID');
      if (response.status === 200 && instance !== '' && !found.has(instance)) {
        found.add(instance);
      } else {
        // Not there yet: the gateway, its routes, or the next replica.
        sleep(0.25);
      }
    }
    found.forEach((instance) => instances.add(instance));
  }
  if (instances.size !== replicas) {
    fail(`the gateways reach ${instances.size} instances together, not ${replicas}: [${[...instances].join(', ')}]`);
  }

  const secondsLeft = () =>
    Math.min(
      ...gateways.map((gateway) => {
        const reset = field(probe(gateway), 'X-RateLimit-Reset');
        if (!/^\d+$/.test(reset)) {
          fail(`${gateway} answers without X-RateLimit-Reset: is the limiter on this route?`);
        }
        return Number(reset);
      }),
    );

  let left = secondsLeft();
  while (left < secondsNeeded) {
    console.log(`${left} s of the window are left, ${secondsNeeded} are needed: waiting for the next window`);
    sleep(left + 1);
    left = secondsLeft();
  }

  const names = [...instances].sort();
  console.log(`mode ${mode}: ${requests} requests over ${gateways.join(' and ')}, limit ${limit} in ${windowSeconds} s, ${left} s left`);
  names.forEach((name, i) => console.log(`replica ${i + 1} is ${name}`));

  // Seconds left are rounded up: the window may end up to a second earlier.
  return { key: run, instances: names, end: Date.now() + (left - 1) * 1000 };
}

/** @param {Run} run */
export default function experiment(run) {
  const gateway = gateways[exec.scenario.iterationInTest % gateways.length];
  const response = http.get(`${gateway}/`, { headers: { 'X-API-Key': run.key } });

  if (Date.now() > run.end) {
    // The figures of two windows say nothing about one: start again.
    afterWindow.add(1);
  }

  if (response.status === 200) {
    const replica = run.instances.indexOf(field(response, 'X-Instance-ID')) + 1;
    allowed.add(1);
    instanceRequests.add(1, { replica: String(replica) });
    if (replica === 0) {
      unexpected.add(1);
    }
    checkFields(response);
  } else if (response.status === 429) {
    rejected.add(1);
    checkFields(response);
    checkRefusal(response);
  } else {
    unexpected.add(1);
  }

  check(response, {
    'status is 200 or 429': (r) => r.status === 200 || r.status === 429,
  });
}

/**
 * The fields that every answer carries, allowed or not.
 *
 * @param {import('k6/http').RefinedResponse<any>} response
 */
function checkFields(response) {
  const state = /^"[A-Za-z0-9@._-]+";r=(\d+);t=(\d+)$/.exec(field(response, 'RateLimit'));
  const remaining = field(response, 'X-RateLimit-Remaining');
  const reset = field(response, 'X-RateLimit-Reset');

  check(response, {
    'RateLimit-Policy states the quota and the window': (r) =>
      new RegExp(`^"[A-Za-z0-9@._-]+";q=${limit};w=${windowSeconds}$`).test(field(r, 'RateLimit-Policy')),
    'RateLimit states what is left': () => state !== null && Number(state[1]) < limit,
    'X-RateLimit-Limit is the limit': (r) => field(r, 'X-RateLimit-Limit') === String(limit),
    'X-RateLimit-Remaining says the same as RateLimit': () => state !== null && remaining === state[1],
    'X-RateLimit-Reset says the same as RateLimit': () => state !== null && reset === state[2],
    'the window ends within its length': () => Number(reset) >= 1 && Number(reset) <= windowSeconds,
  });
}

/**
 * What a refusal says besides.
 *
 * @param {import('k6/http').RefinedResponse<any>} response
 */
function checkRefusal(response) {
  const wait = field(response, 'Retry-After');

  check(response, {
    'Retry-After is whole seconds within the window': () =>
      /^\d+$/.test(wait) && Number(wait) >= 1 && Number(wait) <= windowSeconds,
    'a refusal leaves nothing': (r) => field(r, 'X-RateLimit-Remaining') === '0',
    'a refusal comes from the gateway': (r) => field(r, 'X-Instance-ID') === '',
  });
}

function expectedFigures() {
  if (mode === 'shared') {
    const allowed = Math.min(requests, limit);
    return { allowed, rejected: requests - allowed };
  }
  if (mode !== 'local') {
    throw new Error(`MODE is "${mode}": it must be shared or local`);
  }
  // Request i goes to gateway i mod n: the first ones get one more when it does not come out even.
  const allowed = gateways
    .map((_, i) => Math.ceil((requests - i) / gateways.length))
    .reduce((sum, sent) => sum + Math.min(sent, limit), 0);
  return { allowed, rejected: requests - allowed };
}

/** A threshold for each replica also makes the summary show its count. */
function eachReplicaAnswers() {
  /** @type {Record<string, string[]>} */
  const thresholds = {};
  for (let replica = 1; replica <= replicas; replica++) {
    thresholds[`instance_requests{replica:${replica}}`] = ['count>0'];
  }
  return thresholds;
}
