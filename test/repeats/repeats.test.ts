/** Which call a repeat belongs to, in a process that is kept from running. */
import { expect, test } from '@jest/globals';
import { CallAbort } from '../../src/call-abort.ts';
import { systemRandom } from '../../src/clock.ts';
import { Repeats, type IncomingCall, type MakeCall } from '../../src/repeats/repeats.ts';
import type { RepeatMarker } from '../../src/repeats/repeat.ts';
import { manualClock } from '../support/manual-clock.ts';
import { noTelemetry } from '../support/no-telemetry.ts';

const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

const incoming = (marker: RepeatMarker, clientGone: CallAbort): IncomingCall => ({
  key: {
    marker,
    name: '',
    fingerprint: 'fingerprint',
    owner: 'owner',
    upstream: 'up',
    secret: { workspaceId: 'acme', key: 'key' },
  },
  arrivedAt: 0,
  clientGone,
  stillValid: () => true,
  fieldsFor: () => [],
  retain: () => () => {},
});

test('a repeat that a stalled process sees before the leaving of its client joins the call that was left', async () => {
  const clock = manualClock();
  const settings = { keepSeconds: 60, maxBytes: 1_000, maxWorkspaceBytes: 10_000, maxTotalBytes: 10_000 };
  const joined: string[] = [];
  const telemetry = { ...noTelemetry, joined: (upstream: string) => void joined.push(upstream) };
  const repeats = new Repeats({
    clock,
    random: systemRandom,
    telemetry,
    settings: () => settings,
    createMap: null,
  });
  const leaves = new CallAbort();
  let made = 0;
  const make: MakeCall = (audience) => {
    made += 1;
    queueMicrotask(() => audience.moved?.('upstream'));
    return new Promise((_, reject) =>
      audience.addEventListener('abort', () => reject(audience.reason as Error)),
    );
  };
  const first = repeats.run(incoming('first', leaves), make);
  await turn();
  const again = repeats.run(incoming('again', new CallAbort()), make);
  await turn();
  clock.advance(1_000);
  await turn();
  leaves.abort();
  await expect(first).rejects.toBe(leaves.reason);
  await turn();
  clock.advance(50);
  await turn();
  expect({ made, joined }).toEqual({ made: 1, joined: ['up'] });
  repeats.close();
  await expect(again).rejects.toMatchObject({ code: 'draining' });
});
