/** Callers of a workspace under its ceiling. */
import { setImmediate as turn } from 'node:timers/promises';
import { expect, test } from '@jest/globals';
import type { Ticket } from '../../src/admission/ticket.ts';
import { callerKey } from '../../src/ids.ts';
import { callOf, embeddedQueue, type CallOptions } from '../support/admission-queue.ts';
import { manualClock } from '../support/manual-clock.ts';

test('a call that names no caller is not refused for a slot that others are expected to take before its turn', async () => {
  const clock = manualClock();
  const { queue, limiter } = embeddedQueue({ clock });
  const enter = (name: string, options: CallOptions, caller?: string): Promise<Ticket> => {
    const [asked, signal] = callOf(clock, name, { perMinute: 1, ...options });
    const named = caller === undefined ? {} : { caller: callerKey(caller) };
    return queue.enter({ ...asked, admission: { ...asked.admission, ...named } }, signal);
  };
  const first = await (await enter('first', { maxWaitMs: 0 })).whenGranted();
  first.settle({ kind: 'succeeded', spent: null }, null);
  const earlier = await enter('earlier', { maxWaitMs: 200_000 }, 'k1');
  const waiting = earlier.whenGranted();
  await turn();
  // Both callers have the same turn: the one without a name goes first, although its call came later.
  const unnamed = await enter('unnamed', { maxWaitMs: 65_000 });
  const granted = unnamed.whenGranted();
  await turn();
  clock.advance(60_200);
  await granted;
  unnamed.leave();
  earlier.leave();
  await expect(waiting).rejects.toThrow();
  await limiter.close();
});
