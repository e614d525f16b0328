/**
 * Claims and kept answers in Redis, on a connection of its own, opened with the first call that needs it: no answer stands in
 * front of an admission.
 *
 * Owns: keys, commands, the connection. Refuses to own: what a claim means for a call (`shared-repeats.ts`).
 * Keeps: every operation ends within a few seconds; one that fails is `null`, never thrown.
 */
import type { Clock, Random } from '../clock.ts';
import type { IdempotencySettings, RedisSettings } from '../config/settings.ts';
import { connectRedis, type RedisConnection } from '../limiter/redis/client/connection.ts';
import type { RepeatKey } from './repeat.ts';
import { changeScript, claimScript, indexScript, renewScript } from './repeat-scripts.ts';

/** How long the first operation waits for the connection, and each for its reply. Milliseconds. */
const connectWithinMs = 1_000;
const connectPollMs = 10;
const commandMs = 2_000;
/** A claim that is not renewed for so long belongs to a replica that is gone. Milliseconds. */
export const claimMs = 5_000;
/** After a loss of its data Redis gives out no claims for so long: each replica puts its own back with its next renewal. Milliseconds. */
export const putBackMs = 1_000;
const lifeMs = 86_400_000;
/** How long the answer is there for those who waited for a call whose answer is not kept. Milliseconds. */
export const handOverMs = 10_000;

const lifeKey = 'sluice:{repeats}:1:life';
const indexKey = 'sluice:{repeats}:1:kept';
const bytesKey = 'sluice:{repeats}:1:bytes';
const claimKey = (name: string): string => `sluice:{repeats}:1:claim:${name}`;
const wantedKey = (name: string): string => `sluice:{repeats}:1:wanted:${name}`;
const answerKey = (name: string): string => `sluice:{repeat:${name}}:1:answer`;

export const claimStates = ['held', 'streaming', 'kept', 'too_large', 'free', 'left'] as const;
export type ClaimState = (typeof claimStates)[number];

export interface Claim {
  readonly fingerprint: string;
  readonly holder: string;
  readonly state: ClaimState;
}

export type Claimed =
  | { readonly kind: 'wait' | 'none' }
  /** `arrivedAgoMs`: position of the call that this one repeats, `null` = of none. */
  | { readonly kind: 'taken'; readonly arrivedAgoMs: number | null }
  | { readonly kind: 'known'; readonly claim: Claim };

export interface Renewed {
  /** Redis has lost its data since the last time. */
  readonly isLost: boolean;
  /** Names of claims whose answer somebody waits for. */
  readonly wanted: readonly string[];
}

export interface RedisRepeatsParts {
  readonly settings: RedisSettings;
  readonly clock: Clock;
  readonly random: Random;
  readonly onError: () => void;
}

export class RedisRepeats {
  readonly #parts: RedisRepeatsParts;
  #connection: RedisConnection | null = null;
  #isClosed = false;
  /** The data of Redis has one of these as long as it lives. */
  #life: string | null = null;

  constructor(parts: RedisRepeatsParts) {
    this.#parts = parts;
  }

