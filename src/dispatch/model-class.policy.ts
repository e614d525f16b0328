/**
 * Models and tiers that share a quota, or do not, as their providers document it: what a bucket is known by before a response has
 * stated more (`src/quotas/`).
 *
 * Owns: the documented classes. Does not own: what responses show. A model that is not named here is a class of its own.
 * Sources: Anthropic, rate limits (one limit for Opus 4.5 to 4.8, one for Sonnet 4.5 and 4.6; every dated id and alias of a model
 * counts as the model; fast mode has limits of its own); Groq, flex processing (limits of its own). OpenAI's priority processing
 * and Anthropic's priority tier count against the ordinary limits, too.
 */
import { stringAt, type JsonRecord } from './feedback/json.policy.ts';

const claude = /^claude-[a-z]+-\d{1,2}(?:-\d{1,2})?(?=(?:-\d{8}|-latest)?$)/;
const shared: readonly (readonly [RegExp, string])[] = [
  [/^claude-opus-4-[5-8]$/, 'claude-opus-4.x'],
  [/^claude-sonnet-4-[56]$/, 'claude-sonnet-4.x'],
];

/** The class whose quota a model counts against: the model itself, unless its provider documents another one. */
export function modelClass(model: string): string {
  const name = claude.exec(model)?.[0] ?? model;
  return shared.find(([pattern]) => pattern.test(name))?.[1] ?? name;
}

/** The tier of a call that has a quota of its own; `''` = the ordinary one. */
export function tierOf(body: JsonRecord): string {
  if (stringAt(body, 'speed') === 'fast') return 'fast';
  return stringAt(body, 'service_tier') === 'flex' ? 'flex' : '';
}
