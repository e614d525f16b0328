import type { OriginPattern } from '../config/settings.ts';

/** An origin as it is written in the file. */
export function originText({ scheme, host, wildcard, port }: OriginPattern): string {
  const usual = scheme === 'https' ? 443 : 80;
  return `${scheme}://${wildcard ? '*.' : ''}${host}${port === usual ? '' : `:${port}`}`;
}
