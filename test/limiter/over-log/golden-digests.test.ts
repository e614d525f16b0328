/**
 * What the fold does is its version: replicas of one log must do the same to the last bit. Random histories have the digests that
 * `golden-digests.txt` names; `npm test` looks at 50 of them, each at one origin of time, `verify:long` at 200 at all origins.
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
import { createState, fold, snapshot } from '../../../src/limiter/over-log/fold.ts';
import { origins } from '../../support/origins.ts';
import { entriesOf, leaseMs } from '../bucket-history.ts';

const file = new URL('golden-digests.txt', import.meta.url);
const isRenewed = process.env['SLUICE_RENEW_DIGESTS'] === '1';
const isWhole = isRenewed || process.env['SLUICE_TESTS'] === 'long';
/** The state is looked at after so many entries, and after the last one. */
const entriesPerDigest = 16;

/** Of grants and due times of every entry, and of the state now and then, in the histories of these seeds. */
function digestOf(seeds: number, originsOf: (seed: number) => readonly { readonly ms: number }[]): string {
  const hash = createHash('sha256');
  for (let seed = 1; seed <= seeds; seed += 1)
    for (const { ms } of originsOf(seed)) {
      const state = createState(leaseMs);
      const entries = entriesOf(seed, ms);
      for (const [n, entry] of entries.entries()) {
        const { grants, nextAt } = fold(state, entry);
        hash.update(JSON.stringify([grants, nextAt]));
        if (n % entriesPerDigest === 0 || n === entries.length - 1) hash.update(snapshot(state));
      }
    }
  return hash.digest('hex');
}

test('random histories have the digests that they had', () => {
  const found = [digestOf(50, (seed) => origins.slice(seed % origins.length).slice(0, 1))];
  if (isWhole) found.push(digestOf(200, () => origins));
  if (isRenewed) writeFileSync(file, `${found.join('\n')}\n`);
  expect(found).toEqual(readFileSync(file, 'utf8').split('\n').slice(0, found.length));
}, 600_000);
