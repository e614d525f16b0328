/** When the gateway has ended, nothing of a credential is watched or fetched any more, whoever still asks for it. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, test } from '@jest/globals';
import { systemClock, systemRandom, type Clock } from '../../src/clock.ts';
import type { UpstreamCredential } from '../../src/config/settings.ts';
import { Credentials } from '../../src/credentials/credentials.ts';
import { upstreamSettings } from '../support/upstream-settings.ts';

const folder = mkdtempSync(join(tmpdir(), 'sluice-closed-'));
afterAll(() => rmSync(folder, { recursive: true }));

test('a credential that is asked for after the end of the gateway leaves no timer', async () => {
  const path = join(folder, 'token');
  writeFileSync(path, 'secret\n');
  const running = new Set<object>();
  const clock: Clock = {
    ...systemClock,
    after: (delayMs, run) => {
      const timer = {};
      running.add(timer);
      const cancel = systemClock.after(delayMs, run);
      return () => {
        running.delete(timer);
        cancel();
      };
    },
  };
  const never = (): never => {
    throw new Error('not a token of an endpoint');
  };
  const credentials = new Credentials({
    clock,
    random: systemRandom,
    telemetry: { credentialRenewal: () => {}, log: { bug: never, info: () => {}, warn: () => {} } as never },
    settings: { privacy: { labelKey: 'k' }, upstreams: new Map() } as never,
    send: never,
    createMap: null,
  });
  const credential: UpstreamCredential = {
    field: 'authorization',
    source: { kind: 'file', path, prefix: '' },
    quota: path,
  };
  const use = { credential, upstream: upstreamSettings('shop', ['https://shop.example']) };
  credentials.now(use);
  expect(running.size).toBeGreaterThan(0);
  await credentials.close();
  expect(running.size).toBe(0);
  credentials.now(use);
  credentials.accepted(use, 1);
  expect(running.size).toBe(0);
});
