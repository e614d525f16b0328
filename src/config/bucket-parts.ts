/** Reads one word of a dialect's `bucketBy`: `credential`, `host`, `path:/v1/{*}`, `header:x-org`, `body:/model`. */
import type { Separator } from './dialect.ts';

const fieldName = /^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}$/;

/** `null`: none of the forms. */
export function readSeparator(text: string): Separator | 'credential' | 'host' | null {
  if (text === 'credential' || text === 'host') return text;
  const colon = text.indexOf(':');
  const value = text.slice(colon + 1);
  switch (text.slice(0, Math.max(0, colon))) {
    case 'path':
      return pathSeparator(value);
    case 'header':
      return fieldName.test(value) ? { kind: 'header', name: value.toLowerCase() } : null;
    case 'body':
      return bodySeparator(value);
    default:
      return null;
  }
}

function pathSeparator(pattern: string): Separator | null {
  if (!/^\/[^\s?#]+$/.test(pattern) || pattern.length > 256) return null;
  const segments = pattern.slice(1).split('/');
  if (segments.some((segment) => segment === '' || (/[{}]/.test(segment) && segment !== '{*}'))) return null;
  return { kind: 'path', segments: segments.map((segment) => (segment === '{*}' ? null : segment)) };
}

function bodySeparator(pointer: string): Separator | null {
  if (!/^(?:\/(?:[^/~]|~[01])+)+$/.test(pointer) || pointer.length > 256) return null;
  const names = pointer.slice(1).split('/');
  return { kind: 'body', pointer: names.map((name) => name.replaceAll('~1', '/').replaceAll('~0', '~')) };
}
