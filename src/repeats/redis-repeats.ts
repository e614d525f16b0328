/**
 * Claims and kept responses in Redis, on a separate connection, so that a large response does not delay an admission.
 *
 * Owns: keys, commands, the connection. Does not own: what a claim means for a call (`shared-repeats.ts`).
 * Keeps: every operation ends within a few seconds; one that fails is `null`, never thrown.
 */
import type { Clock, Random } from '../clock.ts';
import type { IdempotencySettings, RedisSettings } from '../config/settings.ts';
import { connectRedis, type RedisConnection } from '../redis/connection.ts';
import { claimOf, claimText, renewedStates, type Claim } from './claim.ts';
import type { RepeatKey } from './repeat.ts';
import {
  changeScript,
  claimScript,
  indexScript,
  offerScript,
  releaseScript,
  renewScript,
  takeScript,
} from './repeat-scripts.ts';
import { leftKeptMs, maxLeftOfOne } from './left-calls.ts';

/** How long an operation waits for the connection, and each for its reply. Milliseconds. */
const connectWithinMs = 1_000;
const connectPollMs = 10;
const commandMs = 2_000;
/** A claim that is not renewed for so long belongs to a replica that is gone. Milliseconds. */
export const claimMs = 5_000;
/** For how long a claim stays in Redis after its replica has gone: a repeat then knows that its call is made again. Milliseconds. */
const traceMs = 60_000;
/** How long a claim of a call under way lies in Redis without being renewed. Milliseconds. */
export const heldMs = claimMs + traceMs;
/**
 * For how long after a loss of Redis' data nobody may claim a call that Redis does not know, milliseconds: each replica puts its own
 * claims back with its next renewal. `fresh`: the time for a replica that finds new data at its start, without having seen a loss.
 */
const putBackMs = { fresh: 1_000, lost: 2_000 };
/** Expiry of the epoch key, which every renewal of a claim extends. Milliseconds. */
const epochKeyMs = 86_400_000;
/** For how long a response that is not kept stays in Redis for the repeats that waited for it. Milliseconds. */
export const handOverMs = 10_000;
/** What Redis takes for an entry beside the sealed response: keys, claim, places in the index. Measured with Redis 7: 1,000 bytes. */
export const entryBytes = 1_024;

/** Distinguishes one epoch of the data from the next (`repeat-scripts.ts`). */
const epochKey = 'sluice:{repeats}:3:life';
const indexKey = 'sluice:{repeats}:3:kept';
const bytesKey = 'sluice:{repeats}:3:bytes';
const claimKey = (name: string): string => `sluice:{repeats}:3:claim:${name}`;
const wantedKey = (name: string): string => `sluice:{repeats}:3:wanted:${name}`;
const leftKey = (fingerprint: string): string => `sluice:{repeats}:3:left:${fingerprint}`;
const responseKey = (name: string): string => `sluice:{repeat:${name}}:3:answer`;

/**
 * Reply to a call that asks for its claim. `wait`: Redis has lost its data, and another replica may still put a claim back · `known`:
 * another call has the claim.
 */
export type ClaimReply =
  | { readonly kind: 'wait' }
  /** `arrivedAgoMs`: position of the call that this one repeats, `null` = of none. `isOrphaned`: the replica that claimed it is gone. */
  | { readonly kind: 'taken'; readonly arrivedAgoMs: number | null; readonly isOrphaned: boolean }
  | { readonly kind: 'known'; readonly claim: Claim };

type NamedClaim = Claim & { readonly name: string };

/** Reply to the renewal of all claims of this replica. */
export interface ClaimRenewal {
  /** Redis has lost its data since the last time. */
  readonly isDataLost: boolean;
  /** Names of claims whose response somebody waits for. */
  readonly wanted: readonly string[];
  /** Claims that another replica has. */
  readonly taken: readonly NamedClaim[];
}

/** Reply to a change of one claim. */
export interface ClaimChange {
  /** Somebody waits for the response. */
  readonly isWanted: boolean;
  /** Another replica has the claim: nothing was changed. */
  readonly isTaken: boolean;
  /** Redis has lost its data since the claims were renewed. */
  readonly isDataLost: boolean;
}

