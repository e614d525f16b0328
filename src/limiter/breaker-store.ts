/**
 * The port through which replicas share their breakers. A replica keeps what it knows by itself (`src/breaker/`); the store
 * settles who of several changed a breaker first, and reports it to the others. Every name is a keyed digest.
 */

import type { ProviderError } from '../provider-error.policy.ts';

/** A breaker's name, and by what it is found to belong to an upstream and a credential. Keyed digests. */
export interface BreakerId {
  readonly key: string;
  readonly upstream: string;
  readonly credential: string;
}

/** A breaker that is not closed, as replicas report it to each other. */
export interface SharedBreaker {
  /** New with every change. */
  readonly version: string;
  readonly kind: 'open' | 'probing';
  readonly status: number;
  /** What the provider's own error says beside it; `null` = no known word. */
  readonly said: ProviderError | null;
  readonly refusals: number;
  /** Time that is left of its state, milliseconds. */
  readonly leftMs: number;
}

/** What another replica made of a breaker; `null` = it is closed. */
export interface BreakerNews {
  readonly id: BreakerId;
  readonly state: SharedBreaker | null;
}

/** What is stored after an operation: a breaker, none (it is closed), or the store could not be asked. */
export type Stored = SharedBreaker | 'closed' | 'unavailable';

export interface BreakerStore {
  /** False: there are no other replicas. */
  readonly isShared: boolean;
  /** Stores `next` where nothing is stored, or still the version `known`. `''` = none is known. */
  put(id: BreakerId, known: string, next: SharedBreaker): Promise<Stored>;
  /** The same, but a breaker that another replica has closed meanwhile stays closed. */
  take(id: BreakerId, known: string, next: SharedBreaker): Promise<Stored>;
  close(id: BreakerId): Promise<Stored>;
  read(id: BreakerId): Promise<Stored>;
  /** Registers the one listener to changes by other replicas. */
  listen(hear: (news: BreakerNews) => void): void;
  /** Reads the breakers that other replicas opened before this replica began to listen, and passes them to the listener. */
  catchUp(): Promise<void>;
}

const unavailable = (): Promise<Stored> => Promise.resolve('unavailable');

/** One process: there are no others. */
export const embeddedBreakers: BreakerStore = {
  isShared: false,
  put: unavailable,
  take: unavailable,
  close: unavailable,
  read: unavailable,
  listen: () => {},
  async catchUp() {},
};
