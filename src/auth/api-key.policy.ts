/**
 * The pattern of API keys, which `sluice keys create` makes. Whatever is sent upstream is checked against this one pattern, so
 * that no key of Sluice leaves with it.
 */

export const apiKeyPrefix = 'slc_';
/** A key anywhere in a value. */
const keyAnywhere = /slc_[A-Za-z0-9-]+_[A-Za-z0-9_-]{43}/;

/** User and password of `Basic` (RFC 7617), decoded; `null` for another scheme. What is no base64 gives no text that matters. */
export function basicText(value: string): string | null {
  const [, encoded] = /^basic +([a-z0-9+/_=-]+)$/i.exec(value) ?? [];
  return encoded === undefined ? null : Buffer.from(encoded, 'base64').toString('latin1');
}

const holdsApiKey = (text: string): boolean => text.includes(apiKeyPrefix) && keyAnywhere.test(text);

/** True when the text contains an API key, whether or not the key is valid, also as user or password of `Basic`. */
export const showsApiKey = (text: string): boolean => holdsApiKey(text) || holdsApiKey(basicText(text) ?? '');
