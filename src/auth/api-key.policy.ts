/**
 * The pattern of API keys, which `sluice keys create` makes. Whatever is sent upstream is checked against this one pattern, so
 * that no key of Sluice leaves with it.
 */

export const apiKeyPrefix = 'slc_';
/** A key anywhere in a value. */
const keyAnywhere = /slc_[A-Za-z0-9-]+_[A-Za-z0-9_-]{43}/;

/** True when the text contains an API key, whether or not the key is valid. */
export const showsApiKey = (text: string): boolean => text.includes(apiKeyPrefix) && keyAnywhere.test(text);
