/** The meters that a bucket may have, and the order in which both stores visit them. Pure. */
import type { Costs, MeterName } from '../../call.ts';

/** All meters, in the order in which both stores visit them. */
export const meterNames: readonly MeterName[] = [
  'requests',
  'tokens',
  'requests_day',
  'tokens_day',
  'cost',
  'images',
  'requests_burst',
  'requests_hour',
  'input_tokens',
  'output_tokens',
];

/** Further windows of requests: a call takes from them what it takes from `requests`, where the bucket has them. */
export const requestWindows: readonly MeterName[] = ['requests_burst', 'requests_hour'];

/** Windows of requests that are shorter than a day. */
export const windowNames: readonly MeterName[] = ['requests', ...requestWindows];

/** All meters of which each call takes the same, by the length of their windows. */
export const callWindows: readonly MeterName[] = ['requests', 'requests_day', ...requestWindows];

/** Meter names and units of a call's costs, without the zeros. */
export function costEntries(costs: Costs): [MeterName, number][] {
  const entries: [MeterName, number][] = [];
  for (const name of meterNames) {
    const units = costs[name] ?? 0;
    if (units > 0) entries.push([name, units]);
  }
  return entries;
}
