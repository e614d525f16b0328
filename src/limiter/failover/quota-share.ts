/** This replica's part of a limit while Redis is unavailable: an equal share, rounded down, at least 1. */
export const quotaShare = (limit: number, replicas: number): number =>
  Math.max(1, Math.floor(limit / Math.max(1, replicas)));
