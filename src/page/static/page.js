// The live page: listens to the replica's events and shows them. No state of its own but the last 15 minutes.
import { TimeChart, countFormat, countIncrements, waitFormat } from '/page/charts.js';
import {
  dimensionName,
  doubledText,
  duration,
  element,
  growthText,
  holdName,
  percent,
  redisText,
  refusalName,
  replace,
  setText,
  whole,
} from '/page/parts.js';

const kept = 450;
let samples = [];
const charts = {
  waiting: new TimeChart('chart-waiting', 'Calls waiting', countFormat, countIncrements),
  waits: new TimeChart('chart-waits', 'Longest wait', waitFormat),
  throttles: new TimeChart('chart-throttles', 'Upstream throttles', countFormat, countIncrements),
};

const modeNames = {
  redis: 'shared (Redis)',
  memory: 'embedded',
  local: 'local share: Redis away',
  deny: 'refusing: Redis away',
};

function showState(state) {
  showVerdict(state.verdict);
  const away = state.mode === 'local' || state.mode === 'deny';
  setText('mode', modeNames[state.mode] ?? state.mode, away);
  setText('redis', redisText(state), away || (state.redis?.errorsLastMinute ?? 0) > 0);
  setText('leases', `${whole.format(state.leasesLostLastMinute)} / min`, state.leasesLostLastMinute > 0);
  // Replicas know of each other through Redis.
  setText('replicas', away ? 'not known' : whole.format(state.replicas));
  const { sheddingShare, openCalls, connections } = state.process;
  setText('shedding', sheddingShare > 0 ? `${percent(sheddingShare)} of new calls` : 'no', sheddingShare > 0);
  setText('open-calls', `${whole.format(openCalls)} on ${whole.format(connections)} connections`);
  const wholes = new Map(state.whole.map((each) => [each.name, each]));
  const cards = state.upstreams.map((each) => upstreamCard(each, wholes.get(each.name), state.replicas));
  replace(document.getElementById('upstreams'), cards);
  showBars('refusals', state.refusals, refusalName);
  showBars('held', state.heldBy, holdName);
  const isAnyHeld = Object.keys(state.heldBy).length > 0;
  for (const id of ['held-title', 'held']) document.getElementById(id).hidden = !isAnyHeld;
}

function showVerdict({ level, title, detail }) {
  const verdict = document.getElementById('verdict');
  const text = `${title} ${detail}`;
  if (verdict.dataset.text === text) return;
  verdict.dataset.text = text;
  verdict.className = `verdict ${level}`;
  verdict.replaceChildren(element('strong', {}, title), detail);
  document.title = `${title} · Sluice`;
}

function upstreamCard(upstream, all, replicas) {
  const closed = upstream.closedMs > 0 || upstream.refusing !== null;
  const badge = badgeText(upstream);
  const card = element('article', { class: 'card', 'data-upstream': upstream.name });
  card.append(
    element(
      'div',
      { class: 'top' },
      element('h3', {}, upstream.name, ...bucketCount(upstream.buckets)),
      element('span', { class: `badge ${closed ? 'closed' : 'open'}` }, badge),
    ),
    ...(upstream.meters.length > 0
      ? upstream.meters.map(meter)
      : [element('p', {}, noMetersText(upstream.buckets))]),
    element(
      'dl',
      { class: 'figures' },
      figure('waiting', upstream.waiting, 'waiting'),
      figure('oldest', duration(upstream.oldestMs), 'longest waiting now'),
      figure('in-flight', upstream.inFlight, 'in flight'),
      figure('absorbed', upstream.absorbedLastMinute, 'absorbed / min'),
      figure('refused', upstream.shedLastMinute, 'refused / min'),
    ),
    ...wholeLine(all, replicas),
    ...credentialLine(upstream.credentialEndsInMs),
  );
  return card;
}

/** Limits belong to a bucket, and a bucket exists from its first call on. */
const noMetersText = (buckets) =>
  buckets === 0 ? 'No call yet: limits appear with the first one.' : 'No limit known yet.';

/** What all replicas together do; one alone has said it above. */
function wholeLine(all, replicas) {
  if (all === undefined || replicas < 2) return [];
  const text = `All ${whole.format(replicas)} replicas: ${whole.format(all.waiting)} waiting, ${whole.format(all.inFlight)} in flight; since the last full minute ${whole.format(all.absorbed)} absorbed, ${whole.format(all.shed)} refused.`;
  return [element('p', { class: 'whole' }, text)];
}

/** A token that ends soon is renewed before; one that has ended could not be. */
function credentialLine(endsInMs) {
  if (endsInMs === null) return [];
  const text = endsInMs <= 0 ? 'Its credential has ended.' : `Its credential ends in ${duration(endsInMs)}.`;
  return [element('p', { class: endsInMs < 120_000 ? 'credential bad' : 'credential' }, text)];
}

function badgeText({ refusing, closedMs }) {
  const inSeconds = (ms) => duration(Math.ceil(ms / 1000) * 1000);
  if (refusing !== null)
    return `refuses (${refusing.status}), asked again in ${inSeconds(refusing.retryInMs)}`;
  return closedMs > 0 ? `closed for ${inSeconds(closedMs)}` : 'open';
}

