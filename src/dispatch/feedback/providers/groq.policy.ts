/**
 * Groq: seconds of audio per hour or day, beside the limits that it names like OpenAI (`message.policy.ts`). They have no meter:
 * what a recording lasts is not known before it is sent.
 */
import { dimension } from '../x-ratelimit.policy.ts';
import type { Provider, ReadsRefusal } from './provider.policy.ts';

const audio = /\bon seconds of audio per (hour|day)(?: \(([A-Z]{2,5})\))?/;

const refusal: ReadsRefusal = ({ message }) => {
  const [, window, metric] = audio.exec(message) ?? [];
  if (window === undefined) return null;
  const windowMs = window === 'day' ? 86_400_000 : 3_600_000;
  return { message: { meter: null, metric: metric ?? 'audio-seconds', windowMs } };
};

export const groq: Provider = { refusal, dimensions: [dimension('audio-seconds', null)] };
