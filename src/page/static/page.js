// The live page: listens to the replica's events and shows them. All sentences come from there; only figures are worded here.
const byId = (id) => document.getElementById(id);
const whole = new Intl.NumberFormat('en', { maximumFractionDigits: 0 });
const nbsp = '\u00a0';

function duration(ms) {
  const s = ms / 1000;
  if (s < 9.95) return `${s < 0.05 ? 0 : s.toFixed(1).replace(/\.0$/, '')}${nbsp}s`;
  if (s < 59.5) return `${Math.round(s)}${nbsp}s`;
  const [m, rest] = [Math.floor(s / 60), Math.floor(s % 60)];
  if (s < 3600) return `${m}${nbsp}min${rest === 0 ? '' : ` ${rest}${nbsp}s`}`;
  return `${Math.floor(s / 3600)}${nbsp}h ${Math.floor((s % 3600) / 60)}${nbsp}min`;
}
const calls = (n) => (n === 1 ? `1${nbsp}call` : `${whole.format(n)}${nbsp}calls`);
const time = (at) => new Date(at).toISOString().slice(11, 16) + `${nbsp}UTC`;
const share = (ratio) => `${ratio === 0 ? 0 : Math.max(1, Math.round(ratio * 100))}${nbsp}%`;

/** Text only ever goes in as text. */
function make(name, attributes = {}, ...children) {
  const isSvg = ['svg', 'use', 'rect', 'line'].includes(name);
  const made = isSvg
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

const icon = (tone) =>
  make('svg', { class: 'icon', 'aria-hidden': 'true' }, make('use', { href: `#i-${tone}` }));
const pill = ({ tone, text }) => make('span', { class: `pill ${tone}` }, icon(tone), text);
const toneOrder = ['red', 'amber', 'blue', 'grey', 'green'];
const rank = ({ answer }) => toneOrder.indexOf(answer.tone);

// --- the answer

let shown = { rank: 9, betterSince: 0, sentence: '' };

/** What is worse shows at once, what is better when it has been so for ten seconds. */
function showAnswer(answer) {
  const now = toneOrder.indexOf(answer.tone);
  const isBetter = now > shown.rank;
  if (!isBetter) shown.betterSince = 0;
  else if (shown.betterSince === 0) shown.betterSince = Date.now();
  if (isBetter && shown.rank < 9 && Date.now() - shown.betterSince < 10_000) return;
  shown = { rank: now, betterSince: 0, sentence: answer.sentence };
  setAnswer(answer);
}

function setAnswer({ tone, sentence, rest, heldBy, wrongNow, next }) {
  const box = byId('answer');
  box.className = `answer ${tone}`;
  box.querySelector('use').setAttribute('href', `#i-${tone}`);
  fill(box.querySelector('h1'), make('b', {}, sentence), ' ', make('span', {}, rest));
  fill(byId('held-by'), heldBy);
  fill(byId('wrong-now'), wrongNow);
  const links = next.map(({ text, command, place }) =>
    command === undefined
      ? make('li', {}, make('a', { href: place }, text))
      : make('li', {}, `${text}: `, make('code', {}, command)),
  );
  fill(byId('next'), ...links);
  document.title = `${sentence} · Sluice`;
}

// --- upstreams

/** Beyond so many, those that are calm stand in columns. */
const maxRows = 8;
const rows = new Map();
const opened = new Set();
let state = null;

function openByHash() {
  const name = decodeURIComponent(location.hash.slice(1));
  if (rows.has(name)) opened.add(name);
  if (state !== null) showUpstreams(state.upstreams);
}

/** Calls a minute that the tightest limit lets through; null = no limit is known. */
const perMinute = ({ headroom }) =>
  headroom === null || !headroom.usedRatio ? null : headroom.busiestMinute / headroom.usedRatio;

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
  const bar = make('progress', {
    max: '1',
    value: String(Math.min(1, used)),
    'aria-label': `${name}: ${value}`,
  });
  if (used >= 0.95) bar.className = 'full';
  const label = name[0].toUpperCase() + name.slice(1);
  return make(
    'div',
    { class: 'limit' },
    make('span', {}, label),
    make('span', {}, value),
    bar,
    make('small', {}, owners[each.owner]),
  );
}

