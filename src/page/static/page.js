// The live page: listens to the replica's events and shows them. All sentences come from there; only figures are worded here.
const byId = (id) => document.getElementById(id);
const whole = new Intl.NumberFormat('en', { maximumFractionDigits: 0 }).format;

/** No-break spaces stand before units. */
function duration(ms) {
  const [unit, name] = ms < 90e3 ? [1e3, 's'] : ms < 5400e3 ? [6e4, 'min'] : [36e5, 'h'];
  return `${Math.round((ms / unit) * 10) / 10}\u00a0${name}`;
}
const calls = (n) => `${whole(n)}\u00a0${n === 1 ? 'call' : 'calls'}`;
const time = (at) => `${new Date(at).toISOString().slice(11, 16)}\u00a0UTC`;
const share = (ratio) => `${ratio === 0 ? 0 : Math.max(1, Math.round(ratio * 100))}\u00a0%`;

/** Text only ever goes in as text. */
function make(name, attributes = {}, ...children) {
  const space = name === 'svg' || name === 'path' ? 'http://www.w3.org/2000/svg' : document.body.namespaceURI;
  const made = document.createElementNS(space, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children.filter((child) => child !== ''));
  return made;
}

/** Replaces children only when they changed, so that a reader's place and focus survive. */
function fill(parent, ...children) {
  const holder = parent.cloneNode(false);
  holder.append(...children);
  if (holder.innerHTML !== parent.innerHTML) parent.replaceChildren(...holder.childNodes);
}

const cell = (content, note = '') => make('div', {}, content, note === '' ? '' : make('small', {}, note));
const bold = (text, look = '') => make('b', { class: look }, text);
const pill = ({ tone, text }) => make('span', { class: `pill mark ${tone}` }, text);
const part = (title, ...children) => make('div', {}, make('h3', {}, title), ...children);

const tones = ['red', 'amber', 'blue', 'grey', 'green'];
const rank = ({ answer }) => tones.indexOf(answer.tone);

function showAnswer({ tone, sentence, rest, heldBy, wrongNow, next }) {
  const box = byId('answer');
  box.className = `answer ${tone}`;
  fill(box.querySelector('h1'), make('b', { class: 'mark' }, sentence), ` ${rest}`);
  fill(byId('held-by'), heldBy);
  fill(byId('wrong-now'), wrongNow);
  const links = next.map(({ text, command, place }) =>
    command
      ? make('li', {}, `${text} `, make('code', {}, command))
      : make('li', {}, make('a', { href: place }, text)),
  );
  fill(byId('next'), ...links);
  document.title = `${sentence} · Sluice`;
}

// --- APIs

const causes = {
  ceiling_minute: 'your ceiling',
  ceiling_day: 'your ceiling of the day',
  closed: 'it asked us to stop',
  requests: 'its limit of requests',
  tokens: 'its limit of tokens',
  cost: 'its limit of cost',
  upstream_day: 'its limit of the day',
  serialized: 'calls at once',
  queue: 'too many wait',
  credential: 'its credential',
};

/** A column for each of the last minutes: the calls asked for, the refused ones in red on top. The dashed line is what fits. */
function columns(minutes, fits) {
  const most = Math.max(1, ...minutes.map((minute) => minute.calls));
  const top = 1.1 * Math.max(most, Math.min(fits, 12 * most));
  const column = (at, from, to) => `M${at} ${top - from}h.84V${top - to}h-.84Z`;
  const asked = minutes.map((minute, at) => column(at, 0, minute.calls));
  const refused = minutes.map((minute, at) => column(at, minute.calls - minute.refused, minute.calls));
  const line = fits > 0 ? `M0 ${top - fits}H${minutes.length}` : '';
  return make(
    'svg',
    { 'aria-hidden': 'true', viewBox: `0 0 ${minutes.length} ${top}`, preserveAspectRatio: 'none' },
    make('path', { d: asked.join('') }),
    make('path', { d: refused.join(''), class: 'red' }),
    make('path', { d: line, class: 'line' }),
  );
}

