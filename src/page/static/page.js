// The live page: listens to the replica's events and shows them. All sentences come from there; only figures are worded here.
const byId = (id) => document.getElementById(id);
const whole = new Intl.NumberFormat('en', { maximumFractionDigits: 0 }).format;

/** No-break spaces stand before units. */
function duration(ms) {
  const s = ms / 1000;
  if (s < 9.95) return `${Math.round(s * 10) / 10}\u00a0s`;
  if (s < 59.5) return `${Math.round(s)}\u00a0s`;
  const [unit, big, small] = s < 3600 ? [60, 'min', 's'] : [3600, 'h', 'min'];
  const rest = Math.floor((s % unit) / (unit / 60));
  return `${Math.floor(s / unit)}\u00a0${big}${rest === 0 ? '' : ` ${rest}\u00a0${small}`}`;
}
const calls = (n) => `${whole(n)}\u00a0${n === 1 ? 'call' : 'calls'}`;
const time = (at) => `${new Date(at).toISOString().slice(11, 16)}\u00a0UTC`;
const share = (ratio) => `${ratio === 0 ? 0 : Math.max(1, Math.round(ratio * 100))}\u00a0%`;

/** Text only ever goes in as text. */
function make(name, attributes = {}, ...children) {
  const space = ['svg', 'rect', 'line'].includes(name)
    ? 'http://www.w3.org/2000/svg'
    : document.body.namespaceURI;
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

const cell = (text, note, attributes) =>
  make('div', attributes, text, note === '' ? '' : make('small', {}, note));
const bold = (text) => make('b', {}, text);
const bad = (tone, text) => make('b', { class: `bad ${tone}` }, text);
const pill = ({ tone, text }) => make('span', { class: `pill mark ${tone}` }, text);
const part = (title, ...children) => make('div', {}, make('h3', {}, title), ...children);

/** The first cell of a row names it; the others carry their heads, which a phone shows before them. */
function table(heads, rows) {
  const headed = heads.map((text) => make('th', { scope: 'col' }, text));
  const cellOf = (content, at) =>
    at === 0 ? make('th', { scope: 'row' }, content) : make('td', { 'data-head': heads[at] }, content);
  const lines = rows.map((cells) => make('tr', {}, ...cells.map(cellOf)));
  return make('table', {}, make('thead', {}, make('tr', {}, ...headed)), make('tbody', {}, ...lines));
}

const tones = ['red', 'amber', 'blue', 'grey', 'green'];
const rank = ({ answer }) => tones.indexOf(answer.tone);

function showAnswer({ tone, sentence, rest, heldBy, wrongNow, next }) {
  const box = byId('answer');
  box.className = `answer ${tone}`;
  fill(box.querySelector('h1'), make('b', { class: 'mark' }, sentence), ' ', make('span', {}, rest));
  fill(byId('held-by'), heldBy);
  fill(byId('wrong-now'), wrongNow);
  const links = next.map(({ text, command, place }) =>
    command
      ? make('li', {}, text.endsWith('?') ? `${text} ` : `${text}: `, make('code', {}, command))
      : make('li', {}, make('a', { href: place }, text)),
  );
  fill(byId('next'), ...links);
  document.title = `${sentence} · Sluice`;
}

// --- APIs

/** Calls a minute that the tightest limit lets through; null = no limit is known. */
const perMinute = ({ headroom }) =>
  headroom?.usedRatio ? headroom.busiestMinute / headroom.usedRatio : null;

/** A column for each minute, as high as calls were asked for, the refused ones on top; the dashed line is what fits. */
function columns(api) {
  const { minutes, headroom } = api;
  const fits = perMinute(api);
  const room = fits === null ? 0 : Math.min(fits, 12 * headroom.busiestMinute);
  const top = Math.max(1, room, ...minutes.map((each) => each.calls)) * 1.1;
  const bar = (x, height, below, look) =>
    make('rect', { x, width: 0.84, y: top - below - height, height, class: look });
  const bars = minutes.flatMap(({ calls: asked, refused }, at) => {
    const sent = Math.max(0, asked - refused);
    return [bar(at, sent, 0, ''), bar(at, refused, sent, 'red')];
  });
  const y = top - (fits ?? 0);
  const line =
    fits !== null && fits <= top ? [make('line', { x1: 0, x2: minutes.length, y1: y, y2: y })] : [];
  const total = (key) => minutes.reduce((sum, each) => sum + each[key], 0);
  const label = `Last 15 minutes: ${calls(total('calls'))}, ${whole(total('refused'))} refused`;
  const look = { viewBox: `0 0 ${minutes.length} ${top}`, preserveAspectRatio: 'none' };
  return make('svg', { role: 'img', 'aria-label': label, ...look }, ...bars, ...line);
}

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
  paused: 'paused',
  credential: 'its credential',
};

