/** The desk on virtual time where only an answer can tell what calls cost: GraphQL documents. */
import { describe, expect, test } from '@jest/globals';
import { createDesk, type Desk } from '../../src/admission/admit.ts';
import type { Lease, Ticket } from '../../src/admission/ticket.ts';
import { DocumentCost } from '../../src/dispatch/learned-costs.ts';
import { Refusal } from '../../src/errors.ts';
import type { Limiter } from '../../src/limiter/limiter.ts';
import { createMemoryCeilings } from '../../src/limiter/memory-ceilings.ts';
import { createMemoryLimiter } from '../../src/limiter/memory-limiter.ts';
import { FakeClock } from '../support/fake-clock.ts';

interface Wish {
  readonly document?: DocumentCost;
  readonly lane?: string;
  readonly maxWaitMs?: number;
  readonly maxInFlight?: number;
  readonly perMinute?: number;
}

/** A bucket of 1,000 points, 100 come back each second; every call is guessed at 50. */
function world() {
  const clock = new FakeClock();
  const story: string[] = [];
  const leases = new Map<string, Lease>();
  const tickets = new Map<string, Ticket>();
  const gone = new Map<string, AbortController>();
  const desk: Desk = createDesk({
    clock,
    limiter: () => limiter,
    ceilings: createMemoryCeilings(clock),
    onFailure: (failure) => story.push(`bug ${String(failure)}`),
  });
  const limiter: Limiter = createMemoryLimiter(clock, desk.listener);
  const enter = async (id: string, wish: Wish = {}): Promise<void> => {
    const leaves = new AbortController();
    gone.set(id, leaves);
    const guess = 50;
    try {
      const ticket = await desk.enter({
        admission: {
          ticket: id,
          bucket: 'b',
          setting: { meters: [{ meter: 'cost', limit: 1_000, windowMs: 10_000 }], learn: true, probe: 0 },
          lane: wish.lane ?? 'l',
          weight: 1,
          maxInFlight: wish.maxInFlight ?? null,
          maxQueued: 1_000,
          urgency: 3,
          callClass: 'graphql',
          costs: { cost: wish.document?.points ?? guess },
          leaseMs: 15_000,
        },
        ceiling: { key: wish.lane ?? 'l', perMinute: wish.perMinute ?? null, perDay: null },
        ...(wish.document === undefined ? {} : { sharedCost: wish.document }),
        upstream: 'u',
        maxWaitMs: wish.maxWaitMs ?? 100_000,
        clientGone: leaves.signal,
        stillValid: () => true,
      });
      tickets.set(id, ticket);
      leases.set(id, await ticket.granted());
      story.push(id);
    } catch (failure) {
      story.push(`${id} ${failure instanceof Refusal ? failure.code : String(failure)}`);
    }
  };
  const pass = async (ms: number): Promise<void> => {
    const until = clock.monotonic() + ms;
    clock.outside(until, () => {});
    await clock.run(until);
  };
  return {
    clock,
    story,
    leases,
    gone,
    limiter,
    pass,
    enter: (id: string, wish: Wish = {}): void => void enter(id, wish),
    answer(id: string, document: DocumentCost, points: number | null): void {
      if (points !== null) document.tell(points);
      leases.get(id)?.settle({ kind: 'succeeded', spent: null }, null);
    },
    level: (): number => limiter.snapshot()[0]?.meters[0]?.level ?? 0,
  };
}

