/**
 * How far the calls of a queue left out of order, as their client saw it. Owns: the two definitions.
 *
 * Both put the calls of the queue in the order in which they arrived at the upstream, and compare the times at which
 * their client sent them.
 */
import type { LogEntry } from '../../simulators/log.ts';
import type { CallResponse } from '../../test/support/redis-fleet.ts';

/** Milliseconds, one per call of the queue, in the order of arrival upstream. */
export interface Order {
  /** Behind: so much later than the call itself was sent the latest of those that arrived before it; 0 for none. */
  readonly behindMs: readonly number[];
  /** Misplaced: between its own time of sending and that of the call which would have its place in a perfect order. */
  readonly displacedMs: readonly number[];
}

/** @param direct so many calls, the first to arrive upstream, found room at once and were in no queue. */
export function orderOf(
  responses: readonly CallResponse[],
  entries: readonly LogEntry[],
  direct: number,
): Order {
  const sentAt = new Map(responses.map(({ nonce, sentAt: at }) => [nonce, at]));
  const queue = [...entries]
    .filter(({ decision, nonce }) => decision === 'admitted' && sentAt.has(nonce))
    .sort((a, b) => a.arrivedT - b.arrivedT)
    .slice(direct)
    .map(({ nonce }) => sentAt.get(nonce) ?? 0);
  const ordered = [...queue].sort((a, b) => a - b);
  let latest = -Infinity;
  return {
    behindMs: queue.map((at) => {
      latest = Math.max(latest, at);
      return latest - at;
    }),
    displacedMs: queue.map((at, index) => Math.abs(at - (ordered[index] ?? at))),
  };
}

/** How many are more than `limitMs`, in words with their share. */
export function beyond(values: readonly number[], limitMs: number): { count: number; words: string } {
  const count = values.filter((value) => value > limitMs).length;
  const percent = ((100 * count) / Math.max(1, values.length)).toFixed(1);
  return { count, words: `${count} of ${values.length} (${percent} %)` };
}

export const orderInWords = ({ behindMs, displacedMs }: Order, limitMs: number): string =>
  `queued calls that arrived behind one sent more than ${limitMs.toFixed(0)} ms after them ${beyond(behindMs, limitMs).words}, at most ${Math.max(0, ...behindMs).toFixed(0)} ms; that far from their places ${beyond(displacedMs, limitMs).words}`;
