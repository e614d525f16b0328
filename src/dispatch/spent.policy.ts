/**
 * What a call has spent of the bucket's meters, known at the end of its response; what it had reserved was an estimate.
 *
 * Owns: which of the numbers that a response states settles which meter. Does not own: reading them (`feedback/`) and moving
 * any meter (`limiter/`). Invariant: a meter whose level the response's fields state is settled by that level alone.
 */
import type { Costs, Feedback, MeterName, TokenUsage } from '../call.ts';

/** Costs of a call that was refused: it counts as a request, but it used no tokens and made no images. */
const nothingMade: Costs = { tokens: 0, tokens_day: 0, input_tokens: 0, output_tokens: 0, images: 0 };

/**
 * `late`: what the rest of the response's body reported; `null` = nothing. Returns what each meter is charged in all; a meter that
 * is not named stays as reserved, and `null` = all do. A call that the upstream refused (4xx) made no tokens; often such a
 * response states no level, and what the call reserved would stay taken.
 */
export function spentOf(status: number, head: Feedback, late: Feedback | null): Costs | null {
  const cost = (late ?? head).actualCost;
  if (cost !== undefined) return { cost };
  if (status >= 400) return status < 500 ? nothingMade : null;
  const usage = late?.usage ?? head.usage;
  return usage === undefined ? null : spentTokens(head, usage);
}

function spentTokens(head: Feedback, usage: TokenUsage): Costs | null {
  const spent: Partial<Record<MeterName, number>> = {};
  const settle = (meter: MeterName, units: number | null): void => {
    const isStated = head.meters.some((report) => report.meter === meter && report.level !== null);
    if (units !== null && !isStated) spent[meter] = units;
  };
  settle('tokens', usage.total);
  settle('tokens_day', usage.total);
  settle('input_tokens', usage.input);
  settle('output_tokens', usage.output);
  return Object.keys(spent).length === 0 ? null : spent;
}
