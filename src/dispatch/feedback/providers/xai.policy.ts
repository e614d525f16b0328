/** xAI: a spent balance and a spending limit come as 429 with a sentence, like its rate limits, and no code for them. */
import type { Provider, ReadsRefusal } from './provider.policy.ts';

const spent = /\bhas either used all available credits or reached its monthly spending limit\b/;

const refusal: ReadsRefusal = ({ message }) => (spent.test(message) ? { verdict: 'quota' } : null);

export const xai: Provider = { refusal };
