/** What a preset says of an API beside its dialect. Types only. */
import type { SpeaksParts } from '../speaks-schema.ts';

export interface Preset {
  readonly title: string;
  /** Page of the provider’s documentation from which the dialect is taken. */
  readonly source: string;
  /** What the API counts, in a sentence. */
  readonly counts: string;
  /** Those limits of the API that no dialect can describe; `null`: none is known. */
  readonly missing: string | null;
  readonly speaks: SpeaksParts;
}
