package status

// script asks for the status every two seconds and shows it. It writes text as text alone.
// A backquote ends it, so it has none.
const script = `
'use strict';
(function () {
  const every = 2000, patience = 5000, span = 180000;
  const words = {
    'allowed shared': 'Passed, by the count in the store',
    'allowed local': 'Passed, by the count in this gateway\'s memory',
    'allowed open': 'Passed uncounted, since the store failed',
    'allowed dry-run': 'Passed in a dry run, within the limits',
    'allowed control': 'Passed, since the limiter is switched off',
    'would_refuse dry-run': 'Passed in a dry run, over a limit',
    'refused shared': 'Refused by the store',
    'refused memory': 'Refused by the store\'s count, without asking again',
    'refused local': 'Refused by the count in this gateway\'s memory',
    'refused control': 'Refused, since the client is blocked',
    'unavailable closed': 'Answered 503, since the store failed',
    'unavailable gateway': 'Answered 503, over the limit of this gateway',
    'rejected none': 'Answered 400 or 414, not fit to be counted',
    'exempt none': 'Passed, exempt',
    'skipped none': 'Passed uncounted, without what tells clients apart'
  };
  const held = { refused: true, unavailable: true, rejected: true };
  const failing = {
    open: 'pass uncounted',
    closed: 'are answered 503',
    local: 'are counted in the memory of each gateway'
  };

  const byId = function (id) { return document.getElementById(id); };
  const put = function (element, text) {
    if (element.textContent !== text) element.textContent = text;
  };
  const set = function (element, name, value) {
    if (element.getAttribute(name) !== value) element.setAttribute(name, value);
  };
  const number = new Intl.NumberFormat('en');
  const large = new Intl.NumberFormat('en', { notation: 'compact', maximumSignificantDigits: 4 });
  const count = function (n) { return (n < 1e9 ? number : large).format(n); };
  const plural = function (n, word) { return count(n) + ' ' + word + (n === 1 ? '' : 's'); };

  // A token in the address would stay in histories and logs: from here on it is shown in
  // a header field.
  const token = new URLSearchParams(location.search).get('token');
  if (location.search) history.replaceState(null, '', location.pathname);

  // repeat makes of a template as many parts as there are items, and shows an item in each.
  function repeat(parent, template, items, show) {
    while (parent.children.length > items.length) parent.lastElementChild.remove();
    while (parent.children.length < items.length) {
      parent.appendChild(byId(template).content.firstElementChild.cloneNode(true));
    }
    items.forEach(function (item, i) {
      const part = parent.children[i];
      show(item, function (name) { return part.querySelector('[data-is="' + name + '"]'); }, part);
    });
  }

  function facts(parent, pairs) {
    repeat(parent, 'fact', pairs, function (pair, the) {
      put(the('name'), pair[0]);
      put(the('value'), pair[1]);
    });
  }

  function clock(ms) {
    const at = new Date(ms), time = at.toLocaleTimeString('en-GB');
    if (Math.abs(status.time - ms) < 18 * 3600000) return time;
    return at.toLocaleDateString('en-GB', { day: 'numeric', month: 'short' }) + ' ' + time.slice(0, 5);
  }

  function duration(seconds) {
    const units = [[86400, 'd'], [3600, 'h'], [60, 'min'], [1, 's']];
    for (let i = 0; i < units.length; i++) {
      const unit = units[i], n = Math.floor(seconds / unit[0]);
      if (n === 0) continue;
      const rest = i + 1 < units.length ? Math.floor((seconds - n * unit[0]) / units[i + 1][0]) : 0;
      return n + '\u00a0' + unit[1] + (rest > 0 && n < 10 ? ' ' + rest + '\u00a0' + units[i + 1][1] : '');
    }
    return '0\u00a0s';
  }

  // short is a time in seconds to two digits.
  function short(seconds) {
    if (seconds >= 1) return String(Number(seconds.toPrecision(2))) + ' s';
    if (seconds >= 0.001) return String(Number((seconds * 1000).toPrecision(2))) + ' ms';
    return String(Number((seconds * 1e6).toPrecision(2))) + ' µs';
  }

  function per(window) {
    return { 1: ' a second', 60: ' a minute', 3600: ' an hour', 86400: ' a day' }[window] || ' in ' + duration(window);
  }

  function rate(n) {
    return n > 0 && n < 10 ? n.toFixed(1) : count(Math.round(n));
  }

  let status = null;      // the last answer
  let answered = 0;       // when it came, by the clock of this machine
  let samples = [];       // decisions a second, the newest last
  let rates = {};         // of each decision, at last
  let before = null;      // the totals of the answer before

  // measure makes rates of the totals of two answers.
  function measure() {
    const totals = {};
    status.scopes.forEach(function (scope) {
      scope.decisions.forEach(function (d) {
        totals[[scope.scope, d.rule, d.outcome, d.way].join(' ')] = d.total;
      });
    });
    const now = { time: status.time, started: status.started, totals: totals };
    const last = before;
    before = now;
    rates = {};
    if (!last || last.started !== now.started || now.time <= last.time) {
      if (last && last.started !== now.started) samples = [];
      return;
    }
    const sample = { from: last.time, to: now.time, passed: 0, held: 0, without: {} };
    const shared = {}; // scopes that are counted in a store
    status.scopes.forEach(function (scope) {
      shared[scope.scope] = scope.clients.some(function (c) { return c.store; });
    });
    Object.keys(totals).forEach(function (key) {
      const more = Math.max(0, totals[key] - (last.totals[key] || 0)) * 1000 / (now.time - last.time);
      rates[key] = more;
      const parts = key.split(' ');
      if (held[parts[2]]) sample.held += more; else sample.passed += more;
      if (more > 0 && shared[parts[0]] && /local|open|closed/.test(parts[3])) sample.without[parts[0]] = true;
    });
    samples.push(sample);
    samples = samples.filter(function (s) { return s.to > now.time - span; });
  }

  // verdicts are what an operator should know, the worst first: a level, a headline, and
  // what it means.
  function verdicts() {
    const all = [];
    status.stores.forEach(function (store) {
      if (store.state !== 'away') return;
      const ways = {};
      status.scopes.forEach(function (scope) {
        if (!scope.clients.some(function (c) { return c.store === store.endpoint; })) return;
        const one = scope.limits.every(function (l) { return l.onStoreFailure === scope.limits[0].onStoreFailure; });
        scope.limits.forEach(function (l) {
          const whose = scope.scope + (one ? '' : l.rule ? ' (rule ' + l.rule + ')' : ' (the rest)');
          const those = ways[l.onStoreFailure] = ways[l.onStoreFailure] || [];
          if (those.indexOf(whose) < 0) those.push(whose);
        });
      });
      const means = Object.keys(failing).filter(function (way) { return ways[way]; }).map(function (way, i) {
        return (i ? 'those of ' : 'requests of ') + ways[way].join(', ') + ' ' + failing[way];
      });
      all.push(['bad', 'The store is away', store.endpoint + ' has not answered since ' + clock(store.since) +
        (means.length ? '. Until it does, ' + means.join('; ') + '.' : '.')]);
    });
    // A store can answer and yet fail some requests, for which it has no right or no time.
    const without = status.scopes.filter(function (scope) {
      return all.length === 0 && samples.some(function (s) { return s.to > status.time - 10000 && s.without[scope.scope]; });
    }).map(function (scope) { return scope.scope; });
    if (without.length) {
      all.push(['bad', 'Some requests miss the store', 'Requests of ' + without.join(', ') +
        ' were decided without it in the last ten seconds, although it answers.']);
    }
    status.scopes.forEach(function (scope) {
      if (scope.control && !scope.control.enabled) {
        all.push(['off', scope.scope + ' is switched off', 'Every request of ' + scope.scope + ' passes without a limit, by live control.']);
      }
    });
    status.scopes.forEach(function (scope) {
      const dry = scope.limits.filter(function (l) { return l.dryRun; });
      if (scope.control && scope.control.dryRun || dry.length > 0 && dry.length === scope.limits.length) {
        all.push(['dry', scope.scope + ' is in a dry run', 'Requests of ' + scope.scope + ' are counted, and none is refused.']);
      } else if (dry.length > 0) {
        all.push(['dry', scope.scope + ' is in a dry run, in part', plural(dry.length, 'limit') + ' of ' + scope.scope + ' refuse' + (dry.length > 1 ? '' : 's') + ' nothing.']);
      }
    });
    return all;
  }

  function calm(store) {
    if (store.state === 'away') return null;
    if (store.state === 'unused') return 'No request has been counted in ' + store.endpoint + ' yet.';
    const back = store.changes[0], text = store.endpoint + ' answers' + (store.latency ? ', half of the time within ' +
      short(store.latency.p50) + ', 99 of 100 times within ' + short(store.latency.p99) : '') + '.';
    if (back && back.to === 'back' && status.time - back.time < 600000) {
      return text + ' It came back at ' + clock(back.time) + '.';
    }
    return text;
  }

  function verdict(level, headline, notes) {
    set(byId('band'), 'data-level', level);
    set(byId('mark'), 'href', '#mark-' + level);
    put(byId('headline'), headline);
    const list = byId('notes');
    while (list.children.length > notes.length) list.lastElementChild.remove();
    while (list.children.length < notes.length) list.appendChild(document.createElement('li'));
    notes.forEach(function (note, i) { put(list.children[i], note); });
    const colour = { well: '1b7a72', bad: 'c23a14', off: '14201e', dry: '14201e' }[level] || '808080';
    const shape = level === 'bad' ? 'M8 1l7.500 14h-15z' : level === 'well' ? 'M8 1a7 7 0 1 0 .010 0z' : 'M2 2h12v12h-12z';
    set(byId('icon'), 'href', 'data:image/svg+xml,' + encodeURIComponent(
      '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><path fill="#' + colour + '" d="' + shape + '"/></svg>'));
    const title = headline + (status ? ' · ' + status.host : '');
    if (document.title !== title) document.title = title;
  }

  function showVerdict() {
    const all = verdicts();
    const notes = all.map(function (v) { return v[2]; }).concat(status.stores.map(calm).filter(Boolean));
    if (status.stores.length === 0) notes.push('Requests are counted in this gateway alone.');
    if (all.length === 0) {
      verdict('well', 'All is well', notes);
      return;
    }
    const same = all.filter(function (v) { return v[0] === all[0][0]; }).length;
    const many = { bad: same + ' stores are away', off: same + ' scopes are switched off', dry: same + ' scopes are in a dry run' };
    verdict(all[0][0], same > 1 ? many[all[0][0]] : all[0][1], notes);
  }

  const svg = function (name, attributes, text) {
    const element = document.createElementNS('http://www.w3.org/2000/svg', name);
    Object.keys(attributes).forEach(function (key) { element.setAttribute(key, attributes[key]); });
    if (text) element.textContent = text;
    return element;
  };

  // ceiling is a round number above all that the chart shows.
  function ceiling(most) {
    const ten = Math.pow(10, Math.floor(Math.log10(Math.max(most, 1))));
    return [1, 2, 3, 4, 6, 8, 10].map(function (n) { return n * ten; }).find(function (n) { return n >= most; });
  }

  // outages are the times in the chart at which a store was away.
  function outages(from) {
    const all = [];
    status.stores.forEach(function (store) {
      let end = store.state === 'away' ? status.time : 0;
      store.changes.forEach(function (change) {
        if (change.to === 'back') { end = change.time; return; }
        if (end > from) all.push([Math.max(change.time, from), end]);
        end = 0;
      });
    });
    return all;
  }

  function showChart() {
    const chart = byId('chart'), width = chart.clientWidth, foot = chart.clientHeight - 22, head = 20, gutter = 36;
    if (!status || width === 0) return;
    const from = status.time - span;
    const most = samples.reduce(function (n, s) { return Math.max(n, s.passed + s.held); }, 0);
    const top = ceiling(most);
    const x = function (time) { return (gutter + (Math.max(time, from) - from) / span * (width - gutter)).toFixed(1); };
    const y = function (n) { return (foot - 0.5 - Math.round(n / top * (foot - head))).toFixed(1); };
    const parts = [];
    outages(from).forEach(function (o) {
      parts.push(svg('rect', { 'class': 'away-ground', x: x(o[0]), y: 0, width: Math.max(2, x(o[1]) - x(o[0])), height: foot }));
      parts.push(svg('path', { 'class': 'away', d: 'M' + x(o[0]) + ' 0V' + foot + 'M' + x(o[1]) + ' 0V' + foot }));
    });
    [top, top / 2, 0].forEach(function (n) {
      parts.push(svg('path', { 'class': 'grid', d: 'M' + gutter + ' ' + y(n) + 'H' + width }));
    });
    let passed = '', back = '', edge = '', joined = false;
    samples.forEach(function (s) {
      const a = x(s.from), b = x(s.to);
      passed += 'M' + a + ' ' + y(0) + 'V' + y(s.passed) + 'H' + b + 'V' + y(0) + 'z';
      if (s.held > 0) {
        back += 'M' + a + ' ' + y(s.passed) + 'V' + y(s.passed + s.held) + 'H' + b + 'V' + y(s.passed) + 'z';
        edge += (joined ? 'V' : 'M' + a + ' ') + y(s.passed + s.held) + 'H' + b;
      }
      joined = s.held > 0;
    });
    parts.push(svg('path', { 'class': 'passed', d: passed || 'M0 0' }));
    parts.push(svg('path', { 'class': 'held-ground', d: back || 'M0 0' }));
    parts.push(svg('path', { 'class': 'held', d: back || 'M0 0' }));
    parts.push(svg('path', { 'class': 'edge', d: edge || 'M0 0' }));
    [top, top / 2].forEach(function (n) {
      parts.push(svg('text', { x: gutter - 8, y: Number(y(n)) + 4, 'text-anchor': 'end' }, large.format(n)));
    });
    let taken = gutter; // by labels, or by what lies beneath them
    outages(from).sort(function (a, b) { return a[0] - b[0]; }).forEach(function (o) {
      const start = Number(x(o[0])), end = Number(x(o[1])), room = 76;
      const beside = end - start < room;
      if (start - (beside ? room : 0) < taken && beside) return;
      parts.push(svg('text', { x: beside ? start - 6 : start + 6, y: 12, 'text-anchor': beside ? 'end' : 'start' }, 'store away'));
      taken = end;
    });
    [['3 min ago', 0, 'start'], ['2 min', 1, 'middle'], ['1 min', 2, 'middle'], ['now', 3, 'end']].forEach(function (tick) {
      const third = gutter + tick[1] * (width - gutter) / 3, at = Math.min(width - 0.5, Math.round(third) + 0.5);
      parts.push(svg('path', { 'class': 'grid', d: 'M' + at + ' ' + foot + 'v4' }));
      parts.push(svg('text', { x: third, y: foot + 17, 'text-anchor': tick[2] }, tick[0]));
    });
    chart.replaceChildren.apply(chart, parts);
    const last = samples[samples.length - 1] || { passed: 0, held: 0 };
    put(byId('passed'), samples.length ? rate(last.passed) : '–');
    put(byId('held'), samples.length ? rate(last.held) : '–');
    set(chart, 'aria-label', 'Decisions a second in the last three minutes: now ' + rate(last.passed) + ' passed and ' +
      rate(last.held) + ' held back, at most ' + rate(most) + ' in all');
  }

  function showStores() {
    put(byId('stores-title'), status.stores.length === 1 ? 'Store' : 'Stores');
    byId('stores').parentElement.hidden = status.stores.length === 0;
    repeat(byId('stores'), 'store', status.stores, function (store, the) {
      put(the('endpoint'), store.endpoint);
      const state = { answers: 'answers', away: 'away', unused: 'not asked yet' }[store.state];
      put(the('state'), state + (store.since ? ' since ' + clock(store.since) : ''));
      set(the('state'), 'data-state', store.state);
      const errors = Object.keys(store.errors).filter(function (c) { return store.errors[c] > 0; });
      facts(the('facts'), [
        ['round trips', count(store.roundTrips)],
        ['half of them within', store.latency ? short(store.latency.p50) : '–'],
        ['99 of 100 within', store.latency ? short(store.latency.p99) : '–'],
        ['its clock', Math.abs(store.clockOffset) < 0.0005 ? 'as ours' : short(Math.abs(store.clockOffset)) + (store.clockOffset > 0 ? ' ahead' : ' behind')],
        ['errors', errors.length ? errors.map(function (c) { return count(store.errors[c]) + ' ' + c; }).join(', ') : 'none']
      ]);
      repeat(the('changes'), 'change', store.changes.slice(0, 6), function (change, the) {
        put(the('time'), clock(change.time));
        put(the('to'), change.to);
        let why = change.why.replace(/^resp: /, '');
        const cause = store.changes[store.changes.indexOf(change) + 1];
        if (change.to === 'back' && cause && cause.to === 'away') why = 'after ' + duration((change.time - cause.time) / 1000);
        put(the('why'), why);
      });
    });
  }

  function showLimits(body, limits) {
    repeat(body, 'limit', limits, function (l, the) {
      put(the('limit'), count(l.limit) + per(l.window));
      put(the('for'), [l.middleware, l.rule && 'rule ' + l.rule, l.count && l.count !== l.rule && 'count ' + l.count].filter(Boolean).join(', '));
      put(the('how'), l.algorithm.replace('-', ' ') + (l.burst ? ', burst ' + count(l.burst) : '') + (l.dryRun ? ', dry run' : ''));
      put(the('failure'), l.onStoreFailure ? 'without the store: ' + l.onStoreFailure : '');
    });
  }

  function showClients(body, clients) {
    const worst = clients.slice().sort(function (a, b) { return b.used / b.limit - a.used / a.limit; }).slice(0, 10);
    repeat(body, 'client', worst, function (c, the) {
      put(the('client'), c.client);
      put(the('count'), c.count);
      const part = Math.min(1, c.used / c.limit);
      set(the('bar'), 'width', (part * 100).toFixed(1) + '%');
      set(the('bar'), 'class', part < 1 ? 'passed' : 'held');
      set(the('rail'), 'class', part < 1 ? 'rail' : 'held-ground');
      put(the('used'), count(c.used));
      put(the('of'), 'of ' + count(c.limit));
      put(the('reset'), duration(c.reset));
    });
    return worst.length;
  }

  function showScopes() {
    repeat(byId('scopes'), 'scope', status.scopes, function (scope, the) {
      put(the('name'), scope.scope);
      const pairs = [];
      if (scope.gateways) pairs.push(['gateways', count(scope.gateways)]);
      if (scope.share) pairs.push(['share without the store', scope.share.indexOf('/') < 0 ? plural(Number(scope.share), 'request') : scope.share + ' of what is left']);
      const sum = function (name) { return scope.clients.reduce(function (n, c) { return n + c[name]; }, 0); };
      if (scope.clients.length) pairs.push(['clients in memory', count(sum('tracked')) + ' of ' + count(sum('max'))]);
      if (sum('outageAllowed')) {
        pairs.push(['passed during outages', count(sum('outageAllowed')) + ', ' + count(sum('outageSettled')) + ' settled']);
      }
      if (scope.control) {
        const c = scope.control;
        const set = c.version === 0 ? 'nothing set' : 'version ' + count(c.version) + (c.enabled ? '' : ', off') + (c.dryRun ? ', dry run' : '');
        pairs.push(['live control', c.age < 0 ? 'not read yet' : set + ', read ' + duration(c.age) + ' ago']);
        const single = [c.allows && plural(c.allows, 'allowance'), c.blocks && plural(c.blocks, 'block')].filter(Boolean);
        if (single.length) pairs.push(['single clients', single.join(', ')]);
      }
      facts(the('facts'), pairs);
      showLimits(the('limits'), scope.limits);
      const clients = showClients(the('clients'), scope.nearest);
      the('clients').parentElement.hidden = clients === 0;
      the('no-clients').hidden = clients > 0;
      the('decisions').parentElement.hidden = scope.decisions.length === 0;
      the('no-decisions').hidden = scope.decisions.length > 0;
      repeat(the('decisions'), 'decision', scope.decisions, function (d, the) {
        const label = d.outcome + ' ' + d.way;
        set(the('key'), 'class', held[d.outcome] ? 'held' : 'passed');
        set(the('ground'), 'class', held[d.outcome] ? 'held-ground' : 'passed');
        put(the('what'), words[label] || label);
        put(the('rule'), d.rule ? 'rule ' + d.rule : '');
        put(the('label'), label);
        put(the('total'), count(d.total));
        put(the('rate'), rate(rates[[scope.scope, d.rule, d.outcome, d.way].join(' ')] || 0));
      });
    });
  }

  function show() {
    byId('main').hidden = false;
    put(byId('where'), status.host);
    put(byId('when'), clock(status.time));
    put(byId('foot'), 'Gatequota ' + status.version + ', gateway ' + status.gateway + ', started ' + duration((status.time - status.started) / 1000) +
      ' ago. Decisions are those of this gateway since then.');
    showVerdict();
    showChart();
    showStores();
    showScopes();
  }

  function lost(headline, what) {
    const since = status ? ['What stands below is from ' + clock(status.time) + ', ' +
      duration((Date.now() - answered) / 1000) + ' ago.'] : [];
    verdict('lost', headline, [what].concat(since));
  }

  async function refresh() {
    const headers = { Accept: 'application/json' };
    if (token) headers.Authorization = 'Bearer ' + token;
    const limit = new AbortController();
    const timer = setTimeout(function () { limit.abort(); }, patience);
    try {
      const answer = await fetch(location.pathname, { headers: headers, cache: 'no-store', redirect: 'error', signal: limit.signal });
      let next = null;
      try {
        next = await answer.json();
      } catch (error) {
        if (limit.signal.aborted) throw error;
      }
      if (!next || !Array.isArray(next.scopes)) {
        lost('Not the gateway\'s status', 'Something else answers at this address: ' + answer.status + '. The status may have moved, or is no longer for you.');
        return;
      }
      status = next;
      answered = Date.now();
      measure();
      show();
    } catch (error) {
      lost('No answer from the gateway', 'It cannot be reached from here. It is asked again every two seconds.');
    } finally {
      clearTimeout(timer);
    }
  }

  async function watch() {
    await refresh();
    setTimeout(watch, every);
  }
  new ResizeObserver(showChart).observe(byId('chart'));
  watch();
})();
`
