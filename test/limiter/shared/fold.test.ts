/** What an entry does to the state of the shared limiter, beyond what the policy does to one bucket. */
import { expect, test } from '@jest/globals';
import { createState, holdMs } from '../../../src/limiter/shared/fold.ts';
import { atOrigins } from '../../support/at-origins.ts';
import { admit, entryOf, foldOwn, granted, leaseMs } from './folding.ts';

atOrigins('an entry of the log', (instant) => {
  test('grants calls while there is room, and names the time of the next one', () => {
    const state = createState(leaseMs);
    const calls = ['a', 'b', 'c'].map((name, n) => admit(name, instant(n), { limit: 2 }));
    const effects = foldOwn(state, entryOf(instant(10), 'r1', calls));
    expect(effects.replies.map((reply) => reply?.kind)).toEqual(['granted', 'granted', 'queued']);
    expect(granted(effects)).toEqual(['a', 'b']);
    const { nextAt } = effects;
    if (nextAt === null) throw new Error('nothing is due');
    expect(granted(foldOwn(state, entryOf(nextAt - 1, 'r1', [{ kind: 'tick' }])))).toEqual([]);
    expect(granted(foldOwn(state, entryOf(nextAt, 'r1', [{ kind: 'tick' }])))).toEqual(['c']);
  });

  test('of a new term grants nothing until each known replica has said here', () => {
    const state = createState(leaseMs);
    for (const name of ['r1', 'r2'])
      expect(foldOwn(state, entryOf(instant(0), name, [{ kind: 'tick' }])).beginsTerm).toBe(name === 'r1');
    const here = { kind: 'here', term: 2, held: [], used: [] } as const;
    const first = foldOwn(state, entryOf(instant(10), 'r1', [admit('a', instant(5)), here], { term: 2 }));
    expect([first.beginsTerm, granted(first)]).toEqual([true, []]);
    expect(first.nextAt).toBe(instant(10) + holdMs);
    expect(granted(foldOwn(state, entryOf(instant(20), 'r2', [here], { term: 2 })))).toEqual(['a']);
  });
});