describe('calls whose cost an answer tells', () => {
  test('wait for the first of their document, and then leave in order as fast as their cost allows', async () => {
    const { enter, pass, story, answer, level } = world();
    const document = new DocumentCost();
    for (let at = 0; at < 5; at += 1) enter(`c${at}`, { document });
    await pass(200);
    expect(story).toEqual(['c0']);
    answer('c0', document, 400);
    await pass(1);
    // 50 were reserved for the first and 40 per second come back: two of 400 have room.
    expect(story).toEqual(['c0', 'c1', 'c2']);
    expect(level()).toBeGreaterThan(800);
    await pass(10_000);
    expect(story).toEqual(['c0', 'c1', 'c2', 'c3', 'c4']);
  });

  test('are held over all lanes of the bucket', async () => {
    const { enter, pass, story, answer } = world();
    const document = new DocumentCost();
    enter('a', { document, lane: 'one' });
    enter('b', { document, lane: 'two' });
    await pass(100);
    expect(story).toEqual(['a']);
    answer('a', document, 20);
    await pass(1);
    expect(story).toEqual(['a', 'b']);
  });

  test('are charged what they cost by now when they waited in the line with a guess', async () => {
    const { enter, pass, story, answer, level } = world();
    const document = new DocumentCost();
    for (const id of ['a', 'b', 'c']) enter(id, { document, maxInFlight: 1 });
    await pass(10);
    answer('a', document, 900);
    await pass(1);
    expect(story).toEqual(['a', 'b']);
    expect(level()).toBeGreaterThan(900);
    answer('b', document, 900);
    await pass(5_000);
    expect(story).toEqual(['a', 'b']);
    await pass(5_000);
    expect(story).toEqual(['a', 'b', 'c']);
  });

  test('are not overtaken by cheaper calls of their lane that were granted with them', async () => {
    const { enter, pass, story, answer, clock } = world();
    const document = new DocumentCost();
    enter('first', { document });
    enter('dear', { document });
    for (let at = 0; at < 4; at += 1) enter(`cheap${at}`, { perMinute: 1_000 });
    await pass(50);
    expect(story).toEqual(['first']);
    answer('first', document, 999);
    await pass(400);
    expect(story).toEqual(['first']);
    await pass(4_000);
    expect(story).toEqual(['first', 'dear', 'cheap0', 'cheap1', 'cheap2', 'cheap3']);
    expect(clock.timers).toBeLessThanOrEqual(1);
  });

  test('go with the guess where the first answer told nothing', async () => {
    const { enter, pass, story, answer } = world();
    const document = new DocumentCost();
    for (const id of ['a', 'b', 'c']) enter(id, { document });
    await pass(100);
    answer('a', document, null);
    await pass(1);
    expect(story).toEqual(['a', 'b', 'c']);
  });

  test('go with the guess when the first answer takes long', async () => {
    const { enter, pass, story } = world();
    const document = new DocumentCost();
    for (const id of ['a', 'b']) enter(id, { document });
    await pass(4_999);
    expect(story).toEqual(['a']);
    await pass(2);
    expect(story).toEqual(['a', 'b']);
  });

  test('find it out themselves when the first was never sent', async () => {
    const { enter, pass, story, leases, answer } = world();
    const document = new DocumentCost();
    for (const id of ['a', 'b', 'c']) enter(id, { document });
    await pass(10);
    leases.get('a')?.settle({ kind: 'dropped' }, null);
    await pass(10);
    expect(story).toEqual(['a', 'b']);
    answer('b', document, 20);
    await pass(1);
    expect(story).toEqual(['a', 'b', 'c']);
  });

  test('find it out themselves when the ceiling had no place for the first', async () => {
    const { enter, pass, story } = world();
    const document = new DocumentCost();
    enter('full', { lane: 'one', perMinute: 1 });
    enter('a', { document, lane: 'one', perMinute: 1 });
    await pass(10);
    enter('b', { document, lane: 'two' });
    await pass(1);
    expect(story).toEqual(['full', 'b']);
  });

  test('give back everything when they leave while they are held', async () => {
    const { enter, pass, story, gone, limiter, answer } = world();
    const document = new DocumentCost();
    enter('a', { document });
    enter('b', { document });
    enter('free');
    await pass(10);
    gone.get('b')?.abort();
    await pass(1);
    expect(story).toEqual(['a', expect.stringContaining('b '), 'free']);
    expect(limiter.snapshot()).toMatchObject([{ waiting: 0, inFlight: 2 }]);
    answer('a', document, 20);
  });

  test('are refused at once when they turn out too dear for their wait', async () => {
    const { enter, pass, story, answer } = world();
    const document = new DocumentCost();
    enter('a', { document, maxInFlight: 1 });
    enter('b', { document, maxInFlight: 1 });
    enter('c', { document, maxInFlight: 1, maxWaitMs: 3_000 });
    await pass(10);
    answer('a', document, 900);
    await pass(1);
    answer('b', document, null);
    await pass(600);
    expect(story).toEqual(['a', 'b', 'c wait_too_long']);
  });

  test('take no place under the ceiling before they leave', async () => {
    const { enter, pass, story, answer } = world();
    const document = new DocumentCost();
    enter('a', { document, perMinute: 3 });
    enter('b', { document, perMinute: 3 });
    enter('c', { perMinute: 3 });
    enter('d', { perMinute: 3 });
    await pass(3_000);
    answer('a', document, 20);
    await pass(1);
    expect(story).toEqual(['a', 'b', 'c']);
    // The place of `a` frees 60 s after it left; those of the others, who left 3 s later, after that.
    await pass(57_200);
    expect(story).toEqual(['a', 'b', 'c', 'd']);
  });
});
