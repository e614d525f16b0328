/** Every kind of event: one that is missing here is an error of types. */
import type { EventKind } from '../../src/limiter/policy/bucket-events.ts';

const all: Readonly<Record<EventKind, true>> = {
  admit: true,
  settle: true,
  learn: true,
  charge: true,
  cancel: true,
  forecast: true,
  tick: true,
  reconfigure: true,
  wake: true,
  open: true,
};

export const isEventKind = (word: unknown): word is EventKind => typeof word === 'string' && word in all;
export const eventKinds: readonly EventKind[] = Object.keys(all).filter(isEventKind);
