// The live page: listens to the replica's events and shows them. All sentences come from there; only figures are worded here.
const byId = (id) => document.getElementById(id);
const whole = new Intl.NumberFormat('en', { maximumFractionDigits: 0 });
const nbsp = '\u00a0';

function duration(ms) {
  const s = ms / 1000;
  if (s < 9.95) return `${s < 0.05 ? 0 : s.toFixed(1).replace(/\.0$/, '')}${nbsp}s`;
  if (s < 59.5) return `${Math.round(s)}${nbsp}s`;
  const [unit, big, small] = s < 3600 ? [60, 'min', 's'] : [3600, 'h', 'min'];
  const rest = Math.floor((s % unit) / (unit / 60));
  return `${Math.floor(s / unit)}${nbsp}${big}${rest === 0 ? '' : ` ${rest}${nbsp}${small}`}`;
}
const counted = (n, one, many) => `${whole.format(n)}${nbsp}${n === 1 ? one : many}`;
const calls = (n) => counted(n, 'call', 'calls');
const time = (at) => new Date(at).toISOString().slice(11, 16) + `${nbsp}UTC`;
const share = (ratio) => `${ratio === 0 ? 0 : Math.max(1, Math.round(ratio * 100))}${nbsp}%`;
const sumOf = (numbers) => numbers.reduce((sum, n) => sum + n, 0);

