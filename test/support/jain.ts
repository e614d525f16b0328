/** Jain's index of fairness: 1 where all shares are equal, 1 / n where one of n has everything. */
export function jainOf(shares: readonly number[]): number {
  const sum = shares.reduce((total, share) => total + share, 0);
  const squares = shares.reduce((total, share) => total + share * share, 0);
  return (sum * sum) / (shares.length * squares);
}
