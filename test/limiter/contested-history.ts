/**
 * Steps of histories in which somebody else drinks from a nearly full meter: calls that had room are refused for a moment,
 * while others wait. Without these a history hardly ever reaches what is kept free for others.
 */
import type { Draw, Learned, Step } from './bucket-history.ts';
import { plain } from './plain-history.ts';

const limit = 40;
const setting = { learn: true, probe: 0, meters: [{ meter: 'requests', limit, windowMs: 4_000 }] } as const;
const asked = { ...plain, setting } as const;

export function contestedStep(draw: Draw, index: number): Step {
  const common = {
    afterMs: draw.one(0, 20, 35, draw.fraction(0, 150)),
    replica: `r${draw.whole(1, 2)}`,
    twice: draw.chance(0.05),
    joins: false,
  };
  if (index < 2 || draw.chance(0.4)) {
    return { ...common, kind: 'admit', ...asked, ticket: 100 * index, count: draw.one(1, 2, 12, 30) };
  }
  const lease = draw.whole(0, 1);
  if (draw.chance(0.4)) {
    const done = { kind: 'succeeded', spent: null } as const;
    return { ...common, kind: 'settle', lease, settlement: done, lesson: learned(draw, null) };
  }
  if (draw.chance(0.4)) {
    const closeMs = draw.one(1, 20, 100.5);
    const again = { kind: 'throttled', closeMs, requeue: draw.chance(0.8), sleepMs: 0 } as const;
    return { ...common, kind: 'settle', lease, settlement: again, lesson: learned(draw, closeMs) };
  }
  return { ...common, kind: 'tick', renew: 1 };
}

/** @param closeMs of a refusal; now and then a guess of ours, as the upstream does not say. `null` = it was none. */
function learned(draw: Draw, closeMs: number | null): Learned {
  const isRefused = closeMs !== null;
  const lowest = isRefused ? limit : draw.fraction(limit * 0.7, limit);
  return {
    feedback: {
      meters: [{ meter: 'requests', limit, windowMs: 4_000, level: { lowest, highest: lowest } }],
      throttle: isRefused
        ? { kind: 'rate', waitMs: draw.chance(0.8) ? closeMs : null, meter: 'requests' }
        : null,
    },
    headAgoMs: 0,
    sentAgoMs: draw.fraction(0, 30),
  };
}