/** Columns for the minutes, as high as calls were asked for; the dashed line is what fits. */
function columns(upstream, { className, height, width }) {
  const { minutes } = upstream;
  const fits = perMinute(upstream);
  const most = Math.max(
    1,
    ...minutes.map((each) => each.calls),
    ...(fits === null ? [] : [Math.min(fits, 12 * upstream.headroom.busiestMinute)]),
  );
  const scale = (n) => (n / (most * 1.1)) * height;
  const step = width / minutes.length;
  const rects = minutes.flatMap(({ calls: asked, refused }, at) => {
    const sent = Math.max(0, asked - refused);
    const place = { x: String(at * step), width: String(step * 0.84) };
    const low = make('rect', { ...place, y: String(height - scale(sent)), height: String(scale(sent)) });
    if (refused === 0) return [low];
    const high = { y: String(height - scale(sent + refused)), height: String(scale(refused)) };
    return [low, make('rect', { ...place, ...high, class: 'refused' })];
  });
  if (fits !== null && fits <= most) {
    const y = String(height - scale(fits));
    rects.push(make('line', { x1: '0', x2: String(width), y1: y, y2: y }));
  }
  const all = minutes.reduce((sum, each) => sum + each.calls, 0);
  const refused = minutes.reduce((sum, each) => sum + each.refused, 0);
  const label = `Last 15 minutes: ${calls(all)}, ${whole.format(refused)} refused`;
  return make(
    'svg',
    {
      class: className,
      viewBox: `0 0 ${width} ${height}`,
      preserveAspectRatio: 'none',
      role: 'img',
      'aria-label': label,
    },
    ...rects,
  );
}

function caption(upstream) {
  const fits = perMinute(upstream);
  if (upstream.lastHour.calls === 0) return ['No limit known yet. The first answer tells.'];
  const busiest = upstream.headroom?.busiestMinute ?? 0;
  if (fits === null) return [`busiest minute: ${calls(busiest)}; no limit is known`];
  const fullest = upstream.limits.toSorted((a, b) => usedOf(b) - usedOf(a))[0];
  const of = `busiest minute: ${calls(busiest)}, ${whole.format(fits)} fit`;
  return fullest === undefined ? [of] : [of, make('br'), `${limitName(fullest)}, ${owners[fullest.owner]}`];
}

function upstreamRow(name) {
  const known = rows.get(name);
  if (known !== undefined) return known;
  const cells = ['th', 'td', 'td', 'td', 'td', 'td'].map((kind) =>
    make(kind, kind === 'th' ? { scope: 'row' } : {}),
  );
  const button = make(
    'button',
    { type: 'button', 'aria-expanded': 'false', 'aria-label': `More of ${name}` },
    '▸',
  );
  cells[5].append(button);
  const more = make('tr', { class: 'more', hidden: '' }, make('td', { colspan: '6' }, make('div')));
  const row = {
    body: make('tbody', { id: name }, make('tr', { class: 'row' }, ...cells), more),
    cells,
    button,
    more,
  };
  button.addEventListener('click', () => {
    if (!opened.delete(name)) opened.add(name);
    showUpstreams(state.upstreams);
  });
  rows.set(name, row);
  return row;
}

