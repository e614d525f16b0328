/** Replicas that follow one log in a real Redis, each with a list of what was said, and a digest; on joining each says again what the list lacks of its own. */
import { hash } from 'node:crypto';
import { expect } from '@jest/globals';
import { systemClock, systemRandom } from '../../src/clock.ts';
import type { RedisSettings } from '../../src/config/settings.ts';
import { replicaId } from '../../src/ids.ts';
import type { StampedEntry } from '../../src/log/redis-commands.ts';
import type { Follower, Urgency } from '../../src/log/log.ts';
import { RedisLog } from '../../src/log/redis-log.ts';
import { noTelemetry } from '../support/no-telemetry.ts';
import { closers } from '../support/own-redis.ts';
import { startHealth } from '../support/redis-health.ts';
import { until } from '../support/until.ts';

type Mode = RedisSettings['mode'];

/** What a replica says; an empty word is only a tick. */
type Said = string;

export const testName = { digest: 'd1ge57', version: '1', database: 0, keyPrefix: '' } as const;
export const keys = {
  head: 'sluice:{d1ge57}:1:head',
  log: 'sluice:{d1ge57}:1:log',
  channel: 'sluice:{d1ge57}:1:0:',
} as const;

export class Replica implements Follower<Said> {
  readonly id: string;
  readonly log: RedisLog<Said>;
  readonly health: Connected['health'];
  readonly connection: Connected['connection'];
  /** What happened to the copy, in order. */
  readonly events: string[] = [];
  /** Terms in which it joined. */
  readonly joins: number[] = [];
  readonly bugs: string[] = [];
  readonly faults: string[] = [];
  said: Said[] = [];
  digest = '';
  place = '';
  sequence = 0;
  term = 0;
  at = 0;
  readonly own = new Set<Said>();
  /** By sequence and mark, over all replicas: equal places mean equal states. */
  readonly #digests: Map<string, string>;
  isJoined = false;

  constructor(id: string, { digests, ...connected }: Connected & { readonly digests: Map<string, string> }) {
    const { health, connection, ...limits } = connected;
    const log = { ...noTelemetry.log, bug: (message: string) => void this.bugs.push(message) };
    this.id = id;
    this.health = health;
    this.connection = connection;
    this.#digests = digests;
    connection.subscribe(`sluice:r:${id}`, { onMessage() {}, onReady() {} });
    const own = { replica: replicaId(id), actsAlone: true, redis: health, connection, log };
    const system = { clock: systemClock, random: systemRandom };
    this.log = new RedisLog<Said>({ name: testName, ...own, ...system, ...limits });
    this.log.follow(this);
  }

  say(word: Said, urgency: Urgency = 'now'): void {
    this.own.add(word);
    this.log.append(word, urgency);
  }

  tick(): void {
    this.log.append('');
  }

  /** All of it is in its state. */
  get hasOwn(): boolean {
    const said = new Set(this.said);
    return [...this.own].every((word) => said.has(word));
  }

  onEntry(entry: StampedEntry<Said>): void {
    if (entry.sequence !== this.sequence + 1) this.faults.push(`${entry.sequence} after ${this.sequence}`);
    if (entry.at < this.at) this.faults.push(`time ${entry.at} after ${this.at}`);
    this.said.push(...entry.events.filter((word) => word !== ''));
    const { replica, at, term, sequence } = entry;
    this.digest = hash('sha1', `${this.digest} ${replica} ${at} ${term} ${entry.events.join()}`);
    Object.assign(this, { sequence, term, at, place: `${sequence} ${entry.mark}` });
    const known = this.#digests.get(this.place);
    if (known === undefined) this.#digests.set(this.place, this.digest);
    else if (this.digest !== known) this.faults.push(`another state at ${this.place}`);
  }

  onRestore(snapshot: string | null): void {
    this.isJoined = false;
    this.events.push('restored');
    [this.digest, this.sequence, this.term, this.at, this.place, this.said] = JSON.parse(
      snapshot ?? '["", 0, 0, 0, "", []]',
    ) as [string, number, number, number, string, Said[]];
  }

  onJoined(term: number): void {
    this.isJoined = true;
    this.events.push('joined');
    this.joins.push(term);
    const said = new Set(this.said);
    for (const word of this.own) if (!said.has(word)) this.log.append(word);
  }

  awaitsOthers(): boolean {
    return false;
  }

  onAway(): void {
    this.isJoined = false;
    this.events.push('away');
  }

  snapshot(): string {
    return JSON.stringify([this.digest, this.sequence, this.term, this.at, this.place, this.said]);
  }
}

/** Resolves when all replicas have joined at one place, with all that any of them said in their states, once, and these are equal. */
export async function agree(replicas: readonly Replica[]): Promise<void> {
  const isWhole = (): boolean =>
    replicas.every(({ isJoined, hasOwn, place }) => isJoined && hasOwn && place === replicas[0]?.place);
  // In the product somebody ticks once a second: that brings what a message did not.
  let looks = 0;
  await until(() => {
    looks += 1;
    if (looks % 20 === 0) for (const replica of replicas) replica.tick();
    return isWhole();
  }, 10);
  const everything = replicas.flatMap(({ own }) => [...own]);
  for (const { digest, said, faults } of replicas) {
    expect(faults).toEqual([]);
    expect(digest).toBe(replicas[0]?.digest);
    expect(said).toEqual(replicas[0]?.said);
    expect(said.filter((word) => everything.includes(word)).toSorted()).toEqual(everything.toSorted());
  }
}

interface Limits {
  readonly maxLogBytes?: number;
}
interface Connected extends Awaited<ReturnType<typeof startHealth>>, Limits {}

export function installation(
  { port }: { readonly port: number },
  limits: Limits = {},
  mode: Mode = 'single',
) {
  const digests = new Map<string, string>();
  const replicas: Replica[] = [];
  return {
    replicas,
    /** Resolves when it has joined. */
    async add(id = `${systemRandom.hex(4)}.${replicas.length + 1}`): Promise<Replica> {
      const started = await startHealth({ mode, port });
      const replica = new Replica(id, { ...started, ...limits, digests });
      closers.push(async () => {
        await replica.log.close();
        started.close();
      });
      replicas.push(replica);
      await until(() => replica.isJoined);
      return replica;
    },
  };
}

/** Three replicas that have said something and agree. */
export async function three(redis: { readonly port: number }, limits: Limits = {}) {
  const all = installation(redis, limits);
  const [a, b, c] = [await all.add(), await all.add(), await all.add()];
  for (const replica of all.replicas) for (let n = 0; n < 20; n += 1) replica.say(`${replica.id}.${n}`);
  await agree(all.replicas);
  return { ...all, a, b, c };
}

/** The replicas go on saying things, one every few milliseconds each, until the function that is returned is called. */
export function talk(replicas: readonly Replica[]): () => void {
  let count = 0;
  const timer = setInterval(() => {
    count += 1;
    for (const replica of replicas) replica.say(`${replica.id}+${count}`);
  }, 3);
  closers.push(() => clearInterval(timer));
  return () => clearInterval(timer);
}

/** All replicas have heard so many more entries. */
export async function goOn(replicas: readonly Replica[], entries = 30): Promise<void> {
  const from = replicas.map(({ said }) => said.length);
  await until(() => replicas.every(({ said }, at) => said.length >= (from[at] ?? 0) + entries));
}
