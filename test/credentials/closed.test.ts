import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from '@jest/globals';
import { systemRandom } from '../../src/clock.ts';
import { Credentials } from '../../src/credentials/credentials.ts';
import { manualClock } from '../support/manual-clock.ts';
import { upstreamSettings } from '../support/upstream-settings.ts';

test('a credential that is asked for after the end of the gateway leaves no timer', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'sluice-closed-'));
  const path = join(folder, 'token');
  writeFileSync(path, 'secret\n');
  const clock = manualClock();
  const never = (): never => {
    throw new Error('not a token of an endpoint');
  };
  const credentials = new Credentials({
    clock,
    random: systemRandom,
    telemetry: { count: () => {}, log: { bug: never, info: () => {}, warn: () => {} } as never },
    settings: { privacy: { labelKey: 'k' }, upstreams: new Map() } as never,
    send: never,
    createMap: null,
  });
  const source = { kind: 'file', path, prefix: '' } as const;
  const credential = { field: 'authorization', source, quota: path };
  const use = { credential, upstream: upstreamSettings('shop', ['https://shop.example']) };
  credentials.now(use);
  expect(clock.waiting).toBeGreaterThan(0);
  await credentials.close();
  credentials.now(use);
  expect(clock.waiting).toBe(0);
  rmSync(folder, { recursive: true });
});
