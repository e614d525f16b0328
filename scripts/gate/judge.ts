/**
 * What every row of the gate must show, whatever the fault: nothing lost, nothing sent twice, the ceiling held in every window, one
 * serialized call in flight, order kept. No judgement is about how fast anything was.
 */
import type { Ended } from './clients.ts';
import type { Executed } from './upstream.ts';

export interface Expected {
  /** Requests of the workspace to `open` that any minute may have. */
  readonly ceiling: number;
  /** Whose order on the serialized lane is promised, each group apart. */
  readonly orderOf: (calls: readonly Ended[]) => readonly (readonly Ended[])[];
  /** The replica that was killed. */
  readonly killed: number | null;
  /** The replica that was stopped, and went on. */
  readonly stopped: number | null;
}

export interface Observed {
  readonly calls: readonly Ended[];
  readonly executed: readonly Executed[];
  /** Overlaps of serialized calls that the gateways admit to: their counter of lost leases. */
  readonly overlapsCounted: number;
  /** Calls that the gateways admit to have made again after a claim was lost. */
  readonly madeAgainCounted: number;
  /** The longest time for which the machine, this process or a replica was kept from running by chance, milliseconds. */
  readonly stalledMs: number;
  /** The same, with the replica that the row itself stopped. */
  readonly standstillMs: number;
}

/** Calls sent closer together than this may cross on the wire, milliseconds. */
const apartMs = 80;
const windowMs = 60_000;

/** What was broken, in words; empty when everything holds. */
export function violations(observed: Observed, expected: Expected): readonly string[] {
  return [
    ...lost(observed, expected),
    ...sentTwice(observed, expected),
    ...overCeiling(observed, expected),
    ...overlaps(observed),
    ...outOfOrder(observed, expected),
  ];
}

function lost({ calls, executed }: Observed, { killed, stopped }: Expected): string[] {
  const isExcused = ({ fate, replica, idempotencyKey }: Ended): boolean => {
    switch (fate.kind) {
      case 'answered':
      case 'left':
        return true;
      case 'refused':
        return (
          // The wait of a call was over when its replica went on.
          (replica === stopped && fate.code === 'wait_expired') ||
          (['wait_too_long', 'wait_expired'].includes(fate.code) && fate.heldBy === 'ceiling_minute')
        );
      case 'broken':
        // Nobody can know whether a call of a killed replica was made, so only one with a key is made again.
        return replica === killed && idempotencyKey === null;
      case 'unanswered':
        return false;
    }
  };
  const stamps = new Set(executed.map(({ nonce, serial }) => `${nonce}#${serial}`));
  // The twin of a pair gets the response that was made for its equal.
  const isForeign = ({ fate, nonce, idempotencyKey }: Ended): boolean =>
    fate.kind === 'answered' &&
    (!stamps.has(fate.stamp) || (idempotencyKey === null && !fate.stamp.startsWith(`${nonce}#`)));
  return [
    ...calls.filter((call) => !isExcused(call)).map(({ nonce, fate }) => `lost: ${nonce} ${inWords(fate)}`),
    ...calls.filter(isForeign).map(({ nonce, fate }) => `not its own response: ${nonce} ${inWords(fate)}`),
  ];
}

export function inWords(fate: Ended['fate']): string {
  switch (fate.kind) {
    case 'answered':
      return `answered by ${fate.stamp}`;
    case 'refused':
      return `refused: ${fate.code} ${fate.heldBy}`.trim();
    case 'broken':
      return `broken: ${fate.words}`;
    case 'left':
    case 'unanswered':
      return fate.kind;
  }
}

/** Equal calls, those with one idempotency key, are one call. */
function sentTwice({ calls, executed, madeAgainCounted }: Observed, { killed }: Expected): string[] {
  const names = new Map(calls.map(({ nonce, idempotencyKey }) => [nonce, idempotencyKey ?? nonce]));
  const times = new Map<string, number>();
  for (const { nonce } of executed) {
    const name = names.get(nonce) ?? nonce;
    times.set(name, (times.get(name) ?? 0) + 1);
  }
  const madeAgain = calls.filter(({ wasMadeAgain }) => wasMadeAgain && killed !== null);
  const again = new Set(madeAgain.map(({ idempotencyKey, nonce }) => idempotencyKey ?? nonce));
  const twice = [...times].filter(([, count]) => count > 1);
  const excused = twice.filter(([name, count]) => again.has(name) && count === 2);
  return [
    ...twice.filter((one) => !excused.includes(one)).map(([name, count]) => `sent ${count} times: ${name}`),
    ...(excused.length > madeAgainCounted
      ? [`${excused.length} calls were made again after a kill, but ${madeAgainCounted} are counted`]
      : []),
  ];
}

/** A call arrives after its slot was taken, by the longest standstill at most: so much shorter is the window that must hold. */
function overCeiling({ executed, standstillMs }: Observed, { ceiling }: Expected): string[] {
  const times = executed
    .filter(({ lane }) => lane === 'open')
    .map(({ arrivedAt }) => arrivedAt)
    .toSorted((a, b) => a - b);
  const mustHoldMs = windowMs - 100 - standstillMs;
  let max = 0;
  let from = 0;
  for (const [to, at] of times.entries()) {
    while (at - (times[from] ?? at) >= mustHoldMs) from += 1;
    max = Math.max(max, to - from + 1);
  }
  return max > ceiling
    ? [`${max} calls in ${(mustHoldMs / 1_000).toFixed(1)} s, over the ceiling of ${ceiling}`]
    : [];
}

function overlaps({ executed, overlapsCounted }: Observed): string[] {
  const over = executed.filter(({ lane, inFlight }) => lane === 'serial' && inFlight > 1);
  return over.length > overlapsCounted
    ? [
        `${over.length} serialized calls sent beside one in flight, ${overlapsCounted} counted: ${over.map(({ nonce }) => nonce).join(' ')}`,
      ]
    : [];
}

function outOfOrder({ calls, executed, stalledMs }: Observed, { orderOf }: Expected): string[] {
  const arrivals = new Map<string, number>();
  for (const { nonce, arrivedAt } of executed) if (!arrivals.has(nonce)) arrivals.set(nonce, arrivedAt);
  const spacingMs = apartMs + 2 * stalledMs;
  return orderOf(calls.filter(({ lane }) => lane === 'serial')).flatMap((group) => {
    const sent = group
      .filter(({ nonce }) => arrivals.has(nonce))
      .toSorted((a, b) => (arrivals.get(a.nonce) ?? 0) - (arrivals.get(b.nonce) ?? 0));
    let latest: Ended | null = null;
    const found: string[] = [];
    for (const call of sent) {
      if (latest !== null && call.sentAt + spacingMs < latest.sentAt)
        found.push(
          `out of order: ${call.nonce} left behind ${latest.nonce}, which was sent ${(latest.sentAt - call.sentAt).toFixed(0)} ms later (a stall explains ${spacingMs.toFixed(0)})`,
        );
      if (latest === null || call.sentAt > latest.sentAt) latest = call;
    }
    return found;
  });
}