function cellsOf(api) {
  const { upstream, recent, answer, headroom, waiting, oldestMs, reserved, lastHour } = api;
  const { refused, heldBy, answeredInstead } = lastHour;
  const fits = perMinute(api);
  const busiest = `busiest minute: ${calls(headroom?.busiestMinute ?? 0)}`;
  const all = refused + answeredInstead;
  // What Sluice answers instead of the upstream is counted as held by `closed`, too.
  const [cause] = Object.entries(heldBy).sort(([, a], [, b]) => b - a)[0] ?? [''];
  const why = answeredInstead > refused ? 'it refuses every call' : (causes[cause] ?? cause);
  const back = reserved === 0 ? '' : `${whole(reserved)} will come back`;
  return [
    cell(bold(upstream), recent.calls === 0 ? 'no calls now' : `${calls(recent.calls)} a minute`),
    cell(pill(answer), ''),
    lastHour.calls === 0
      ? cell(
          '',
          api.limits.length === 0
            ? 'No limit known yet. The first answer tells.'
            : 'no calls in the last hour',
        )
      : cell(columns(api), busiest + (fits === null ? '; no limit is known' : `, ${whole(fits)} fit`)),
    waiting === 0
      ? cell('none wait', back)
      : cell(bad('amber', `${whole(waiting)} wait`), `longest ${duration(oldestMs)} ${back}`),
    all === 0 ? cell('none refused', '') : cell(bad('red', `${whole(all)} refused`), why),
  ];
}

const windows = { 1000: 'a second', 60000: 'a minute', 3600000: 'an hour', 86400000: 'a day' };
const owners = { provider: 'said by the provider', setting: 'your setting' };
function limitBar({ unit, windowMs, owner, workspace, used, limit }) {
  const what = unit
    .replace(/_(day|hour|burst)$/, '')
    .replace(/^cost$/, 'cost points')
    .replace('_', ' ');
  const name = `${what} ${windows[windowMs] ?? `in ${duration(windowMs)}`}`;
  const ratio = limit > 0 ? used / limit : 0;
  const value = `${whole(used)} of ${whole(limit)}`;
  const look = { max: 1, value: Math.min(1, ratio), 'aria-label': `${name}: ${value}` };
  const whose = owners[owner] ?? `your ceiling of ${workspace}`;
  return make(
    'p',
    { class: ratio >= 0.95 ? 'amber' : '' },
    cell(name, ''),
    value,
    make('progress', look),
    whose,
  );
}