/** What is known of a claim now. `gone`: nothing, or its replica is gone. */
export interface ClaimReading {
  readonly claim: Claim | 'gone';
  readonly sealed: Buffer | null;
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
  /** Value of the epoch key when it was read last; another value means that Redis has lost its data. */
  #epoch: string | null = null;

  constructor(parts: RedisRepeatsParts) {
    this.#parts = parts;
  }

  /** Opens the connection. Operations that are asked for earlier wait for it, for a second at most. */
  connect(): void {
    const { clock, settings, random, onError } = this.#parts;
    if (this.#isClosed) return;
    this.#connection ??= connectRedis(
      { ...settings, commandTimeoutMs: commandMs },
      { clock, random },
      onError,
    );
  }

  /** Asks for the claim. */
  async claim({ name, fingerprint }: RepeatKey, holder: string): Promise<ClaimReply | null> {
    const reply = await this.#try(({ client }) => {
      const text = claimText({ fingerprint, holder, state: 'held' });
      const times = [heldMs, this.#putBackMs, epochKeyMs, traceMs];
      return client.eval(claimScript, 2, claimKey(name), epochKey, text, ...times);
    });
    const [epoch, ...claimed] = wordsOf(reply);
    if (epoch !== undefined) this.#epoch ??= epoch;
    return claimedOf(claimed);
  }

  /** What is known of a claim now, and the response where there is one. */
  read(name: string): Promise<ClaimReading | null> {
    return this.#try(async ({ client }) => {
      const [text, leftMs, sealed] = await Promise.all([
        client.get(claimKey(name)),
        client.pttl(claimKey(name)),
        client.getBuffer(responseKey(name)),
        client.set(wantedKey(name), '1', 'PX', handOverMs),
      ]);
      const claim = claimOf(text);
      const isGone = claim === null || (renewedStates.includes(claim.state) && leftMs <= traceMs);
      return { claim: isGone ? 'gone' : claim, sealed };
    });
  }

  /** Renews claims, and puts back those that are lost. `null`: it could not be done. */
  async renew(claims: readonly NamedClaim[]): Promise<ClaimRenewal | null> {
    const reply = await this.#try(({ client }) => {
      const keys = [epochKey, ...claims.map(({ name }) => claimKey(name))];
      return client.eval(
        renewScript,
        keys.length,
        ...keys,
        epochKeyMs,
        this.#putBackMs,
        heldMs,
        ...claims.map(claimText),
      );
    });
    const [epoch, wanted, taken] = Array.isArray(reply) ? (reply as unknown[]) : [];
    if (typeof epoch !== 'string') return null;
    const isDataLost = this.#epoch !== null && this.#epoch !== epoch;
    this.#epoch = epoch;
    const at = (indexes: unknown): NamedClaim[] =>
      wordsOf(indexes).flatMap((n) => claims[Number(n) - 1] ?? []);
    return { isDataLost, wanted: at(wanted).map(({ name }) => name), taken: at(taken) };
  }

  /** Changes a claim, unless another replica has it. `arrivedAgoMs`: of a call that was left. */
  async change(
    name: string,
    claim: Claim,
    { forMs, arrivedAgoMs = null }: { readonly forMs: number; readonly arrivedAgoMs?: number | null },
  ): Promise<ClaimChange | null> {
    const reply = await this.#try(({ client }) => {
      const keys = [claimKey(name), wantedKey(name), epochKey];
      const age = arrivedAgoMs === null ? '' : String(Math.round(arrivedAgoMs));
      const text = claimText(claim);
      return client.eval(changeScript, keys.length, ...keys, claim.holder, text, Math.round(forMs), age);
    });
    const [wanted, taken, epoch] = wordsOf(reply);
    if (wanted === undefined) return null;
    return {
      isWanted: wanted === '1',
      isTaken: taken === '1',
      isDataLost: this.#epoch !== null && this.#epoch !== epoch,
    };
  }

  /** Gives up a claim that nobody has changed meanwhile, with what was stored under its name. */
  async release(name: string, claim: Claim): Promise<void> {
    const isReleased = await this.#try(({ client }) =>
      client.eval(releaseScript, 1, claimKey(name), claimText(claim)),
    );
    if (isReleased === 1) await this.#try(({ client }) => client.del(responseKey(name)));
  }

  /** Offers a call that was left: its name, or with `null` its position, `ageMs` milliseconds old. False when Redis did not take it. */
  async offer(fingerprint: string, name: string | null, ageMs: number): Promise<boolean> {
    const reply = await this.#try(({ client }) => {
      const entry = [name ?? '', Math.round(ageMs), maxLeftOfOne, 2 * leftKeptMs];
      return client.eval(offerScript, 1, leftKey(fingerprint), ...entry);
    });
    return reply !== null;
  }

  /** Takes what was offered first: a call's name, or the age of a position in milliseconds. `null` = nothing, or it could not be asked. */
  async takeLeft(fingerprint: string): Promise<string | number | null> {
    const reply = await this.#try(({ client }) =>
      client.eval(takeScript, 1, leftKey(fingerprint), leftKeptMs, wantedKey(''), handOverMs),
    );
    const [kind, value = ''] = wordsOf(reply);
    if (kind === undefined) return null;
    return kind === 'call' ? value : Number(value);
  }

  /** Takes an offered call back. False when it was not there any more, or it could not be asked. */
  async withdraw(fingerprint: string, name: string): Promise<boolean> {
    return (await this.#try(({ client }) => client.lrem(leftKey(fingerprint), 0, `call ${name}`))) === 1;
  }

  /** Stores a sealed response for a while, without counting it. */
  async store(name: string, sealed: Buffer, forMs: number): Promise<boolean> {
    return (
      (await this.#try(({ client }) => client.set(responseKey(name), sealed, 'PX', Math.round(forMs)))) ===
      'OK'
    );
  }

  /** Counts what is kept of a call, and deletes what was evicted for it. `bytes`: of the sealed response, 0 where there is none. */
  async keep({ name, owner }: RepeatKey, bytes: number, bounds: IdempotencySettings): Promise<void> {
    await this.#try(async ({ client }) => {
      const { keepSeconds, maxWorkspaceBytes, maxTotalBytes } = bounds;
      const sizes = [bytes + entryBytes, keepSeconds * 1000, maxWorkspaceBytes, maxTotalBytes];
      const evicted = await client.eval(indexScript, 2, indexKey, bytesKey, owner, name, ...sizes);
      if (!Array.isArray(evicted)) return;
      await Promise.all(evicted.map((each) => this.#delete(String(each))));
    });
  }

  async #delete(name: string): Promise<void> {
    await this.#try(({ client }) => Promise.all([client.del(claimKey(name)), client.del(responseKey(name))]));
  }

  close(): void {
    this.#isClosed = true;
    this.#connection?.close();
  }

  get #putBackMs(): number {
    return this.#epoch === null ? putBackMs.fresh : putBackMs.lost;
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
    const { clock } = this.#parts;
    this.connect();
    const connection = this.#connection;
    if (this.#isClosed || connection === null) return null;
    for (const until = clock.monotonic() + connectWithinMs; !connection.isReady();) {
      if (this.#isClosed || clock.monotonic() > until) return null;
      await new Promise<void>((resolve) => void clock.after(connectPollMs, resolve));
    }
    return connection;
  }
}

const wordsOf = (reply: unknown): string[] => (Array.isArray(reply) ? (reply as unknown[]).map(String) : []);

function claimedOf([kind, text = '', isOrphaned]: readonly string[]): ClaimReply | null {
  if (kind === 'wait') return { kind };
  if (kind === 'taken')
    return { kind, arrivedAgoMs: text === '' ? null : Number(text), isOrphaned: isOrphaned === '1' };
  const claim = claimOf(text);
  return kind === 'known' && claim !== null ? { kind, claim } : null;
}