function cellsOf({ upstream, recent, answer, headroom, waiting, oldestMs, reserved, lastHour, minutes }) {
  const { refused, heldBy, answeredInstead } = lastHour;
  const all = refused + answeredInstead;
  // What Sluice answers instead of the upstream is counted as held by `closed`, too.
  const [cause] = Object.entries(heldBy).sort(([, a], [, b]) => b - a)[0] ?? [''];
  const why = answeredInstead > refused ? 'it refuses every call' : (causes[cause] ?? cause);
  const busiest = headroom?.busiestMinute ?? 0;
  const fits = headroom?.usedRatio ? busiest / headroom.usedRatio : 0;
  return [
    cell(bold(upstream), `${calls(recent.calls)} a minute now`),
    pill(answer),
    cell(
      columns(minutes, fits),
      `busiest minute: ${whole(busiest)}${fits === 0 ? '' : `, ${whole(fits)} fit`}`,
    ),
    waiting === 0
      ? cell('none wait')
      : cell(bold(`${whole(waiting)} wait`, 'bad amber'), `longest ${duration(oldestMs)}`),
    all === 0 ? cell('none refused') : cell(bold(`${whole(all)} refused`, 'bad red'), why),
    reserved === 0 ? '' : cell(`${whole(reserved)} will come back`),
  ].filter((each) => each !== '');
}

const windows = { 1000: 'a second', 60000: 'a minute', 3600000: 'an hour', 86400000: 'a day' };
const owners = { provider: 'said by the provider', setting: 'your setting' };
function limitBar({ unit, windowMs, owner, workspace, used, limit }) {
  const what = unit.replace(/_(day|hour|burst)$/, '').replace('_', ' ');
  const name = `${what} ${windows[windowMs] ?? `in ${duration(windowMs)}`}`;
  const ratio = limit > 0 ? Math.min(1, used / limit) : 0;
  const value = `${whole(used)} of ${whole(limit)} ${name}, ${owners[owner] ?? `your ceiling of ${workspace}`}`;
  const bar = make('progress', { value: ratio, 'aria-label': value });
  return make('p', { class: ratio >= 0.95 ? 'amber' : '' }, value, bar);
}

/** What the last hour's traffic would meet, so many times as dense under so many times the limits. */
function rehearsedText({ times, limits, longestWaitMs, refusedRatio }, maxWaitMs) {
  const wait = refusedRatio > 0 ? `over ${duration(maxWaitMs)}` : duration(longestWaitMs);
  const half = limits < 1 ? ', with half the limits' : '';
  return `${share(times)} of it${half}: longest wait ${wait}, ${share(refusedRatio)} refused`;
}
function details({ limits, rehearsed, maxWaitMs }) {
  const bars = limits.length === 0 ? ['No limit is known here yet.'] : limits.map(limitBar);
  const lines = rehearsed.map((each) => make('p', {}, rehearsedText(each, maxWaitMs)));
  const now = part('Its limits now', ...bars);
  return lines.length === 0 ? [now] : [now, part('If there were, of the last hour’s traffic,', ...lines)];
}

/** The rows of APIs by name: each is made once, and only what is in it changes, so that one that is open stays open. */
const rows = new Map();
function rowOf(api) {
  const name = api.upstream;
  const row =
    rows.get(name) ?? make('details', { id: `api-${name}` }, make('summary'), make('div', { class: 'more' }));
  rows.set(name, row);
  const [summary, more] = row.children;
  summary.className = `row ${api.answer.tone}`;
  fill(summary, ...cellsOf(api));
  fill(more, ...details(api));
  return row;
}

function showApis(upstreams) {
  const list = byId('apis');
  const made = upstreams
    .toSorted((a, b) => rank(a) - rank(b) || a.upstream.localeCompare(b.upstream))
    .map(rowOf);
  const isSame = made.length === list.children.length && made.every((row, at) => list.children[at] === row);
  if (!isSame) list.replaceChildren(...made);
}

