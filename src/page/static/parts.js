// Small pieces of the page: how figures are written, how elements are made. Text only ever goes in as text.

/** @param {string} name @param {Record<string, string>} attributes @param {...(Node | string)} children */
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

export const whole = new Intl.NumberFormat('en', { maximumFractionDigits: 0 });
export const percent = (ratio) => `${Math.round(ratio * 100)} %`;

/** 0 → "0 s", 850 → "0.9 s", 65000 → "1 min 5 s". */
export function duration(ms) {
  if (ms >= 60_000) {
    const minutes = Math.floor(ms / 60_000);
    const rest = Math.round((ms % 60_000) / 1000);
    return rest === 0 ? `${minutes} min` : `${minutes} min ${rest} s`;
  }
  if (ms === 0) return '0 s';
  if (ms < 100) return `${Math.max(1, Math.round(ms))} ms`;
  return ms < 10_000 ? `${(ms / 1000).toFixed(1)} s` : `${Math.round(ms / 1000)} s`;
}

const dimensionNames = {
  requests: 'Requests',
  tokens: 'Tokens',
  requests_day: 'Requests a day',
  tokens_day: 'Tokens a day',
  input_tokens: 'Input tokens',
  output_tokens: 'Output tokens',
  cost: 'Query cost',
  images: 'Images',
};

const refusalNames = {
  queue_full: 'Line full',
  wait_too_long: 'Wait would be too long',
  wait_expired: 'Wait ran out',
  day_quota_exhausted: 'Day quota used up',
  draining: 'Replica shutting down',
  limiter_unavailable: 'Limiter away',
  overloaded: 'Sluice has too much to do',
};

const holdNames = {
  ceiling_minute: 'Own ceiling, minute',
  ceiling_day: 'Own ceiling, day',
  closed: 'Upstream named a time',
  requests: 'Upstream quota: requests',
  tokens: 'Upstream quota: tokens',
  cost: 'Upstream quota: cost',
  upstream_day: 'Upstream quota of the day',
  serialized: 'One call at a time',
  queue: 'Line full',
};

export const holdName = (name) => holdNames[name] ?? name;
export const dimensionName = (name) => dimensionNames[name] ?? name;
export const refusalName = (code) => refusalNames[code] ?? code;

/** Replaces the children only when they changed, so that a reader's place and focus survive. */
export function replace(parent, children) {
  const before = parent.innerHTML;
  const holder = element('div', {}, ...children);
  if (holder.innerHTML !== before) parent.replaceChildren(...holder.childNodes);
}

export function setText(id, text, bad = false) {
  const target = document.getElementById(id);
  if (target.textContent !== text) target.textContent = text;
  target.classList.toggle('bad', bad);
}

/** By how much a workspace's calls may grow before they wait. */
export function growthText(growth) {
  if (growth === 0) return 'not at all';
  return growth >= 10 ? '10 × or more' : `to ${growth.toFixed(1)} ×`;
}

/** What twice as many calls of a workspace would meet. */
export function doubledText({ longestWaitMs, refusedRatio }) {
  if (refusedRatio > 0) return `${percent(Math.max(0.01, refusedRatio))} refused`;
  return longestWaitMs === 0 ? 'no waits' : `waits of ${duration(longestWaitMs)}`;
}

/** How Redis answers, in the words of the page's header. */
export function redisText({ mode, redis }) {
  if (mode === 'memory') return 'not used';
  if (mode !== 'redis') return `no reply, ${whole.format(redis?.errorsLastMinute ?? 0)} errors / min`;
  if (redis === null) return 'no command yet';
  const errors = redis.errorsLastMinute > 0 ? `, ${whole.format(redis.errorsLastMinute)} errors / min` : '';
  return `${redis.commandMs.toFixed(1)} ms${errors}`;
}