const timesNames = {
  0.5: 'half of it',
  1: 'as it was',
  1.1: 'a tenth more',
  1.25: 'a quarter more',
  2: 'twice as much',
};
function details({ limits, rehearsed, maxWaitMs }) {
  const rows = rehearsed.map(({ times, limits: part, longestWaitMs, refusedRatio }) => [
    part < 1 ? 'as it was, with half the limits' : timesNames[times],
    refusedRatio > 0 ? `over ${duration(maxWaitMs)}` : duration(longestWaitMs),
    share(refusedRatio),
  ]);
  const bars = limits.length === 0 ? ['No limit is known here yet.'] : limits.map(limitBar);
  const now = part('Its limits now', make('div', { class: 'limits' }, ...bars));
  if (rows.length === 0) return [now];
  return [now, part('If the last hour’s traffic were', table(['Traffic', 'Longest wait', 'Refused'], rows))];
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

let state = null;
function showApis() {
  const list = byId('apis');
  const found = state.upstreams.toSorted((a, b) => rank(a) - rank(b) || a.upstream.localeCompare(b.upstream));
  const made = found.map(rowOf);
  // Rows do not move under the pointer or the focus.
  const isBusy = list.matches(':hover') || list.contains(document.activeElement);
  const isSame = made.length === list.children.length && made.every((row, at) => list.children[at] === row);
  if (!isSame && (!isBusy || made.length !== list.children.length)) list.replaceChildren(...made);
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
  const lines = lanes.map(({ workspace, upstream, answer, headroom, recent }) => {
    const refused = Object.values(recent.shed).reduce((sum, n) => sum + n, recent.outcomes.throttled ?? 0);
    return [
      make('code', {}, workspace),
      upstream,
      pill(answer),
      headroom ? calls(headroom.busiestMinute) : '–',
      duration(recent.waitMs.max),
      refused > 0 ? bad('red', whole(refused)) : '0',
    ];
  });
  byId('workspaces').hidden = lanes.length === 0;
  const heads = ['Workspace', 'API', 'Can it grow?', 'Busiest minute', 'Longest wait', 'Refused'];
  fill(byId('lanes'), table(heads, lines));
}

function showItself({ limiter, configuration, process, credentialEndsInMs: endsInMs, replicas, version }) {
  const { mode, modeSince, redisMs } = limiter;
  const { refused, inForceSince } = configuration;
  const { sheddingShare, openCalls } = process;
  const isAway = mode === 'local' || mode === 'deny';
  const away = mode === 'deny' ? 'calls are refused' : 'each replica keeps to its share';
  const reached = redisMs === null ? 'reached' : `answers in ${redisMs.toFixed(1)}\u00a0ms`;
  const change = refused === null ? 'last change accepted' : `a change was refused at ${time(refused.at)}`;
  const facts = [
    isAway ? ['Replicas', 'not known', 'Redis is away'] : ['Replicas', `${whole(replicas)} alive`, ''],
    isAway ? ['Redis', `away since ${time(modeSince)}`, away] : ['Redis', reached, 'limits are shared'],
    ['Configuration', `in force since ${time(inForceSince)}`, change],
    sheddingShare > 0
      ? ['Load of this replica', `refuses ${share(sheddingShare)}`, 'too much to do']
      : ['Load of this replica', `${calls(openCalls)} open`, 'refuses nothing for load'],
    endsInMs > 0
      ? ['Credentials', 'all valid', `next ends in ${duration(endsInMs)}`]
      : ['Credentials', 'one has ended', ''],
  ].filter(
    ([name]) => (name !== 'Redis' || mode !== 'memory') && (name !== 'Credentials' || endsInMs !== null),
  );
  const made = facts.map(([name, value, note]) =>
    make('div', {}, make('dt', {}, name), make('dd', {}, bold(value), ` ${note}`)),
  );
  fill(byId('itself'), ...made);
  fill(
    byId('version'),
    `${version} · ${isAway ? 'Redis away' : `${whole(replicas)} ${replicas === 1 ? 'replica' : 'replicas'}`}`,
  );
}

// --- events

/** Without data for so long the figures are old. Milliseconds. */
const staleMs = 6_000;
let lastAt = Infinity;

function show(next) {
  state = next;
  lastAt = Date.now();
  document.body.classList.remove('stale');
  fill(byId('live'), `Live · ${new Date(next.at).toISOString().slice(11, 19)}\u00a0UTC`);
  showAnswer(next.answer);
  showApis();
  showItself(next);
}

function watchAge() {
  if (Date.now() - lastAt < staleMs) return;
  document.body.classList.add('stale');
  fill(byId('live'), `Not live since ${time(state.at)}`);
  showAnswer({
    tone: 'grey',
    sentence: 'Not known: this page lost its connection.',
    rest: '',
    heldBy: `Not known. The figures below are of ${time(state.at)}, ${duration(Date.now() - lastAt)} old.`,
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
