/** The gauge of the time until upstream credentials end. Owns: that gauge, read at each scrape. */
import type { ObservedCredential } from './events.ts';
import type { Instruments } from './instruments.ts';

/** Sets the gauge. Of several credentials of an upstream, it shows the one that ends first. */
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
