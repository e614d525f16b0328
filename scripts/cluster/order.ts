/** How far behind others the calls of a queue arrived, as their client saw it. */
import type { LogEntry } from '../../simulators/log.ts';
import type { CallResponse } from '../../test/support/redis-fleet.ts';

/**
 * For each call of the queue, in the order of arrival upstream: by how much the latest call that had arrived before it was sent
 * after it; 0 for none. Milliseconds.
 *
 * @param direct so many calls, the first to arrive upstream, found room at once and were in no queue.
 */
export function behindMsOf(
  responses: readonly CallResponse[],
  entries: readonly LogEntry[],
  direct: number,
): readonly number[] {
  const sentAt = new Map(responses.map(({ nonce, sentAt: at }) => [nonce, at]));
  const queue = [...entries]
    .filter(({ decision, nonce }) => decision === 'admitted' && sentAt.has(nonce))
    .sort((a, b) => a.arrivedT - b.arrivedT)
    .slice(direct)
    .map(({ nonce }) => sentAt.get(nonce) ?? 0);
  let latest = -Infinity;
  return queue.map((at) => {
    latest = Math.max(latest, at);
    return latest - at;
  });
}
