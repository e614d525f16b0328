/** What a replica does while Redis is unavailable; limiter and ceilings do the same. */
export type WhenDown = 'local' | 'deny';

/** `Retry-After` of a call that is refused because Redis is unavailable. Milliseconds. */
export const retryUnavailableMs = 1_000;
