/** Every preset against a simulator that enforces it: a burst, a closing, a refusal for good; in one process. */
import { expect, test } from '@jest/globals';
import { partsOf } from '../../src/config/speaks-build.ts';
import { presetNames, type PresetName } from '../../src/config/presets/names.ts';
import { spokenWorld } from '../support/spoken.ts';

// Small windows and penalties in place of the preset's: what is tried is its words, not its patience.
const small = { windows: [{ requests: 5, seconds: 1 }] };

interface Seen {
  /** Statuses of the calls of which at least one met the closed upstream. */
  readonly burst: readonly number[];
  /** Status, advice to the client, how the next call is refused, and what of that reached the upstream. */
  readonly permanent: readonly unknown[];
}

async function tried(preset: PresetName): Promise<Seen> {
  const parts = partsOf(preset);
  const changes = { ...small, ...(parts.penaltySeconds === undefined ? {} : { penaltySeconds: 1 }) };
  const world = await spokenWorld({
    speaks: { ...parts, ...changes },
    described: { preset, ...changes },
    ...(parts.throttledBy === undefined ? {} : { refusesBy: 0 }),
    retryAfter: true,
  });
  await world.call();
  let burst: readonly number[] = [];
  // On a busy machine a closing may be over before a call arrives: then there is another one.
  while (world.throttles() === 0) {
    world.simulator.closeFor(600);
    burst = await world.burst(7);
  }
  const permanent: unknown[] = [];
  if (parts.permanentBy !== undefined) {
    const first = await world.call('/v1/things', { 'x-sim': 'permanent' });
    permanent.push(first.status, first.headers.get('x-should-retry'));
    const asked = world.simulator.log.length;
    const second = await world.call();
    permanent.push(second.headers.get('sluice-error'), world.simulator.log.length - asked);
  }
  await world.close();
  return { burst, permanent };
}

test('calls pass a burst and a closing in every preset, and a refusal for good is asked once', async () => {
  const seen = await Promise.all(presetNames.map(async (name) => [name, await tried(name)] as const));
  const expected = presetNames.map((name) => {
    const [condition] = partsOf(name).permanentBy ?? [];
    const status = condition === undefined ? null : [condition.status].flat()[0];
    const permanent = status === null ? [] : [status, 'false', 'upstream_refused', 0];
    return [name, { burst: Array.from({ length: 7 }, () => 200), permanent }];
  });
  expect(seen).toEqual(expected);
});
