/** This replica's part of a limit while Redis is unavailable: rounded down, at least a trickle. */
export const quotaShare = (limit: number, replicas: number): number =>
  Math.max(1, Math.floor(limit / Math.max(1, replicas)));
