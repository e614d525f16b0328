/** The gauge of credentials that end. */
import type { ObservedCredential } from './events.ts';
import type { Instruments } from './instruments.ts';

/** Of several credentials of an upstream the one that ends first is shown. */
export function readCredentials(
  { credentialExpires }: Instruments,
  credentials: readonly ObservedCredential[],
): void {
  credentialExpires.reset();
  const first = new Map<string, number>();
  for (const { upstream, expiresInMs } of credentials) {
    first.set(upstream, Math.min(first.get(upstream) ?? Infinity, expiresInMs));
  }
  for (const [upstream, expiresInMs] of first) credentialExpires.set({ upstream }, expiresInMs / 1000);
}