/** Text only ever goes in as text. */
function make(name, attributes = {}, ...children) {
  const made = ['svg', 'use', 'rect', 'line'].includes(name)
    ? document.createElementNS('http://www.w3.org/2000/svg', name)
    : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/** Replaces children only when they changed, so that a reader's place and focus survive. */
function fill(parent, ...children) {
  const holder = parent.cloneNode(false);
  holder.append(...children);
  if (holder.innerHTML !== parent.innerHTML) parent.replaceChildren(...holder.childNodes);
}

const small = (...children) => make('small', {}, ...children);
const bad = (tone, text) => make('span', { class: `bad ${tone}` }, text);
const part = (title, ...children) => make('div', {}, make('h3', {}, title), ...children);
const pill = ({ tone, text }) => {
  const icon = make('svg', { class: 'icon', 'aria-hidden': 'true' }, make('use', { href: `#i-${tone}` }));
  return make('span', { class: `pill ${tone}` }, icon, text);
};

/** Columns are `[head, attributes]`; the first cell of a row names it, those of columns with attributes carry their head. */
function table(columns, rows, attributes = {}) {
  const heads = columns.map(([text, look]) => make('th', { scope: 'col', ...look }, text));
  const cellOf = (cell, at) => {
    const [head, look] = columns[at];
    if (at === 0) return make('th', { scope: 'row' }, cell);
    return make('td', look === undefined ? {} : { 'data-name': head, ...look }, cell);
  };
  const lines = rows.map((cells) => make('tr', {}, ...cells.map(cellOf)));
  return make('table', attributes, make('thead', {}, make('tr', {}, ...heads)), make('tbody', {}, ...lines));
}

const toneOrder = ['red', 'amber', 'blue', 'grey', 'green'];
const rank = ({ answer }) => toneOrder.indexOf(answer.tone);

// --- the answer

function showAnswer({ tone, sentence, rest, heldBy, wrongNow, next }) {
  const box = byId('answer');
  box.className = `answer ${tone}`;
  box.querySelector('use').setAttribute('href', `#i-${tone}`);
  fill(box.querySelector('h1'), make('b', {}, sentence), ' ', make('span', {}, rest));
  fill(byId('held-by'), heldBy);
  fill(byId('wrong-now'), wrongNow);
  const links = next.map(({ text, command, place }) =>
    command
      ? make('li', {}, `${text}: `, make('code', {}, command))
      : make('li', {}, make('a', { href: place }, text)),
  );
  fill(byId('next'), ...links);
  document.title = `${sentence} · Sluice`;
}

// --- APIs

/** Beyond so many, those that are calm stand in columns. */
const maxRows = 8;
const rows = new Map();
const opened = new Set();
let state = null;

/** Calls a minute that the tightest limit lets through; null = no limit is known. */
const perMinute = ({ headroom }) =>
  headroom?.usedRatio ? headroom.busiestMinute / headroom.usedRatio : null;

const unitNames = { cost: 'cost points', input_tokens: 'input tokens', output_tokens: 'output tokens' };
const windowNames = { 1000: 'a second', 60000: 'a minute', 3600000: 'an hour', 86400000: 'a day' };
function limitName({ unit, windowMs, owner, workspace }) {
  const what = unitNames[unit] ?? unit.replace(/_(day|hour|burst)$/, '');
  const name = `${what} ${windowNames[windowMs] ?? `in ${duration(windowMs)}`}`;
  return owner === 'ceiling' ? `ceiling of ${workspace.slice(0, 10)}…, ${name}` : name;
}
const owners = { provider: 'said by the provider', setting: 'your setting', ceiling: 'your setting' };
const usedOf = ({ used, limit }) => (limit > 0 ? used / limit : 0);

function limitBar(each) {
  const used = usedOf(each);
  const name = limitName(each);
  const value = `${whole.format(each.used)} of ${whole.format(each.limit)}`;
  const look = { max: '1', value: String(Math.min(1, used)), 'aria-label': `${name}: ${value}` };
  return make(
    'div',
    { class: used >= 0.95 ? 'limit full amber' : 'limit' },
    make('span', {}, name[0].toUpperCase() + name.slice(1)),
    make('span', {}, value),
    make('progress', look),
    small(owners[each.owner]),
  );
}

/** A column for each minute, as high as calls were asked for; the dashed line is what fits. */
function columns(upstream, look) {
  const { minutes, headroom } = upstream;
  const fits = perMinute(upstream);
  const room = fits === null ? 0 : Math.min(fits, 12 * headroom.busiestMinute);
  const top = Math.max(1, room, ...minutes.map((each) => each.calls)) * 1.1;
  const bar = (at, n, below, attributes) =>
    make('rect', {
      x: String(at),
      width: '0.84',
      y: String(top - below - n),
      height: String(n),
      ...attributes,
    });
  const rects = minutes.flatMap(({ calls: asked, refused }, at) => [
    bar(at, Math.max(0, asked - refused), 0),
    bar(at, refused, Math.max(0, asked - refused), { class: 'red' }),
  ]);
  const line = { x1: '0', x2: String(minutes.length), y1: String(top - fits), y2: String(top - fits) };
  const of = (key) => sumOf(minutes.map((each) => each[key]));
  const attributes = {
    class: look,
    viewBox: `0 0 ${minutes.length} ${top}`,
    preserveAspectRatio: 'none',
    role: 'img',
    'aria-label': `Last 15 minutes: ${calls(of('calls'))}, ${whole.format(of('refused'))} refused`,
  };
  return make('svg', attributes, ...rects, ...(fits === null || fits > top ? [] : [make('line', line)]));
}

function traffic(upstream) {
  const { lastHour, headroom } = upstream;
  if (lastHour.calls === 0) return [small('No limit known yet. The first answer tells.')];
  const fits = perMinute(upstream);
  const busiest = `busiest minute: ${calls(headroom?.busiestMinute ?? 0)}`;
  const room = fits === null ? '; no limit is known' : `, ${whole.format(fits)} fit`;
  return [columns(upstream, 'bars'), small(busiest + room)];
}

const holds = {
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
function refusals({ lastHour: { refused, heldBy, answeredInstead } }) {
  const all = refused + answeredInstead;
  if (all === 0) return ['none refused'];
  const [cause, n] = Object.entries(heldBy).sort(([, a], [, b]) => b - a)[0] ?? [null, 0];
  const ofEvery = answeredInstead > 0 && answeredInstead >= n;
  const why = ofEvery ? 'it refuses every call' : cause === null ? '' : `most: ${holds[cause] ?? cause}`;
  return [bad('red', `${whole.format(all)} refused`), ...(why === '' ? [] : [small(why)])];
}

function waits({ waiting, oldestMs, reserved }) {
  const now = waiting === 0 ? ['none wait'] : [bad('amber', counted(waiting, 'waits', 'wait'))];
  if (waiting > 0) now.push(small(`longest ${duration(oldestMs)}`));
  return reserved === 0 ? now : [...now, small(`${whole.format(reserved)} will come back`)];
}

const timesNames = {
  0.5: 'half of it',
  1: 'as it was',
  1.1: 'a tenth more',
  1.25: 'a quarter more',
  2: 'twice as much',
};
function details(upstream) {
  const { limits, minutes, rehearsed, maxWaitMs } = upstream;
  const most = Math.max(0, ...minutes.map((each) => each.calls));
  const rehearsals = rehearsed.map(({ times, limits: part, longestWaitMs, refusedRatio }) => [
    part < 1 ? 'as it was, with half the limits' : timesNames[times],
    refusedRatio > 0 ? `over ${duration(maxWaitMs)}` : duration(longestWaitMs),
    share(refusedRatio),
  ]);
  const heads = [['Traffic'], ['Longest wait'], ['Refused']];
  return [
    part('Its limits now', ...(limits.length === 0 ? ['No limit is known yet.'] : limits.map(limitBar))),
    part(
      'Calls a minute, last 15 minutes',
      columns(upstream, 'bars chart'),
      small(`highest ${whole.format(most)}; red: refused; dashed: what fits`),
    ),
    ...(rehearsed.length === 0 ? [] : [part('If the last hour’s traffic were', table(heads, rehearsals))]),
  ];
}

/** The rows of an API: they are made once, and only what is in them changes. */
function rowOf(name) {
  const known = rows.get(name);
  if (known !== undefined) return known;
  const body = byId('api').content.firstElementChild.cloneNode(true);
  body.id = `api-${name}`;
  const [row, more] = body.rows;
  const button = row.querySelector('button');
  button.setAttribute('aria-label', `More of ${name}`);
  button.addEventListener('click', () => {
    if (!opened.delete(name)) opened.add(name);
    showApis();
  });
  const made = { body, row, more, button };
  rows.set(name, made);
  return made;
}

function fillRow(api) {
  const { body, row, more, button } = rowOf(api.upstream);
  const [name, answer, traffics, waiting, refused] = row.cells;
  row.className = `row ${api.answer.tone}`;
  const pace = api.recent.calls === 0 ? 'no calls now' : `${calls(api.recent.calls)} a minute`;
  fill(name, make('b', {}, api.upstream), small(pace));
  fill(answer, pill(api.answer));
  fill(traffics, ...traffic(api));
  fill(waiting, ...waits(api));
  fill(refused, ...refusals(api));
  const isOpen = opened.has(api.upstream);
  button.setAttribute('aria-expanded', String(isOpen));
  button.firstChild.data = isOpen ? '▾' : '▸';
  more.hidden = !isOpen;
  if (isOpen) fill(more.querySelector('div'), ...details(api));
  return body;
}

function showApis() {
  const list = byId('apis');
  const wanted = byId('find-api').value.toLowerCase();
  const isMany = state.upstreams.length > maxRows;
  const found = state.upstreams
    .filter(({ upstream }) => upstream.includes(wanted))
    .toSorted((a, b) => rank(a) - rank(b) || a.upstream.localeCompare(b.upstream));
  const isRow = (each) => !isMany || rank(each) < 3 || opened.has(each.upstream);
  const bodies = found.filter(isRow).map(fillRow);
  const present = [...list.tBodies];
  const isSame = present.length === bodies.length && bodies.every((body) => present.includes(body));
  const isOrdered = bodies.every((body, at) => present[at] === body);
  // Rows do not move under the pointer or the focus.
  const isBusy = list.matches(':hover') || list.contains(document.activeElement);
  if (!isSame || (!isOrdered && !isBusy)) list.replaceChildren(list.tHead, ...bodies);
  list.hidden = bodies.length === 0;
  const calm = found
    .filter((each) => !isRow(each))
    .toSorted((a, b) => a.upstream.localeCompare(b.upstream))
    .map(({ upstream, answer }) =>
      make('li', {}, make('a', { href: `#${upstream}` }, upstream), pill(answer)),
    );
  fill(byId('calm'), ...calm);
  byId('find-api').hidden = !isMany;
  const count = (...tones) => state.upstreams.filter(({ answer }) => tones.includes(answer.tone)).length;
  const many = `${count('red', 'amber', 'blue')} need attention, ${count('green')} have room, ${count('grey')} are not known`;
  const legend = 'Columns: calls asked for. The space above them, up to the dashed line, is room.';
  fill(byId('apis-note'), isMany ? many : state.upstreams.some(perMinute) ? legend : '');
}

function openByHash() {
  const name = location.hash.slice(1);
  if (state === null || !state.upstreams.some(({ upstream }) => upstream === name)) return;
  opened.add(name);
  showApis();
  rowOf(name).body.scrollIntoView({ block: 'nearest' });
}

// --- workspaces

const maxWorkspaces = 8;
const laneColumns = [
  ['Workspace'],
  ['API'],
  ['Can it grow?'],
  ['Busiest minute', { class: 'n wide' }],
  ['Longest wait', { class: 'n' }],
  ['Refused', { class: 'n' }],
];
let workspaces = [];
let showsAll = false;

function showWorkspaces() {
  const lanes = workspaces
    .flatMap(({ workspace, upstreams }) =>
      upstreams.map((lane) => ({ workspace, answer: { tone: 'grey', text: 'Not known here' }, ...lane })),
    )
    .sort((a, b) => rank(a) - rank(b) || (a.headroom?.growth ?? 99) - (b.headroom?.growth ?? 99));
  const wanted = byId('find-workspace').value.toLowerCase();
  const found = lanes.filter(({ workspace }) => workspace.includes(wanted));
  const cut = showsAll || wanted !== '' ? found : found.slice(0, maxWorkspaces);
  const lines = cut.map(({ workspace, upstream, answer, headroom, recent }) => {
    const refused = sumOf(Object.values(recent.shed)) + (recent.outcomes.throttled ?? 0);
    return [
      make('code', {}, workspace),
      upstream,
      pill(answer),
      headroom ? calls(headroom.busiestMinute) : '–',
      duration(recent.waitMs.max),
      refused > 0 ? bad('red', whole.format(refused)) : '0',
    ];
  });
  byId('workspaces').hidden = lanes.length === 0;
  fill(byId('lanes'), table(laneColumns, lines, { class: 'card' }));
  const isMany = lanes.length > maxWorkspaces;
  byId('find-workspace').hidden = !isMany;
  byId('show-all').hidden = !isMany || wanted !== '';
  fill(byId('show-all'), showsAll ? 'Show fewer' : `Show all ${whole.format(lanes.length)}`);
}

// --- Sluice itself

function showItself({ limiter, configuration, process, credentialEndsInMs: endsInMs, replicas, version }) {
  const { mode, modeSince, redisMs } = limiter;
  const isAway = mode === 'local' || mode === 'deny';
  const redis = isAway
    ? [
        `away since ${time(modeSince)}`,
        mode === 'deny' ? 'calls are refused' : 'each replica keeps to its share',
      ]
    : [redisMs === null ? 'reached' : `answers in ${redisMs.toFixed(1)}${nbsp}ms`, 'limits are shared'];
  const credentials =
    endsInMs > 0 ? ['all valid', `next ends in ${duration(endsInMs)}`] : ['one has ended', ''];
  const { refused, inForceSince } = configuration;
  const { sheddingShare, openCalls } = process;
  const facts = [
    ['Replicas', isAway ? 'not known' : `${whole.format(replicas)} alive`, isAway ? 'Redis is away' : ''],
    mode === 'redis' || isAway ? ['Redis', ...redis] : null,
    [
      'Configuration',
      `in force since ${time(inForceSince)}`,
      refused === null ? 'last change accepted' : `a change was refused at ${time(refused.at)}`,
    ],
    sheddingShare > 0
      ? ['Load of this replica', `refuses ${share(sheddingShare)}`, 'too much to do']
      : ['Load of this replica', `${calls(openCalls)} open`, 'refuses nothing for load'],
    endsInMs === null ? null : ['Credentials', ...credentials],
  ].filter((fact) => fact !== null);
  const made = facts.map(([name, value, note]) =>
    make('div', {}, make('dt', {}, name), make('dd', {}, make('b', {}, value), note)),
  );
  fill(byId('itself'), ...made);
  fill(byId('version'), version);
  fill(byId('replicas'), isAway ? 'Redis away' : counted(replicas, 'replica', 'replicas'));
}

// --- events

/** Without data for so long the figures are old. Milliseconds. */
const staleMs = 6_000;
let lastAt = null;

function show(next) {
  state = next;
  lastAt = Date.now();
  document.body.classList.remove('stale');
  fill(byId('live'), `Live · ${new Date(next.at).toISOString().slice(11, 19)}${nbsp}UTC`);
  showAnswer(next.answer);
  showApis();
  showItself(next);
}

function watchAge() {
  if (lastAt === null || Date.now() - lastAt < staleMs) return;
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
events.addEventListener('workspaces', ({ data }) => {
  workspaces = JSON.parse(data);
  showWorkspaces();
});
setInterval(watchAge, 1_000);
addEventListener('hashchange', openByHash);
byId('find-api').addEventListener('input', showApis);
byId('find-workspace').addEventListener('input', showWorkspaces);
byId('show-all').addEventListener('click', () => {
  showsAll = !showsAll;
  showWorkspaces();
});