function fillRow(upstream) {
  const { body, cells, button, more } = upstreamRow(upstream.upstream);
  const { answer, waiting, reserved, oldestMs, lastHour, recent } = upstream;
  body.firstChild.className = `row ${answer.tone}`;
  const pace = recent.calls === 0 ? 'no calls now' : `${calls(recent.calls)} a minute`;
  fill(cells[0], make('b', {}, upstream.upstream), make('small', {}, pace));
  fill(cells[1], pill(answer));
  const bars = lastHour.calls === 0 ? [] : [columns(upstream, { className: 'bars', height: 40, width: 230 })];
  fill(cells[2], ...bars, make('small', {}, ...caption(upstream)));
  fill(
    cells[3],
    ...(waiting === 0
      ? ['none wait']
      : [
          make(
            'span',
            { class: 'bad amber' },
            `${whole.format(waiting)} ${waiting === 1 ? 'waits' : 'wait'}`,
          ),
          make('small', {}, `longest ${duration(oldestMs)}`),
        ]),
    ...(reserved === 0 ? [] : [make('small', {}, `${whole.format(reserved)} will come back`)]),
  );
  const refused = lastHour.refused + lastHour.answeredInstead;
  fill(
    cells[4],
    ...(refused === 0
      ? ['none refused']
      : [
          make('span', { class: 'bad red' }, `${whole.format(refused)} refused`),
          make('small', {}, whyRefused(upstream)),
        ]),
  );
  const isOpen = opened.has(upstream.upstream);
  button.setAttribute('aria-expanded', String(isOpen));
  button.firstChild.data = isOpen ? '▾' : '▸';
  more.hidden = !isOpen;
  if (isOpen) fill(more.firstChild.firstChild, ...details(upstream));
  return body;
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
function whyRefused({ lastHour: { heldBy, answeredInstead } }) {
  const [first] = Object.entries(heldBy).sort(([, a], [, b]) => b - a);
  if (answeredInstead > 0 && (first === undefined || answeredInstead >= first[1]))
    return 'it refuses every call';
  return first === undefined ? '' : `most: ${holds[first[0]] ?? first[0]}`;
}

function details(upstream) {
  const limits = upstream.limits.map(limitBar);
  const none = make('p', {}, 'No limit is known yet.');
  const most = Math.max(0, ...upstream.minutes.map((each) => each.calls));
  const table = make(
    'table',
    {},
    make(
      'thead',
      {},
      make(
        'tr',
        {},
        ...['Traffic', 'Longest wait', 'Refused'].map((text) => make('th', { scope: 'col' }, text)),
      ),
    ),
    make(
      'tbody',
      {},
      ...upstream.rehearsed.map(({ times, limits, longestWaitMs, refusedRatio }) =>
        make(
          'tr',
          {},
          make('th', { scope: 'row' }, limits < 1 ? 'as it was, with half the limits' : timesNames[times]),
          make('td', {}, refusedRatio > 0 ? `over ${duration(upstream.maxWaitMs)}` : duration(longestWaitMs)),
          make('td', {}, refusedRatio === 0 ? '0' : share(refusedRatio)),
        ),
      ),
    ),
  );
  return [
    make('div', {}, make('h3', {}, 'Its limits now'), ...(limits.length === 0 ? [none] : limits)),
    make(
      'div',
      {},
      make('h3', {}, 'Calls a minute, last 15 minutes'),
      columns(upstream, { className: 'chart', height: 136, width: 480 }),
      make('small', {}, `highest ${whole.format(most)}; red: refused; dashed: what fits`),
    ),
    ...(upstream.rehearsed.length === 0
      ? []
      : [make('div', {}, make('h3', {}, 'If the last hour’s traffic were'), table)]),
  ];
}
const timesNames = {
  0.5: 'half of it',
  1: 'as it was',
  1.1: 'a tenth more',
  1.25: 'a quarter more',
  2: 'twice as much',
};

function showUpstreams(upstreams) {
  const table = byId('apis');
  const wanted = byId('find-api').value.toLowerCase();
  const found = upstreams.filter(({ upstream }) => upstream.toLowerCase().includes(wanted));
  const isMany = upstreams.length > maxRows;
  const own = found.filter((each) => !isMany || rank(each) < 3 || opened.has(each.upstream));
  const ordered = own.toSorted((a, b) => rank(a) - rank(b) || a.upstream.localeCompare(b.upstream));
  const bodies = ordered.map(fillRow);
  const present = [...table.querySelectorAll(':scope > tbody')];
  const isSame = present.length === bodies.length && bodies.every((body) => present.includes(body));
  const isOrdered = bodies.every((body, at) => present[at] === body);
  // Rows do not move under the pointer or the focus.
  const isBusy = table.matches(':hover') || table.contains(document.activeElement);
  if (!isSame || (!isOrdered && !isBusy)) table.replaceChildren(table.tHead, ...bodies);
  table.hidden = bodies.length === 0;
  const calm = found
    .filter((each) => !own.includes(each))
    .toSorted((a, b) => a.upstream.localeCompare(b.upstream));
  byId('calm').hidden = calm.length === 0;
  fill(
    byId('calm'),
    ...calm.map(({ upstream, answer }) =>
      make('li', {}, make('a', { href: `#${upstream}` }, upstream), pill(answer)),
    ),
  );
  byId('find-api').hidden = !isMany;
  const count = (tones) => upstreams.filter(({ answer }) => tones.includes(answer.tone)).length;
  fill(
    byId('apis-note'),
    isMany
      ? `${count(['red', 'amber', 'blue'])} need attention, ${count(['green'])} have room, ${count(['grey'])} are not known`
      : 'Columns: calls asked for. The space above them, up to the dashed line, is room.',
  );
}

// --- workspaces

const maxWorkspaces = 8;
let workspaces = [];
let showsAll = false;

function showWorkspaces() {
  const section = byId('workspaces');
  const lanes = workspaces
    .flatMap(({ workspace, upstreams }) =>
      upstreams.map((lane) => ({ workspace, answer: { tone: 'grey', text: 'Not known here' }, ...lane })),
    )
    .sort((a, b) => rank(a) - rank(b) || (a.headroom?.growth ?? 99) - (b.headroom?.growth ?? 99));
  const wanted = byId('find-workspace').value.toLowerCase();
  const found = lanes.filter(({ workspace }) => workspace.includes(wanted));
  const isMany = lanes.length > maxWorkspaces;
  const cut = showsAll || wanted !== '' ? found : found.slice(0, maxWorkspaces);
  const cell = (name, text, look = 'n') => make('td', { class: look, 'data-name': name }, text);
  const made = cut.map(({ workspace, upstream, answer, headroom, recent }) => {
    const refused =
      Object.values(recent.shed).reduce((sum, n) => sum + n, 0) + (recent.outcomes.throttled ?? 0);
    return make(
      'tr',
      {},
      make('th', { scope: 'row' }, make('code', {}, workspace)),
      make('td', {}, upstream),
      make('td', {}, pill(answer)),
      cell('Busiest minute', headroom ? calls(headroom.busiestMinute) : '–', 'n wide'),
      cell('Longest wait', duration(recent.waitMs.max)),
      cell('Refused', whole.format(refused), refused > 0 ? 'n bad red' : 'n'),
    );
  });
  const none = make('tr', {}, make('td', { colspan: '6' }, 'No workspace has called in the last hour.'));
  fill(section.querySelector('tbody'), ...(made.length === 0 ? [none] : made));
  byId('find-workspace').hidden = !isMany;
  byId('show-all').hidden = !isMany || wanted !== '';
  fill(byId('show-all'), showsAll ? 'Show fewer' : `Show all ${whole.format(lanes.length)}`);
}

// --- Sluice itself

function showItself({ limiter, configuration, process, credentialEndsInMs, replicas, version }) {
  const away = limiter.mode === 'local' || limiter.mode === 'deny';
  const redis = {
    memory: ['not used', 'one process'],
    redis: [
      limiter.redisMs === null ? 'reached' : `answers in ${limiter.redisMs.toFixed(1)}${nbsp}ms`,
      'limits are shared',
    ],
    local: [`away since ${time(limiter.modeSince)}`, 'each replica keeps to its share'],
    deny: [`away since ${time(limiter.modeSince)}`, 'calls are refused'],
  }[limiter.mode ?? 'memory'];
  const { refused, inForceSince } = configuration;
  const facts = [
    ['Replicas', away ? 'not known' : `${whole.format(replicas)} alive`, away ? 'Redis is away' : ''],
    ['Redis', ...redis],
    [
      'Configuration',
      `in force since ${time(inForceSince)}`,
      refused === null ? 'last change accepted' : `a change was refused at ${time(refused.at)}`,
    ],
    [
      'Load of this replica',
      process.sheddingShare > 0
        ? `refuses ${share(process.sheddingShare)}`
        : `${calls(process.openCalls)} open`,
      process.sheddingShare > 0 ? 'too much to do' : 'refuses nothing for load',
    ],
    [
      'Credentials',
      credentialEndsInMs === null ? 'none that end' : credentialEndsInMs <= 0 ? 'one has ended' : 'all valid',
      credentialEndsInMs === null || credentialEndsInMs <= 0
        ? ''
        : `next ends in ${duration(credentialEndsInMs)}`,
    ],
  ];
  fill(
    byId('itself'),
    ...facts.map(([name, value, note]) =>
      make('div', {}, make('dt', {}, name), make('dd', {}, make('b', {}, value), note)),
    ),
  );
  fill(byId('version'), version);
  fill(
    byId('replicas'),
    away ? 'Redis away' : replicas === 1 ? '1 replica' : `${whole.format(replicas)} replicas`,
  );
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
  showUpstreams(next.upstreams);
  showItself(next);
}

function watchAge() {
  if (lastAt === null || Date.now() - lastAt < staleMs) return;
  document.body.classList.add('stale');
  fill(byId('live'), `Not live since ${time(state.at)}`);
  const old = duration(Date.now() - lastAt);
  shown.rank = 9;
  setAnswer({
    tone: 'grey',
    sentence: 'Not known: this page lost its connection.',
    rest: '',
    heldBy: `Not known. The figures below are of ${time(state.at)}, ${old} old.`,
    wrongNow: 'Not known. Calls may well pass.',
    next: [{ text: 'Is it there?', command: 'curl http://127.0.0.1:9090/readyz' }],
  });
  for (const each of document.querySelectorAll('.pill:not([data-old])')) {
    each.dataset.old = '';
    each.lastChild.data = `Was ${each.lastChild.data[0].toLowerCase()}${each.lastChild.data.slice(1)}`;
  }
}

const events = new EventSource('/page/events');
events.addEventListener('state', ({ data }) => show(JSON.parse(data)));
events.addEventListener('workspaces', ({ data }) => {
  workspaces = JSON.parse(data);
  showWorkspaces();
});
setInterval(watchAge, 1_000);
addEventListener('hashchange', openByHash);
byId('find-api').addEventListener('input', () => showUpstreams(state.upstreams));
byId('find-workspace').addEventListener('input', showWorkspaces);
byId('show-all').addEventListener('click', () => {
  showsAll = !showsAll;
  showWorkspaces();
});
events.addEventListener('state', openByHash, { once: true });