/** Which bucket the bars are about, where there are several (one per model, shop or credential). */
function bucketCount(n) {
  return n > 1 ? [' ', element('small', {}, `fullest of ${whole.format(n)} buckets`)] : [];
}

function figure(name, value, label) {
  const text = typeof value === 'number' ? whole.format(value) : value;
  return element('div', {}, element('dt', {}, label), element('dd', { 'data-figure': name }, text));
}

function meter({ dimension, used, level, limit }) {
  const look = used >= 0.95 ? 'full' : used >= 0.75 ? 'high' : '';
  const label = dimensionName(dimension);
  const value = `${percent(used)} · ${whole.format(level)} of ${whole.format(limit)}`;
  const bar = element('progress', {
    max: '1',
    value: String(Math.min(1, used)),
    'aria-label': `${label}: ${value}`,
  });
  if (look !== '') bar.className = look;
  return element(
    'div',
    { class: 'meter', 'data-dimension': dimension },
    element('span', {}, label),
    bar,
    element('span', { class: 'value' }, value),
  );
}

function showBars(id, counts, nameOf) {
  const entries = Object.entries(counts).sort(([, a], [, b]) => b - a);
  const most = entries[0]?.[1] ?? 1;
  const items = entries.map(([code, n]) =>
    element(
      'li',
      { 'data-code': code },
      element('span', {}, nameOf(code)),
      element('strong', {}, whole.format(n)),
      element('progress', {
        max: String(most),
        value: String(n),
        'aria-label': `${nameOf(code)}: ${n}`,
      }),
    ),
  );
  if (items.length === 0) items.push(element('li', { class: 'none' }, 'Nothing was refused.'));
  replace(document.getElementById(id), items);
}

function showCharts() {
  const names = Object.keys(samples.at(-1)?.upstreams ?? {});
  const times = samples.map(({ at }) => at / 1000);
  const line = (name, of) =>
    samples.map(({ upstreams }) => (Object.hasOwn(upstreams, name) ? of(upstreams[name]) : null));
  charts.waiting.show(
    names,
    times,
    names.map((name) => line(name, (each) => each.waiting)),
  );
  charts.waits.show(
    names,
    times,
    names.map((name) => line(name, (each) => Math.max(each.oldestMs, each.longestWaitMs) / 1000)),
  );
  const sum = (field) =>
    samples.map(({ upstreams }) => Object.values(upstreams).reduce((total, each) => total + each[field], 0));
  charts.throttles.show(['absorbed', 'passed on'], times, [sum('absorbed'), sum('throttled')]);
}

function showActivity({ workspaces }) {
  const rows = workspaces
    .flatMap(({ workspace, upstreams }) => upstreams.map((lane) => ({ workspace, ...lane })))
    .sort((a, b) => (b.headroom?.usedRatio ?? -1) - (a.headroom?.usedRatio ?? -1))
    .map(workspaceRow);
  if (rows.length === 0)
    rows.push(element('tr', {}, element('td', { colspan: '9' }, 'No calls in the last hour.')));
  replace(document.getElementById('workspaces'), rows);
}

function workspaceRow({ workspace, upstream, recent, headroom }) {
  const number = (text, look = '') => element('td', { class: `n ${look}`.trim() }, text);
  const refused = Object.values(recent.shed).reduce((sum, n) => sum + n, 0);
  const used = headroom?.usedRatio ?? null;
  const growth = headroom?.growth ?? null;
  return element(
    'tr',
    {},
    element('th', { scope: 'row' }, element('code', {}, workspace)),
    element('td', {}, upstream),
    number(
      headroom === null || headroom === undefined ? '–' : `${whole.format(headroom.busiestMinute)} calls`,
    ),
    number(
      used === null ? '–' : percent(used),
      used === null ? '' : used >= 1 ? 'bad' : used >= 0.8 ? 'warn' : '',
    ),
    number(
      growth === null ? '–' : growthText(growth),
      growth === 0 ? 'bad' : growth !== null && growth < 1.5 ? 'warn' : '',
    ),
    number(headroom === null || headroom === undefined ? '–' : doubledText(headroom.doubled)),
    number(duration(recent.waitMs.p95)),
    number(whole.format(recent.absorbed)),
    number(whole.format(refused), refused > 0 ? 'bad' : ''),
  );
}

function connect() {
  const connection = document.getElementById('connection');
  const say = (text, lost) => {
    if (connection.textContent !== text) connection.textContent = text;
    connection.classList.toggle('lost', lost);
  };
  const events = new EventSource('/page/events');
  events.addEventListener('open', () => say('Live', false));
  events.addEventListener('error', () => say('Connection lost, figures are old', true));
  events.addEventListener('history', ({ data }) => {
    samples = JSON.parse(data).slice(-kept);
    showCharts();
  });
  events.addEventListener('state', ({ data }) => {
    const state = JSON.parse(data);
    if (samples.at(-1)?.at !== state.sample.at) samples.push(state.sample);
    if (samples.length > kept) samples.shift();
    showState(state);
    showCharts();
  });
  events.addEventListener('activity', ({ data }) => showActivity(JSON.parse(data)));
}

// Colours are read from the style sheet when a chart is built.
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => {
  for (const chart of Object.values(charts)) if (chart.plot !== null) chart.build();
});
connect();
