/**
 * Which windows explain when an upstream took calls and when it refused them. Pure.
 *
 * A window explains a refusal when it was full then, and its limit is the most that it ever took. The fewest windows that explain
 * every refusal are proposed; of lengths that do it equally well a usual one, else a long one.
 */
export interface Observation {
  /** Milliseconds. */
  readonly at: number;
  readonly isRefused: boolean;
}

export interface FoundWindow {
  readonly requests: number;
  readonly seconds: number;
  readonly kind: 'rolling' | 'fixed' | 'leaky';
}

const usualSeconds = [
  1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 30, 45, 60, 90, 120, 180, 300, 600, 900, 1_800, 3_600,
];
/** Lengths that are tried are this part apart. */
const step = 1.004;
const maxSeconds = 86_400;
/**
 * The shortest window that a configuration may state, seconds. It is proposed for shorter ones, too: that costs time, but no
 * refusal.
 */
const minSeconds = 1;
/** What a call takes on its way, milliseconds: so much earlier or later a window may seem to have room. */
const grainMs = 3;

interface Candidate extends FoundWindow {
  /** Places of the refusals that the window explains. */
  readonly explained: readonly number[];
}

/** Windows, shortest first; empty where nothing was refused, or nothing explains the refusals. */
export function findWindows(observations: readonly Observation[]): readonly FoundWindow[] {
  const taken = observations.filter(({ isRefused }) => !isRefused).map(({ at }) => at);
  const refused = observations.filter(({ isRefused }) => isRefused).map(({ at }) => at);
  if (refused.length === 0 || taken.length === 0) return [];
  const all = (1n << BigInt(refused.length)) - 1n;
  const lasted = ((observations.at(-1)?.at ?? 0) - (observations[0]?.at ?? 0)) / 1000;
  const candidates = (kind: 'rolling' | 'fixed'): Candidate[] =>
    lengthsUpTo(Math.min(maxSeconds, Math.max(2, lasted)), kind).map((seconds) =>
      candidateOf({ taken, refused, seconds, kind }),
    );
  // A few windows of the clock look like rolling ones that are slightly shorter: a usual length distinguishes them.
  const rolling = findRolling(observations);
  if (rolling !== null && isUsual(rolling)) return [rolling];
  const fixed = preferred(candidates('fixed').filter(({ explained }) => explained.length === refused.length));
  if (fixed !== null && (rolling === null || isUsual(fixed))) return [bare(fixed)];
  if (rolling !== null) return [rolling];
  const leaky = findLeaky(observations);
  if (leaky !== null) return [leaky];
  for (const kind of ['rolling', 'fixed'] as const) {
    const pair = pairOf(candidates(kind), all);
    if (pair !== null) return pair;
  }
  return [];
}

const isUsual = ({ seconds }: FoundWindow): boolean => usualSeconds.includes(seconds);

const bare = ({ requests, seconds, kind }: FoundWindow): FoundWindow => ({ requests, seconds, kind });

/** Windows of the clock are whole seconds long: of others one would have to know the first to the millisecond. */
function lengthsUpTo(longest: number, kind: 'rolling' | 'fixed'): number[] {
  const lengths = usualSeconds.filter((seconds) => seconds <= longest);
  if (kind === 'fixed') {
    for (let seconds = 1; seconds <= Math.min(longest, 3_600); seconds++) lengths.push(seconds);
  } else for (let seconds = 1; seconds <= longest; seconds *= step) lengths.push(seconds);
  return [...new Set(lengths)].toSorted((a, b) => a - b);
}

interface Asked {
  readonly taken: readonly number[];
  readonly refused: readonly number[];
  readonly seconds: number;
  readonly kind: 'rolling' | 'fixed';
}

function candidateOf({ taken, refused, seconds, kind }: Asked): Candidate {
  const windowMs = seconds * 1000;
  const startOf = (at: number): number =>
    kind === 'rolling' ? at - windowMs + grainMs : Math.floor(at / windowMs) * windowMs;
  // How many were taken within the window of this time, before it.
  let first = 0;
  let requests = 0;
  taken.forEach((at, index) => {
    while ((taken[first] ?? at) < startOf(at)) first += 1;
    requests = Math.max(requests, index - first + 1);
  });
  const explained: number[] = [];
  let from = 0;
  let to = 0;
  refused.forEach((at, index) => {
    while (to < taken.length && (taken[to] ?? 0) <= at) to += 1;
    while (from < to && (taken[from] ?? 0) < startOf(at) - 2 * grainMs) from += 1;
    if (to - from >= requests) explained.push(index);
  });
  return { requests, seconds, kind, explained };
}

/** The usual length among neighbouring candidates, else the middle one, of the shortest stretch: a longer window explains less. */
function preferred<Kind extends Candidate>(candidates: readonly Kind[]): Kind | null {
  const [first] = candidates;
  if (first === undefined) return null;
  const near = candidates.filter(
    ({ requests, seconds }) => requests === first.requests && seconds < first.seconds * 1.25,
  );
  const usual = near.find(isUsual);
  return usual ?? near[Math.floor(near.length / 2)] ?? null;
}

