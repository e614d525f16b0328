/**
 * Breakers of all replicas, in Redis: one key each, which expires, and a message to the other replicas with each change.
 * Redis decides who of several came first; while it is unavailable each replica has its own (`unavailable`).
 *
 * Owns: the words between replica and script. Does not own: which state follows which (`src/breaker/`).
 */
import type { BreakerId, BreakerNews, BreakerStore, SharedBreaker, Stored } from '../breaker-store.ts';
import { amountOf, listOf, malformed, textOf, wordOf } from '../../redis/malformed-reply.ts';
import type { RedisHealth } from '../../redis/health.ts';
import { asWord, ofWord } from '../../provider-error.policy.ts';
import { replicasKey, type Presence } from './presence.ts';
import { runOwn } from './scripts.ts';

/** Beyond its time a breaker is remembered for as long as a replica does (`breaker.policy.ts`). Milliseconds. */
const memoryMs = 3_600_000;

/** Names of the breakers that are not closed, by when they are forgotten. */
const namesKey = 'sluice:{presence}:2:breakers';

/** All breakers share the slot of the replicas' record, because one script reads it and writes them; they are few. */
const keyOf = ({ key }: BreakerId): string => `sluice:{presence}:2:breaker:${key}`;

type Operation = 'put' | 'take' | 'close' | 'read';

/** A wanted change of a breaker, with the version that this replica knows. */
interface Change {
  readonly known: string;
  readonly next: SharedBreaker | null;
}

export class RedisBreakers implements BreakerStore {
  readonly isShared = true;
  readonly #redis: RedisHealth;
  readonly #replica: Pick<Presence, 'id'>;
  #hear: (news: BreakerNews) => void = () => {};

  constructor(redis: RedisHealth, replica: Pick<Presence, 'id'>) {
    this.#redis = redis;
    this.#replica = replica;
  }

  put(id: BreakerId, known: string, next: SharedBreaker): Promise<Stored> {
    return this.#run('put', id, { known, next });
  }

  take(id: BreakerId, known: string, next: SharedBreaker): Promise<Stored> {
    return this.#run('take', id, { known, next });
  }

  close(id: BreakerId): Promise<Stored> {
    return this.#run('close', id);
  }

  read(id: BreakerId): Promise<Stored> {
    return this.#run('read', id);
  }

  listen(hear: (news: BreakerNews) => void): void {
    this.#hear = hear;
  }

  async catchUp(): Promise<void> {
    const keys = [namesKey, replicasKey, namesKey];
    const argv = [this.#replica.id, 'names'];
    const known = await this.#redis.run('other', async (client) =>
      listOf(await runOwn(client, 'breaker', { keys, argv })).map((names) => idOf(textOf(names).split(' '))),
    );
    if (known.kind !== 'reply') return;
    for (const id of known.value) {
      const stored = await this.read(id);
      if (stored !== 'unavailable' && stored !== 'closed') this.#hear({ id, state: stored });
    }
  }

  /** A message on this replica's channel; false: it is about something else. */
  hears(text: string): boolean {
    if (!text.startsWith('b ')) return false;
    const [, ...words] = text.split(' ');
    this.#hear({ id: idOf(words), state: breakerOf(words.slice(3)) });
    return true;
  }

  async #run(
    operation: Operation,
    id: BreakerId,
    { known, next }: Change = { known: '', next: null },
  ): Promise<Stored> {
    const keys = [keyOf(id), replicasKey, namesKey];
    const names = `${id.key} ${id.upstream} ${id.credential}`;
    const argv = [this.#replica.id, operation, known, ...wordsOf(next), names];
    const reply = await this.#redis.run('other', async (client) =>
      breakerOf(listOf(await runOwn(client, 'breaker', { keys, argv }))),
    );
    return reply.kind === 'reply' ? (reply.value ?? 'closed') : 'unavailable';
  }
}

const idOf = ([key, upstream, credential]: readonly string[]): BreakerId => ({
  key: wordOf(key),
  upstream: wordOf(upstream),
  credential: wordOf(credential),
});

/** Seven words; empty ones where nothing is stored. */
function wordsOf(next: SharedBreaker | null): string[] {
  if (next === null) return Array<string>(7).fill('');
  const { version, kind, status, refusals, said, leftMs } = next;
  const words = [version, kind, String(status), String(refusals), asWord(said)];
  return [...words, String(leftMs), String(leftMs + memoryMs)];
}

/** `null` = it is closed. */
function breakerOf(words: readonly unknown[]): SharedBreaker | null {
  if (words.length === 0) return null;
  // A replica of an older version says no sixth word, and reads none.
  const [version, kind, status, refusals, leftMs, said] = words;
  const read = textOf(kind);
  return {
    version: wordOf(version),
    kind: read === 'open' || read === 'probing' ? read : malformed(),
    status: amountOf(status),
    refusals: amountOf(refusals),
    said: ofWord(said),
    leftMs: amountOf(leftMs),
  };
}
