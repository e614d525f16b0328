/** Cerebras: its fields name their window, and a reset is the window's end. */
import { dimension } from '../x-ratelimit.policy.ts';
import type { Provider } from './provider.policy.ts';

export const cerebras: Provider = {
  dimensions: [
    dimension('requests-minute', 'requests', 'window', 60_000),
    dimension('tokens-minute', 'tokens', 'window', 60_000),
    dimension('requests-day', 'requests', 'window', 86_400_000),
    dimension('tokens-day', 'tokens', 'window', 86_400_000),
  ],
};