function openByHash() {
  const row = rows.get(location.hash.slice(1));
  if (row === undefined) return;
  row.open = true;
  row.scrollIntoView({ block: 'nearest' });
}

function showWorkspaces(workspaces) {
  const lanes = workspaces
    .flatMap(({ workspace, upstreams }) =>
      upstreams.map((lane) => ({ workspace, answer: { tone: 'grey', text: 'Not known here' }, ...lane })),
    )
    .sort((a, b) => rank(a) - rank(b) || (a.headroom?.growth ?? 99) - (b.headroom?.growth ?? 99));
  const lines = lanes.map(({ workspace, upstream, answer, recent }) => {
    const refused = Object.values(recent.shed).reduce((sum, n) => sum + n, recent.outcomes.throttled ?? 0);
    return make(
      'div',
      { class: 'row' },
      cell(make('code', {}, workspace), `to ${upstream}`),
      pill(answer),
      cell(calls(recent.calls), `longest wait ${duration(recent.waitMs.max)}`),
      refused > 0 ? bold(`${whole(refused)} refused`, 'bad red') : cell('none refused'),
    );
  });
  byId('workspaces').hidden = lanes.length === 0;
  fill(byId('lanes'), ...lines);
}

function showItself({ limiter, configuration, process, credentialEndsInMs: endsInMs, replicas, version }) {
  const { mode, modeSince, redisMs } = limiter;
  const { refused, inForceSince } = configuration;
  const { sheddingShare, openCalls } = process;
  const isAway = mode === 'local' || mode === 'deny';
  const facts = [
    ['Version', version],
    ['Replicas', isAway ? 'not known' : whole(replicas)],
    mode === 'memory'
      ? ['Redis', 'none']
      : [
          'Redis',
          isAway ? `away since ${time(modeSince)}` : `answers in ${(redisMs ?? 0).toFixed(1)}\u00a0ms`,
        ],
    [
      'Configuration',
      `of ${time(inForceSince)}${refused ? `, a change was refused at ${time(refused.at)}` : ''}`,
    ],
    ['Load of this replica', `${calls(openCalls)} open, refuses ${share(sheddingShare)}`],
    [
      'Credentials',
      endsInMs === null
        ? 'no end known'
        : endsInMs > 0
          ? `next ends in ${duration(endsInMs)}`
          : 'one has ended',
    ],
  ];
  fill(byId('itself'), ...facts.map(([name, value]) => cell(bold(name), value)));
}

// --- events

/** Without data for so long the figures are old. Milliseconds. */
const staleMs = 6_000;
let shown = null;

function show(state) {
  shown = { at: state.at, cameAt: Date.now() };
  document.body.classList.remove('stale');
  fill(byId('live'), `Live · ${new Date(state.at).toISOString().slice(11, 19)}\u00a0UTC`);
  showAnswer(state.answer);
  showApis(state.upstreams);
  showItself(state);
}

function watchAge() {
  if (shown === null || Date.now() - shown.cameAt < staleMs) return;
  document.body.classList.add('stale');
  fill(byId('live'), `Not live since ${time(shown.at)}`);
  showAnswer({
    tone: 'grey',
    sentence: 'Not known: this page lost its connection.',
    rest: '',
    heldBy: `Not known. The figures below are of ${time(shown.at)}.`,
    wrongNow: 'Not known. Calls may well pass.',
    next: [{ text: 'Is it there?', command: `curl ${new URL('readyz', location.href)}` }],
  });
}

// Relative, because the page may lie below a path of a reverse proxy.
const events = new EventSource('page/events');
events.addEventListener('state', ({ data }) => show(JSON.parse(data)));
events.addEventListener('state', openByHash, { once: true });
events.addEventListener('workspaces', ({ data }) => showWorkspaces(JSON.parse(data)));
setInterval(watchAge, 1_000);
addEventListener('hashchange', openByHash);
