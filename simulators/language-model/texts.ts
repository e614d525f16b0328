/**
 * The error texts and bodies of each dialect, word for word as recorded.
 *
 * Owns: messages and error bodies. Samples: U02, U07, U09, U10, U11, U12, U15, U17, U18, U22.
 */
import { goDuration } from '../go-duration.ts';
import type { Dialect, Dimension, QuotaState } from './options.ts';

export interface Refusal {
  readonly dialect: Dialect;
  readonly model: string;
  readonly family: string;
  readonly org: string;
  /** Set when the project's own limit refused. */
  readonly project: string | null;
  readonly dimension: Dimension;
  readonly limit: number;
  readonly used: number;
  readonly requested: number;
  readonly waitMs: number;
}

const openaiMetrics: Record<Dimension, string> = {
  rpm: 'requests per min (RPM)',
  rpd: 'requests per day (RPD)',
  tpm: 'tokens per min (TPM)',
  tpd: 'tokens per day (TPD)',
  itpm: 'input tokens per min (ITPM)',
  otpm: 'output tokens per min (OTPM)',
  ipm: 'images per min',
  inputImages: 'input-images per min',
};

const visit = 'Visit https://platform.openai.com/account/rate-limits to learn more.';
const upgrade = 'Need more tokens? Upgrade to Dev Tier today at https://console.groq.com/settings/billing';

export function rateLimitText(refusal: Refusal): string {
  const { limit, used, requested, waitMs, dialect } = refusal;
  const numbers = `Limit ${limit}, Used ${used}, Requested ${requested}.`;
  const groq = dialect === 'groq';
  return `Rate limit reached for ${quotaName(refusal)} on ${metric(refusal)}: ${numbers} Please try again in ${goDuration(waitMs, groq)}. ${groq ? upgrade : visit}`;
}

export function tooLargeText(refusal: Refusal): string {
  const start = `Request too large for ${quotaName({ ...refusal, project: null })} on ${metric(refusal)}: Limit ${refusal.limit}, Requested ${refusal.requested}`;
  if (refusal.dialect === 'groq') return `${start}, please reduce your message size and try again.`;
  return `${start}. The input or output tokens must be reduced in order to run successfully. ${visit}`;
}

function quotaName({ dialect, model, family, org, project }: Refusal): string {
  if (dialect === 'groq') return `model \`${model}\` in organization \`${org}\` service tier \`on_demand\``;
  const shared = family === model ? '' : ` (for limit ${family})`;
  return `${model}${shared} in ${project === null ? '' : `project ${project} `}organization ${org}`;
}

function metric({ dialect, dimension }: Refusal): string {
  const text = openaiMetrics[dimension];
  return dialect === 'groq' ? text.replace('per min ', 'per minute ') : text;
}

/** Azure's sentence; `seconds` is what it asks to wait. */
export function azureText(dimension: Dimension, seconds: number): string {
  const kind = dimension === 'rpm' || dimension === 'rpd' ? 'call' : 'token';
  return `Requests to the ChatCompletions_Create Operation under Azure OpenAI API version 2025-01-01-preview have exceeded ${kind} rate limit of your current OpenAI S0 pricing tier. Please retry after ${seconds} seconds.`;
}

const quotaTexts: Record<Exclude<QuotaState, 'ok'>, string> = {
  insufficient_quota: 'You exceeded your current quota, please check your plan and billing details.',
  credit_balance_exhausted: 'Your credit balance is exhausted. Add credits to continue.',
  organization_spend_limit_exceeded: 'Your organization has reached its spend limit.',
  project_spend_limit_exceeded: 'Your project has reached its spend limit.',
  organization_usage_limit_exceeded: 'Your organization has reached its approved usage limit.',
  enforced_spend_limit_reached: 'You have reached your specified API usage limits.',
};

export function quotaText(state: Exclude<QuotaState, 'ok'>): string {
  return quotaTexts[state];
}

/** The OpenAI shape, which Groq shares. */
export function openaiError(message: string, type: string, code: string | null): unknown {
  return { error: { message, type, param: null, code } };
}

/** @param details Anthropic's machine-readable part, on the spend cap only. */
export function anthropicError(type: string, message: string, requestId: string, details?: unknown): unknown {
  const error = details === undefined ? { type, message } : { type, message, details };
  return { type: 'error', error, request_id: requestId };
}
