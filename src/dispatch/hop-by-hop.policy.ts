/**
 * Fields that speak to the next machine only (RFC 9110 §7.6.1 and what is used like them). They pass in neither direction.
 */

const names = new Set([
  'connection',
  'keep-alive',
  'te',
  'trailer',
  'transfer-encoding',
  'upgrade',
  'http2-settings',
]);

/** `name` in lower case. Everything that begins with `proxy-` speaks to or of a proxy. */
export function isHopByHop(name: string): boolean {
  return names.has(name) || name.startsWith('proxy-');
}