function pairOf(candidates: readonly Candidate[], all: bigint): readonly FoundWindow[] | null {
  const useful = candidates
    .filter(({ explained }) => explained.length > 0)
    .map((one) => ({
      ...one,
      explains: one.explained.reduce((bits, index) => bits | (1n << BigInt(index)), 0n),
    }));
  for (const short of useful) {
    const rest = all & ~short.explains;
    const longer = useful.filter(
      ({ seconds, explains }) => seconds > short.seconds * 1.5 && (rest & ~explains) === 0n,
    );
    const long = preferred(longer);
    if (long === null) continue;
    const shorter = useful.filter(
      ({ seconds, explains }) => seconds < long.seconds / 1.5 && (all & ~long.explains & ~explains) === 0n,
    );
    return [bare(preferred(shorter) ?? short), bare(long)];
  }
  return null;
}

/** Lengths between which the truth lies, or rates. */
interface Between {
  readonly requests: number;
  readonly lowest: number;
  readonly highest: number;
}

/**
 * Tries each possible limit: with it, the calls that were taken bound the window's length from above, and the refusals bound it from
 * below. The limit with the widest range between both bounds is chosen.
 */
function findRolling(observations: readonly Observation[]): FoundWindow | null {
  const most = observations.filter(({ isRefused }) => !isRefused).length;
  const fitting: Between[] = [];
  for (let requests = 1; requests < most; requests++) {
    const taken: number[] = [];
    let lowest = 0;
    let highest = maxSeconds * 1000;
    for (const { at, isRefused } of observations) {
      const leaving = taken[taken.length - requests];
      if (isRefused) lowest = Math.max(lowest, leaving === undefined ? Infinity : at - leaving);
      else {
        if (leaving !== undefined) highest = Math.min(highest, at - leaving);
        taken.push(at);
      }
      if (lowest > highest + grainMs) break;
    }
    if (lowest <= highest + grainMs && highest < maxSeconds * 1000)
      fitting.push({ requests, lowest, highest });
  }
  const best = fitting.toSorted((a, b) => b.highest - b.lowest - (a.highest - a.lowest))[0];
  if (best === undefined) return null;
  return {
    requests: best.requests,
    seconds: secondsIn(best.lowest / 1000, best.highest / 1000),
    kind: 'rolling',
  };
}

/**
 * A usual length between these, else the longest whole one, else the longest: a length that is a little short costs a refusal in
 * every window, and one that is a little long costs only that time.
 */
function secondsIn(lowest: number, highest: number): number {
  const slack = grainMs / 1000;
  const fits = (seconds: number): boolean => seconds >= lowest - slack && seconds <= highest + slack;
  const usual = usualSeconds.find(fits);
  if (usual !== undefined) return usual;
  const whole = Math.floor(highest + slack);
  return Math.max(minSeconds, fits(whole) ? whole : Math.ceil(highest * 1000) / 1000);
}

/**
 * Tries each possible limit of a level that drains evenly: with it, the calls that were taken bound the rate from below, and the
 * refusals bound it from above.
 */
function findLeaky(observations: readonly Observation[]): FoundWindow | null {
  const burst = observations.findIndex(({ isRefused }) => isRefused);
  const fitting: Between[] = [];
  for (let requests = 1; requests <= burst; requests++) {
    const lowest = rateWhere((rate) => fitsLeaky(observations, { requests, rate }, false));
    const highest = rateWhere((rate) => !fitsLeaky(observations, { requests, rate }, true));
    if (lowest <= highest * 1.001 && lowest > 0) fitting.push({ requests, lowest, highest });
  }
  const best = fitting.toSorted((a, b) => b.highest / b.lowest - a.highest / a.lowest)[0];
  if (best === undefined) return null;
  const { requests, lowest, highest } = best;
  const seconds = secondsIn(requests / highest / 1000, requests / lowest / 1000);
  return seconds >= 0.5 ? { requests, seconds, kind: 'leaky' } : null;
}

/** The least rate, calls per millisecond, at which something begins to hold. */
function rateWhere(holds: (rate: number) => boolean): number {
  let [low, high] = [1e-9, 10];
  for (let step = 0; step < 50; step++) {
    const middle = Math.sqrt(low * high);
    if (holds(middle)) high = middle;
    else low = middle;
  }
  return high;
}

/** Does the level leave room for every call that was taken, or (`refusals`) none for every one that was refused? */
function fitsLeaky(
  observations: readonly Observation[],
  { requests, rate }: { readonly requests: number; readonly rate: number },
  refusals: boolean,
): boolean {
  let level = 0;
  let before = observations[0]?.at ?? 0;
  return observations.every(({ at, isRefused }) => {
    level = Math.max(0, level - (at - before) * rate);
    before = at;
    const over = level + 1 - requests;
    if (!isRefused) level += 1;
    return isRefused === refusals ? (refusals ? over > 0 : over <= 1e-6) : true;
  });
}
