/**
 * What every row of the gate must show, whatever the fault: nothing lost, nothing sent twice, the ceiling held in every window, one
 * serialized call in flight, order kept. No judgement is about how fast anything was.
 */
import { inWords, type Ended } from '../fleet/calls.ts';
import type { Gateway } from '../fleet/gateways.ts';
import type { Executed } from '../fleet/upstream.ts';

export interface Observed {
  readonly calls: readonly Ended[];
  readonly executed: readonly Executed[];
  readonly killed: Gateway | null;
  /** The replica that was stopped, and went on. */
  readonly stopped: Gateway | null;
  /** Requests of the workspace to `open` that any minute may have. */
  readonly ceiling: number;
  /** Overlaps of serialized calls that the gateways admit to: their counter of lost leases. */
  readonly overlapsCounted: number;
  /** Calls that the gateways admit to have made again after a claim was lost. */
  readonly madeAgainCounted: number;
  /** The longest time for which the machine, this process or a replica was kept from running by chance, milliseconds. */
  readonly stalledMs: number;
  /** The same, with the replica that the row itself stopped. */
  readonly standstillMs: number;
  /** Calls whose order is promised, each group apart. */
  readonly ordered: readonly Ended[];
  readonly groupOf: (call: Ended) => unknown;
}

/** Calls sent closer together than this may cross on the wire, milliseconds. */
const apartMs = 80;
const windowMs = 60_000;

/** What was broken, in words; empty when everything holds. */
export const violations = (observed: Observed): readonly string[] =>
  [lost, foreign, sentTwice, overCeiling, overlaps, outOfOrder].flatMap((judge) => judge(observed));

function lost({ calls, killed, stopped }: Observed): string[] {
  const isExcused = ({ fate, at, idempotencyKey }: Ended): boolean => {
    if (fate.kind !== 'ended') return fate.kind !== 'unanswered';
    // Nobody can know whether a call of a killed replica was made, so only one with a key is made again.
    if (fate.by.kind !== 'refused') return at === killed && idempotencyKey === undefined;
    const { code, heldBy } = fate.by;
    // The wait of a call was over when its replica went on.
    if (at === stopped && code === 'wait_expired') return true;
    return ['wait_too_long', 'wait_expired'].includes(code) && heldBy === 'ceiling_minute';
  };
  return calls.filter((call) => !isExcused(call)).map(({ nonce, fate }) => `lost: ${nonce} ${inWords(fate)}`);
}

/** The twin of a pair gets the response that was made for its equal. */
function foreign({ calls, executed }: Observed): string[] {
  const stamps = new Set(executed.map(({ nonce, serial }) => `${nonce}#${serial}`));
  const isForeign = ({ fate, nonce, idempotencyKey }: Ended): boolean =>
    fate.kind === 'answered' &&
    (!stamps.has(fate.stamp) || (idempotencyKey === undefined && !fate.stamp.startsWith(`${nonce}#`)));
  return calls.filter(isForeign).map(({ nonce, fate }) => `not its own response: ${nonce} ${inWords(fate)}`);
}

/** Equal calls, those with one idempotency key, are one call. */
function sentTwice({ calls, executed, madeAgainCounted, killed }: Observed): string[] {
  const names = new Map(calls.map(({ nonce, idempotencyKey }) => [nonce, idempotencyKey ?? nonce]));
  const nameOf = (nonce: string): string => names.get(nonce) ?? nonce;
  const wasMadeAgain = ({ attempts }: Ended): boolean =>
    attempts.slice(0, -1).some(({ ended }) => ended.kind === 'broken' && ended.words !== 'ECONNREFUSED');
  const again = new Set(calls.filter(wasMadeAgain).map(({ nonce }) => nameOf(nonce)));
  const twice = [...Map.groupBy(executed, ({ nonce }) => nameOf(nonce))].filter(
    ([, { length }]) => length > 1,
  );
  const excused = twice.filter(([name, { length }]) => killed !== null && again.has(name) && length === 2);
  return [
    ...twice
      .filter((one) => !excused.includes(one))
      .map(([name, { length }]) => `sent ${length} times: ${name}`),
    ...(excused.length > madeAgainCounted
      ? [`${excused.length} calls were made again after a kill, but ${madeAgainCounted} are counted`]
      : []),
  ];
}

/** A call arrives after its slot was taken, by the longest standstill at most: so much shorter is the window that must hold. */
function overCeiling({ executed, standstillMs, ceiling }: Observed): string[] {
  const times = executed
    .filter(({ lane }) => lane === 'open')
    .map(({ arrivedAt }) => arrivedAt)
    .toSorted((a, b) => a - b);
  const mustHoldMs = windowMs - 100 - standstillMs;
  const counts = times.map((from, n) => times.slice(n).filter((at) => at - from < mustHoldMs).length);
  const max = Math.max(0, ...counts);
  return max > ceiling
    ? [`${max} calls in ${(mustHoldMs / 1_000).toFixed(1)} s, over the ceiling of ${ceiling}`]
    : [];
}

function overlaps({ executed, overlapsCounted }: Observed): string[] {
  const over = executed.filter(({ lane, inFlight }) => lane === 'serial' && inFlight > 1);
  const names = over.map(({ nonce }) => nonce).join(' ');
  const words = `${over.length} serialized calls sent beside one in flight, ${overlapsCounted} counted: ${names}`;
  return over.length > overlapsCounted ? [words] : [];
}

function outOfOrder({ executed, stalledMs, ordered, groupOf }: Observed): string[] {
  const arrivals = new Map(executed.toReversed().map(({ nonce, arrivedAt }) => [nonce, arrivedAt]));
  const arrivedAt = ({ nonce }: Ended): number => arrivals.get(nonce) ?? Infinity;
  const spacingMs = apartMs + 2 * stalledMs;
  return [...Map.groupBy(ordered, groupOf).values()].flatMap((group) => {
    const sent = group.filter(({ nonce }) => arrivals.has(nonce));
    let [latest] = sent;
    return sent
      .toSorted((a, b) => arrivedAt(a) - arrivedAt(b))
      .flatMap((call, n) => {
        if (n === 0 || latest === undefined || call.sentAt > latest.sentAt) {
          latest = call;
          return [];
        }
        const laterMs = latest.sentAt - call.sentAt;
        if (laterMs <= spacingMs) return [];
        return [
          `out of order: ${call.nonce} left behind ${latest.nonce}, which was sent ${laterMs.toFixed(0)} ms later (a stall explains ${spacingMs.toFixed(0)})`,
        ];
      });
  });
}
