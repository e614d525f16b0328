/**
 * From a recording to a running gateway, by the commands a person types: what `sluice learn` prints is pasted into a configuration
 * as it is, and the upstream that was recorded refuses nothing of a burst of twice its limit.
 */
import { execFile } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, expect, test } from '@jest/globals';
import { createKey } from '../../src/cli/keys.ts';
import { DialectSimulator, type SpokenParts } from '../../simulators/dialect.ts';
import { serve } from '../journey/process.ts';
import { tally } from '../journey/world.ts';
import { randomFrom } from '../limiter/bucket-history.ts';
import { recordingOf } from './recorded.ts';

const pass = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

const folder = mkdtempSync(join(tmpdir(), 'sluice-learn-'));
afterAll(() => rmSync(folder, { recursive: true }));

const requests = 20;
/** A twentieth of it may be lost: a sixtieth of it is kept free of calls by design, and the other second is for a busy machine. */
const seconds = 30;
const refusal = { status: 403, body: 'rate limit exceeded' };
const kinds = ['rolling', 'fixed'] as const;
type Kind = (typeof kinds)[number];

const dialectOf = (kind: Kind) =>
  ({
    windows: [{ requests, seconds, kind }],
    fields: { limit: 'x-acme-limit', remaining: 'x-acme-left' },
    throttledBy: [refusal],
  }) as const satisfies SpokenParts;

async function learned(kind: Kind): Promise<string> {
  const path = join(folder, `${kind}.har`);
  writeFileSync(path, recordingOf(dialectOf(kind), randomFrom(7)));
  const { stdout } = await promisify(execFile)(process.execPath, ['src/main.ts', 'learn', path]);
  return stdout;
}

const configOf = (origin: string, keyHash: string, proposal: string): string =>
  [
    'server: { host: 127.0.0.1, adminHost: 127.0.0.1, port: 0, adminPort: 0 }',
    'privacy: { labelKey: "a label key for tests only" }',
    'upstreams:',
    `  acme:\n    origins: ["${origin}"]\n    allowPrivateAddresses: true\n    credential: Bearer token`,
    proposal.replaceAll(/^(?=.)/gm, '  '),
    `workspaces:\n  team:\n    keys: ["${keyHash}"]`,
  ].join('\n');

/** From the first of a burst of twice the limit until an upstream of this kind can have taken the last, milliseconds. */
function minMakespanMs(kind: Kind, startedAt: number): number {
  const windowMs = seconds * 1000;
  return kind === 'fixed' ? (Math.floor(startedAt / windowMs) + 1) * windowMs - startedAt : windowMs;
}

async function burstThrough(kind: Kind) {
  const proposal = await learned(kind);
  const simulator = new DialectSimulator({ speaks: dialectOf(kind), refusesBy: 0, retryAfter: true });
  const { url: origin } = await simulator.listen();
  const { key, hash } = createKey();
  const gateway = await serve(configOf(origin, hash, proposal));
  const call = async (): Promise<{ status: number }> => {
    const headers = { authorization: `Bearer ${key}` };
    const response = await fetch(`${gateway.url}/via/acme/v1/things`, { headers });
    await response.arrayBuffer();
    return response;
  };
  try {
    // The first response, and time until no window counts it; then a window of the clock that has just begun, so that a twentieth is as
    // long for all kinds.
    expect((await call()).status).toBe(200);
    const windowMs = seconds * 1000;
    await pass(windowMs * 1.1);
    await pass(windowMs - (Date.now() % windowMs));
    const responses = await Promise.all(Array.from({ length: requests * 2 }, call));
    const burst = simulator.log.slice(1);
    const startedAt = burst[0]?.at ?? 0;
    return {
      responses: tally(responses),
      throttled: burst.filter((entry) => entry.kind === 'throttled').length,
      ratio: ((burst.at(-1)?.at ?? 0) - startedAt) / minMakespanMs(kind, startedAt),
    };
  } finally {
    await gateway.close();
    await simulator.close();
  }
}

test('what sluice learn proposes passes a burst of twice the limit without a refusal, in the time that the upstream needs', async () => {
  const results = await Promise.all(kinds.map(burstThrough));
  const expected = { responses: { 200: requests * 2 }, throttled: 0 };
  expect(results.map(({ responses, throttled }) => ({ responses, throttled }))).toEqual(
    kinds.map(() => expected),
  );
  for (const { ratio } of results) expect(ratio).toBeLessThanOrEqual(1.05);
});