  /** `take` false: reads only, and takes the position of a call that was left. */
  claim({ name, fingerprint }: RepeatKey, holder: string, take: boolean): Promise<Claimed | null> {
    return this.#try(async ({ client }) => {
      const text = claimText({ fingerprint, holder, state: 'held' });
      const keys = [claimKey(name), lifeKey];
      const reply = await client.eval(
        claimScript,
        2,
        ...keys,
        text,
        claimMs,
        putBackMs,
        lifeMs,
        take ? '' : 'look',
      );
      return claimedOf(reply);
    });
  }

  /** What is known of a claim now, and the answer where there is one. */
  read(name: string): Promise<{ readonly claim: Claim | null; readonly sealed: Buffer | null } | null> {
    return this.#try(async ({ client }) => {
      const [claim, sealed] = await Promise.all([
        client.get(claimKey(name)),
        client.getBuffer(answerKey(name)),
        client.set(wantedKey(name), '1', 'PX', handOverMs),
      ]);
      return { claim: claimOf(claim), sealed };
    });
  }

  /** Renews claims, and puts back those that are lost. `null`: it could not be done. */
  async renew(claims: readonly (Claim & { readonly name: string })[]): Promise<Renewed | null> {
    const reply = await this.#try(({ client }) => {
      const keys = [lifeKey, ...claims.map(({ name }) => claimKey(name))];
      return client.eval(
        renewScript,
        keys.length,
        ...keys,
        lifeMs,
        putBackMs,
        claimMs,
        ...claims.map(claimText),
      );
    });
    const [life, wanted] = Array.isArray(reply) ? (reply as unknown[]) : [];
    if (typeof life !== 'string' || !Array.isArray(wanted)) return null;
    const isLost = this.#life !== null && this.#life !== life;
    this.#life = life;
    return { isLost, wanted: wanted.flatMap((at) => claims[Number(at) - 1]?.name ?? []) };
  }

  /** Changes a claim. Resolves with true when somebody waits for the answer. `arrivedAgoMs`: of a call that was left. */
  change(
    name: string,
    claim: Claim,
    { forMs, arrivedAgoMs = null }: { readonly forMs: number; readonly arrivedAgoMs?: number | null },
  ): Promise<boolean | null> {
    return this.#try(async ({ client }) => {
      const keys = [claimKey(name), wantedKey(name)];
      const age = arrivedAgoMs === null ? '' : String(Math.round(arrivedAgoMs));
      return (
        (await client.eval(
          changeScript,
          2,
          ...keys,
          claim.holder,
          claimText(claim),
          Math.round(forMs),
          age,
        )) === 1
      );
    });
  }

  /** Stores a sealed answer for a while, without counting it. */
  async store(name: string, sealed: Buffer, forMs: number): Promise<boolean> {
    return (
      (await this.#try(({ client }) => client.set(answerKey(name), sealed, 'PX', Math.round(forMs)))) === 'OK'
    );
  }

  /** Counts an answer that is kept, and lets go of those for which there is no room any more. */
  async keep({ name, owner }: RepeatKey, bytes: number, bounds: IdempotencySettings): Promise<void> {
    await this.#try(async ({ client }) => {
      const { keepSeconds, maxWorkspaceBytes, maxTotalBytes } = bounds;
      const sizes = [bytes, keepSeconds * 1000, maxWorkspaceBytes, maxTotalBytes];
      const gone = await client.eval(indexScript, 2, indexKey, bytesKey, owner, name, ...sizes);
      if (!Array.isArray(gone)) return;
      await Promise.all(gone.map((each) => this.#delete(String(each))));
    });
  }

  async #delete(name: string): Promise<void> {
    await this.#try(({ client }) => Promise.all([client.del(claimKey(name)), client.del(answerKey(name))]));
  }

  /** Takes out what a repeat has got, where one repeat only may have it. */
  forget(name: string): Promise<void> {
    return this.#delete(name);
  }

  close(): void {
    this.#isClosed = true;
    this.#connection?.close();
  }

  async #try<T>(run: (connection: RedisConnection) => Promise<T>): Promise<T | null> {
    try {
      const connection = await this.#connected();
      return connection === null ? null : await run(connection);
    } catch {
      this.#parts.onError();
      return null;
    }
  }

  async #connected(): Promise<RedisConnection | null> {
    const { clock, settings, random, onError } = this.#parts;
    if (this.#isClosed) return null;
    this.#connection ??= connectRedis(
      { ...settings, commandTimeoutMs: commandMs },
      { clock, random },
      onError,
    );
    const connection = this.#connection;
    for (const until = clock.monotonic() + connectWithinMs; !connection.isReady();) {
      if (this.#isClosed || clock.monotonic() > until) return null;
      await new Promise<void>((resolve) => void clock.after(connectPollMs, resolve));
    }
    return connection;
  }
}

const claimText = ({ fingerprint, holder, state }: Claim): string => `${fingerprint} ${holder} ${state}`;

function claimOf(text: unknown): Claim | null {
  if (typeof text !== 'string') return null;
  const [fingerprint, holder, word] = text.split(' ');
  const state = claimStates.find((each) => each === word);
  return fingerprint === undefined || holder === undefined || state === undefined
    ? null
    : { fingerprint, holder, state };
}

function claimedOf(reply: unknown): Claimed | null {
  const [kind, text] = Array.isArray(reply) ? (reply as unknown[]) : [];
  if (kind === 'wait' || kind === 'none') return { kind };
  if (kind === 'taken') return { kind, arrivedAgoMs: text === '' ? null : Number(text) };
  const claim = claimOf(text);
  return kind === 'known' && claim !== null ? { kind, claim } : null;
}
