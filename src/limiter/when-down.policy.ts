/** What a replica does while Redis is unavailable; limiter and ceilings do the same. */
export type WhenDown = 'local' | 'deny';

/** Whether this replica has ever reached Redis. */
export type RedisContact =
  /** It has, or none is configured. */
  | { readonly kind: 'reached' }
  | {
      readonly kind: 'never';
      /** The time of `redis.startSeconds` has not passed yet. */
      readonly isAwaited: boolean;
      /** Of every limit it takes one part in so many; `null` = it refuses calls. */
      readonly replicas: number | null;
    };

/** `Retry-After` of a call that is refused because Redis is unavailable. Milliseconds. */
export const retryUnavailableMs = 1_000;

/** This replica's part of a limit while Redis is unavailable: an equal share, rounded down, at least 1. */
export const quotaShare = (limit: number, replicas: number): number =>
  Math.max(1, Math.floor(limit / Math.max(1, replicas)));
