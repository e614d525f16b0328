/** Why a command of the shared activity failed, as metrics name it. Does not own: what follows from it (`redis-activity.ts`). */
import type { RedisErrorKind } from '../telemetry/events.ts';

/** There is no connection now: it is still being made, or the driver has reported why not. */
export class RedisNotReady extends Error {}

/** `null`: the driver has reported the error already. */
export function errorKindOf(failure: unknown): RedisErrorKind | null {
  if (failure instanceof RedisNotReady) return null;
  if (!(failure instanceof Error)) return 'other';
  if (failure.name === 'ReplyError') return 'reply';
  return /timed? ?out/i.test(failure.message) ? 'timeout' : 'connection';
}
