/**
 * Names for workspaces, buckets, lanes and ceilings that reveal nobody: keyed digests, the same on every replica with the
 * same label key. Owns their form. Does not own: where a name may be shown (`telemetry/labels.ts`).
 */
import { createHmac } from 'node:crypto';

/**
 * Keyed digest for keys shared through Redis: 32 hex digits. `purpose` separates domains (`bucket`, `lane`); parts are
 * length-prefixed, so `('a','bc')` ≠ `('ab','c')`.
 */
export function digest(labelKey: string, purpose: string, ...parts: readonly string[]): string {
  const hmac = createHmac('sha256', labelKey);
  for (const part of [purpose, ...parts]) hmac.update(`${Buffer.byteLength(part)}:${part},`);
  return hmac.digest('hex').slice(0, 32);
}

/** `w_` and the first 16 hex digits of HMAC-SHA-256(label key, workspace id). */
export function workspaceLabel(labelKey: string, workspaceId: string): string {
  return `w_${createHmac('sha256', labelKey).update(workspaceId).digest('hex').slice(0, 16)}`;
}
