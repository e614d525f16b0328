/**
 * Steps of histories in which a crowd waits while a bucket is closed for longer than a silence, and one call goes ahead of the
 * others then. Without these a history hardly ever has both.
 */
import type { Draw, Step } from './bucket-history.ts';
import { plain } from './plain-history.ts';

const setting = {
  learn: true,
  probe: 0,
  meters: [{ meter: 'requests', limit: 200, windowMs: 60_000 }],
} as const;
const asked = { ...plain, setting } as const;
const closed = { kind: 'throttled', closeMs: 12_000, requeue: true, sleepMs: 0 } as const;
const silence = { feedback: { meters: [], throttle: null }, sentAgoMs: 10, headAgoMs: 0 } as const;

/** Round by round: some calls go, the bucket closes, more come, it opens, and something becomes of the first of them. */
export function silentStep(draw: Draw, index: number): Step {
  const common = { afterMs: 5, replica: 'r1', twice: draw.chance(0.05), joins: false };
  const lease = draw.whole(0, 1);
  switch (index % 6) {
    case 0:
      return { ...common, kind: 'admit', ...asked, ticket: 100 * index, count: draw.whole(1, 3) };
    case 1:
      return { ...common, kind: 'settle', lease, settlement: closed, lesson: null };
    case 2:
      return { ...common, kind: 'admit', ...asked, ticket: 100 * index, count: draw.one(4, 7, 8, 9, 20) };
    case 3:
      return { ...common, afterMs: draw.one(9_000, 12_000, 13_000), kind: 'tick', renew: 1 };
    case 4:
      return { ...common, afterMs: draw.one(0, 20, 60, 100), ...ending(draw) };
    default:
      return { ...common, afterMs: draw.one(0, 20, 40, 100), kind: 'tick', renew: 1 };
  }
}

/** What becomes of a lease. */
function ending(draw: Draw) {
  const lease = draw.whole(0, 3);
  const because = { kind: 'returned', sleepMs: 30, because: 'ceiling_minute' } as const;
  return draw.one(
    { kind: 'settle', lease, settlement: { kind: 'succeeded', spent: null }, lesson: null } as const,
    { kind: 'settle', lease, settlement: because, lesson: null } as const,
    { kind: 'settle', lease, settlement: { kind: 'dropped' }, lesson: null } as const,
    { kind: 'learn', lease, lesson: silence } as const,
    { kind: 'tick', renew: 1 } as const,
  );
}
