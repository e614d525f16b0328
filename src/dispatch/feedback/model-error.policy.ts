/**
 * The verdict on a language-model error body.
 *
 * Owns: the error catalogue of the providers. Does not own: waits and fields. Invariant: `error.code` decides, then
 * `error.type`, never wording such as "billing" (texts of retryable refusals mention it) and never the status alone.
 */
import { isRecord, recordAt, stringAt, type JsonRecord } from './json.policy.ts';
import { goDurationMs } from '../duration.policy.ts';

/** An error of any dialect, flattened. */
export interface ModelError {
  /** Codes from the most exact to the widest, lower case; numbers as text. */
  readonly codes: readonly string[];
  readonly type: string | null;
  readonly message: string;
  /** Google's `retryDelay`, milliseconds. */
  readonly retryDelayMs: number | null;
  /** Google's violated quota ids. */
  readonly quotaIds: readonly string[];
  /** Fields that OpenRouter repeats in the body, lower-case names. */
  readonly fields: ReadonlyMap<string, string>;
}

/**
 * `quota` money or a spend cap · `too_large` never fits · `daily` a day's quota that the provider says not to wait for ·
 * `overload` the provider is short of capacity, or wants slower growth · `rate` wait and resend.
 */
export type Verdict = 'quota' | 'too_large' | 'daily' | 'overload' | 'rate';

/** The error in a parsed body, or `null` when it holds none. */
export function errorIn(body: unknown): ModelError | null {
  const outer: unknown = Array.isArray(body) ? body[0] : body; // Gemini's stream endpoint wraps errors in a list
  if (!isRecord(outer)) return null;
  const inner = outer['error'] ?? recordAt(outer, 'response')?.['error'];
  if (isRecord(inner)) return flatten(inner);
  if (typeof inner === 'string') return flatten({ ...outer, message: inner });
  // Mistral has no envelope, and neither has an error event of the Responses API.
  return outer['object'] === 'error' || outer['type'] === 'error' ? flatten(outer) : null;
}

function flatten(error: JsonRecord): ModelError {
  const details = error['details'];
  const parts = (Array.isArray(details) ? details : [details]).filter(isRecord);
  const detailCodes = parts.map((part) => stringAt(part, 'error_code') ?? stringAt(part, 'reason'));
  return {
    codes: [...detailCodes, word(error['code'])]
      .filter((code) => code !== null)
      .map((code) => code.toLowerCase()),
    type: (stringAt(error, 'type') ?? stringAt(error, 'status'))?.toLowerCase() ?? null,
    message: stringAt(error, 'message') ?? '',
    retryDelayMs: delayIn(parts),
    quotaIds: parts.flatMap(violatedQuotas),
    fields: repeatedFields(error),
  };
}

function word(value: unknown): string | null {
  return typeof value === 'string' ? value : typeof value === 'number' ? String(value) : null;
}

function delayIn(parts: readonly JsonRecord[]): number | null {
  for (const part of parts) {
    const delayMs = goDurationMs(stringAt(part, 'retryDelay') ?? '');
    if (delayMs !== null) return Math.ceil(delayMs);
  }
  return null;
}

function violatedQuotas(part: JsonRecord): readonly string[] {
  const violations = part['violations'];
  if (!Array.isArray(violations)) return [];
  return violations.map((violation) => stringAt(violation, 'quotaId')).filter((id) => id !== null);
}

function repeatedFields(error: JsonRecord): ReadonlyMap<string, string> {
  const fields = new Map<string, string>();
  for (const [name, value] of Object.entries(recordAt(recordAt(error, 'metadata'), 'headers') ?? {})) {
    if (typeof value === 'string') fields.set(name.toLowerCase(), value);
  }
  return fields;
}

const byName = new Map<string, Verdict>([
  ['insufficient_quota', 'quota'],
  ['credit_balance_exhausted', 'quota'],
  ['organization_spend_limit_exceeded', 'quota'],
  ['project_spend_limit_exceeded', 'quota'],
  ['organization_usage_limit_exceeded', 'quota'],
  ['enforced_spend_limit_reached', 'quota'],
  ['billing_not_active', 'quota'],
  ['billing_hard_limit_reached', 'quota'],
  ['billing_error', 'quota'], // Anthropic, with 402
  ['slow_down', 'overload'],
  ['server_is_overloaded', 'overload'],
  ['model_capacity_exhausted', 'overload'],
  ['overloaded_error', 'overload'],
  ['service_unavailable_error', 'overload'],
  ['unavailable', 'overload'],
  ['rate_limit_exceeded', 'rate'],
  ['rate_limit_error', 'rate'],
  ['rate_limited', 'rate'],
  ['resource_exhausted', 'rate'],
]);

/**
 * The verdict by code, then by type; `null` when neither is known, so that only the status can decide. `tooLarge`: the message
 * says that the call is larger than the limit itself.
 */
export function verdictOf(error: ModelError, tooLarge: boolean): Verdict | null {
  const known = [...error.codes, error.type ?? ''].find((name) => byName.has(name));
  const verdict = byName.get(known ?? '') ?? null;
  if (verdict !== 'rate') return verdict;
  if (tooLarge) return 'too_large';
  return error.quotaIds.some((id) => id.includes('PerDay')) ? 'daily' : 'rate';
}
