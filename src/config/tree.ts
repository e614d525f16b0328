/** Reading of the plain, unchecked tree of a file: wrong types count as absent, because the schema reports them. */

/** A section of the file, its values unjudged. */
export type Section = Readonly<Record<string, unknown>>;

/** The value as a section; anything else counts as an empty one. */
export const section = (value: unknown): Section =>
  typeof value === 'object' && value !== null && !Array.isArray(value)
    ? Object.fromEntries(Object.entries(value))
    : {};
/** The value as a list; anything else counts as an empty one. */
export const list = (value: unknown): readonly unknown[] => (Array.isArray(value) ? value : []);
