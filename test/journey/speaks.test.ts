/** An upstream whose dialect the configuration describes, enforced by a simulator; one process. */
import { afterEach, describe, expect, test } from '@jest/globals';
import { tooEarly } from '../support/too-early.ts';
import { spokenWorld, type SpokenOptions, type SpokenWorld } from '../support/spoken.ts';

const open: SpokenWorld[] = [];
afterEach(async () => {
  for (const world of open.splice(0)) await world.close();
});

async function start(options: SpokenOptions): Promise<SpokenWorld> {
  const world = await spokenWorld(options);
  open.push(world);
  return world;
}

const ok = (calls: number): number[] => Array.from({ length: calls }, () => 200);

describe('an upstream that speaks a described dialect', () => {
  test('is paced by several windows at once from the first call, without a word of its responses', async () => {
    const windows = [
      { requests: 3, seconds: 1 },
      { requests: 8, seconds: 3 },
    ];
    // The upstream refuses nothing: what is judged is when calls come.
    const world = await start({ speaks: {}, described: { windows } });
    const startedAt = Date.now();
    expect(await world.burst(9)).toEqual(ok(9));
    expect(tooEarly(world.simulator.log, startedAt, windows)).toEqual([]);
  });

  test('is paced by windows of the clock', async () => {
    const windows = [{ requests: 5, seconds: 1, kind: 'fixed' }] as const;
    const world = await start({ speaks: {}, described: { windows } });
    const startedAt = Date.now();
    expect(await world.burst(12)).toEqual(ok(12));
    expect(tooEarly(world.simulator.log, startedAt, windows)).toEqual([]);
  });

  test('is believed when it throttles with a 403, in a 400 and in a 200', async () => {
    const speaks = {
      throttledBy: [
        { status: 403, field: 'x-acme-left', equals: '0' },
        { status: 400, body: 'rate limit' },
        { status: 200, body: 'slow down' },
      ],
    };
    const worlds = await Promise.all(
      speaks.throttledBy.map((_, refusesBy) => start({ speaks, refusesBy, retryAfter: true })),
    );
    await Promise.all(
      worlds.map(async (world) => {
        let reply = await world.call();
        // On a busy machine a closing may be over before the call arrives: then there is another one.
        while (world.throttles() === 0) {
          world.simulator.closeFor(2_000);
          reply = await world.call();
        }
        expect([reply.status, reply.text]).toEqual([200, '{"path":"/v1/things"}']);
        expect(reply.headers.get('sluice-admission')).toContain('absorbed=1');
        expect(world.throttles()).toBe(1);
      }),
    );
  });

  test('gets no call during its penalty, which no response states', async () => {
    const world = await start({ speaks: { windows: [{ requests: 50, seconds: 1 }], penaltySeconds: 1 } });
    let replies = await world.calls(12);
    while (world.throttles() === 0) {
      world.simulator.closeFor(300);
      replies = await world.calls(12);
    }
    expect(replies.map(({ status }) => status)).toEqual(ok(12));
    // Those that were on their way with the first one were refused once, and nobody came back while it was closed.
    const absorbed = replies.map(({ headers }) => headers.get('sluice-admission') ?? '');
    expect(absorbed.filter((text) => !/absorbed=[01](,|$)/.test(text))).toEqual([]);
  });

  test('has a quota for each value of the part by which it separates quotas', async () => {
    const windows = [{ requests: 2, seconds: 60 }];
    const bucketBy = ['credential', 'path:/v1/{*}', 'header:x-org'];
    const world = await start({ speaks: { windows, bucketBy } });
    const replies = await Promise.all([
      world.call('/v1/a/1'),
      world.call('/v1/a/2?x=1'),
      world.call('/v1/b/1'),
      world.call('/v1/b'),
      world.call('/v1/a/3', { 'x-org': 'o2' }),
    ]);
    expect(replies.map(({ status }) => status)).toEqual(ok(5));
    const third = await world.call('/v1/a', { prefer: 'wait=1' });
    expect([third.status, third.headers.get('sluice-error')]).toEqual([429, 'wait_too_long']);
    expect(world.throttles()).toBe(0);
    expect(new Set(world.simulator.log.map(({ quota }) => quota)).size).toBe(3);
  });

  test('is not asked again after a refusal that waiting does not cure', async () => {
    const world = await start({ speaks: { permanentBy: [{ status: 403, body: 'plan limit' }] } });
    const first = await world.call('/v1/things', { 'x-sim': 'permanent' });
    expect([first.status, first.headers.get('x-should-retry')]).toEqual([403, 'false']);
    const second = await world.call();
    expect([second.status, second.headers.get('sluice-error')]).toEqual([403, 'upstream_refused']);
    expect(world.simulator.log).toHaveLength(1);
  });

  test('has no more calls in flight than it takes', async () => {
    const world = await start({ speaks: { maxInFlight: 2 }, tookMs: 20 });
    expect(await world.burst(10)).toEqual(ok(10));
    expect(world.throttles()).toBe(0);
  });
});
