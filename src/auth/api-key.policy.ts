/** The form of an API key as `sluice keys create` makes it. One pattern, so that a key of Sluice is never sent upstream. */

export const apiKeyPrefix = 'slc_';
/** A key anywhere in a value. */
const keyAnywhere = /slc_[A-Za-z0-9-]+_[A-Za-z0-9_-]{43}/;

/** True when the text shows a key, whoever it belongs to. */
export const showsApiKey = (text: string): boolean => text.includes(apiKeyPrefix) && keyAnywhere.test(text);
