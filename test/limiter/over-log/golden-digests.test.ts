/**
 * What the fold does is its version: replicas of one log must do the same to the last bit. Random histories have the digests that
 * `golden-digests.txt` names (a line a seed, a digest an origin of time); `npm test` looks at 50 of them, `verify:long` at all.
 *
 * Where a change of the policy, of the fold or of the histories is meant to change them:
 *
 *   SLUICE_RENEW_DIGESTS=1 npm test -- test/limiter/over-log/golden-digests.test.ts
 *
 * A changed fold is another version, which has logs of its own (`docs/adr/0029-redis-orders-every-replica-decides.md`).
 */
import { createHash } from 'node:crypto';
import { readFileSync, writeFileSync } from 'node:fs';
import { expect, test } from '@jest/globals';
import { createState, fold } from '../../../src/limiter/over-log/fold.ts';
import { snapshot } from '../../../src/limiter/over-log/state.ts';
import { origins } from '../../support/origins.ts';
import { entriesOf, leaseMs } from './history.ts';

const file = new URL('golden-digests.txt', import.meta.url);
const isRenewed = process.env['SLUICE_RENEW_DIGESTS'] === '1';
const isWhole = isRenewed || process.env['SLUICE_TESTS'] === 'long';
const seeds = isWhole ? 200 : 50;
/** The state is looked at after so many entries, and after the last one. */
const entriesPerDigest = 16;

/** Of grants and due times of every entry, and of the state now and then. */
function digestOf(seed: number, originMs: number): string {
  const hash = createHash('sha256');
  const state = createState(leaseMs);
  const entries = entriesOf(seed, originMs);
  for (const [n, entry] of entries.entries()) {
    const { grants, nextAt } = fold(state, entry);
    hash.update(JSON.stringify([grants, nextAt]));
    if (n % entriesPerDigest === 0 || n === entries.length - 1) hash.update(snapshot(state));
  }
  return hash.digest('hex').slice(0, 16);
}

/** In `npm test` the origins take turns. */
const isRead = (seed: number, origin: number): boolean => isWhole || origin === seed % origins.length;

test(`${seeds} histories have the digests that they had`, () => {
  const found = Array.from({ length: seeds }, (_, n) =>
    [n + 1, ...origins.map(({ ms }, at) => (isRead(n + 1, at) ? digestOf(n + 1, ms) : '-'))].join(' '),
  );
  if (isRenewed) writeFileSync(file, `${found.join('\n')}\n`);
  const known = readFileSync(file, 'utf8').trimEnd().split('\n').slice(0, seeds);
  const expected = known.map((line) => {
    const [seed = '', ...digests] = line.split(' ');
    return [seed, ...digests.map((digest, at) => (isRead(Number(seed), at) ? digest : '-'))].join(' ');
  });
  expect(found).toEqual(expected);
}, 600_000);
