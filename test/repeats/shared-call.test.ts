/** A call that several clients share, at the end of its process. */
import { expect, test } from '@jest/globals';
import { CallAbort } from '../../src/call-abort.ts';
import { KeptBody } from '../../src/repeats/kept-responses.ts';
import type { Audience } from '../../src/call.ts';
import type { RepeatKey } from '../../src/repeats/repeat.ts';
import { SharedCall } from '../../src/repeats/shared-call.ts';
import { manualClock } from '../support/manual-clock.ts';

const key: RepeatKey = {
  marker: 'first',
  name: 'name',
  fingerprint: 'fingerprint',
  owner: 'owner',
  upstream: 'up',
  secret: { workspaceId: 'acme', key: 'key' },
};

/** A call that waits until it is aborted. */
function waiting(): SharedCall {
  const call = new SharedCall({
    clock: manualClock(),
    key,
    kept: new KeptBody(0, { take: () => false, give() {} }),
    maxKeptBytes: 0,
    onLeft() {},
    onAbandoned() {},
    withdraw: () => Promise.resolve(true),
    onEnded() {},
  });
  call.begin(
    (audience: Audience) =>
      new Promise((_resolve, reject) => {
        audience.addEventListener('abort', () => reject(audience.reason as Error));
      }),
  );
  return call;
}

test('a client that still waits when the process ends is refused as draining, with advice to try elsewhere', async () => {
  const call = waiting();
  const waits = call.join({ clientGone: new CallAbort(), stillValid: () => true });
  call.abort();
  await expect(waits).rejects.toMatchObject({ code: 'draining', details: { retryInMs: 1_000 } });
});

test('a client that leaves gets the reason of its own leaving', async () => {
  const leaving = new CallAbort();
  const waits = waiting().join({ clientGone: leaving, stillValid: () => true });
  leaving.abort();
  await expect(waits).rejects.toBe(leaving.reason);
});
