/** 10,000 workspaces cost a process no more than the cap allows: neither bytes of a scrape nor memory. */
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { expect, test } from '@jest/globals';
import { embeddedActivity, Recorder } from '../../src/activity/recorder.ts';
import { workspaceLabel } from '../../src/identity.ts';
import { RunningTelemetry } from '../../src/telemetry/telemetry.ts';
import { callAt, fixedRandom, lm, settableClock, shop } from '../telemetry/drive.ts';

setFlagsFromString('--expose-gc');
const collect = runInNewContext('gc') as () => void;

/** Bytes in use once nothing is left to collect. */
function heap(): number {
  for (let n = 0; n < 3; n++) collect();
  return process.memoryUsage().heapUsed + process.memoryUsage().arrayBuffers;
}

test('10,000 further workspaces after the first 10,000 use no more memory', async () => {
  const clock = settableClock();
  const recorder = new Recorder({
    clock,
    labelOf: (workspaceId) => workspaceLabel('key', workspaceId),
    shared: embeddedActivity,
    live: () => telemetry.lanes(),
  });
  const upstreams = new Map([lm, shop].map((each) => [each.name, each]));
  const telemetry = new RunningTelemetry(
    { privacy: { labelKey: 'key' }, log: { level: 'info', sampleSuccesses: 1 }, upstreams },
    {
      clock,
      random: fixedRandom(0.5),
      destination: { write: () => {} },
      activity: recorder,
    },
  );
  const lot = async (name: string): Promise<{ bytes: number; scrape: number }> => {
    for (let n = 0; n < 10_000; n++) {
      const call = telemetry.begin(callAt(clock, { id: `${name}-${n}` }));
      call.workspaceId = `${name}-${n}`;
      call.routed(n % 2 === 0 ? lm : shop);
      call.admitting();
      call.queued();
      clock.advance(5);
      call.sent();
      call.answered(200, null);
      call.ended({ outcome: 'ok', status: 200, code: null });
    }
    await recorder.publish();
    const { body } = await telemetry.metrics();
    return { bytes: heap(), scrape: body.split('\n').length };
  };
  for (const name of ['warm', 'warmer', 'full']) await lot(name);
  const first = await lot('first');
  const second = await lot('second');
  const third = await lot('third');
  expect(second.scrape).toBe(first.scrape);
  expect([...telemetry.lanes()]).toEqual([]);
  // A byte per workspace would be nothing; a kept name or lane would be a hundred or a thousand times that, with every lot:
  // what the engine compiles or clears meanwhile may fall into one of them.
  const grown = Math.min(second.bytes - first.bytes, third.bytes - second.bytes);
  expect(grown).toBeLessThan(10_000 * 30);
});
