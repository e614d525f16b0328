/**
 * A map in Redis, sealed: Redis sees the digests by which entries are named, and opaque owners. Each entry is one key, so that the
 * nodes of a Cluster share the entries.
 */
import { createCipheriv, createDecipheriv, hkdfSync, randomBytes } from 'node:crypto';
import type { RedisClient } from '../redis/connection.ts';
import { runScript } from '../redis/scripts.ts';
import type {
  Codec,
  CreateMap,
  Entry,
  MapKey,
  MapSpec,
  PutOptions,
  PutReply,
  Reading,
  SharedMap,
} from './shared-map.ts';

const put = { folder: new URL('./', import.meta.url), name: 'put', repliesInBytes: true } as const;

/** The Redis of a map. */
export interface MapRedis {
  /** Messages know neither databases nor key prefixes: this, which names both, is part of a channel's name. */
  readonly scope: string;
  /** What `run` resolves with; `null` when Redis does not answer. Never rejects, and takes a bounded time. */
  try<T>(run: (client: RedisClient) => Promise<T>): Promise<T | null>;
  listen(channel: string, onMessage: (text: string) => void): void;
}

export interface RedisMapParts<V> extends MapSpec<V> {
  readonly redis: MapRedis;
  readonly labelKey: string;
}

const json: Codec<unknown> = {
  write: (value) => Buffer.from(JSON.stringify(value), 'utf8'),
  read: (bytes) => JSON.parse(bytes.toString('utf8')) as unknown,
};

/** Makes maps in this Redis. */
export const createMapsIn =
  (redis: MapRedis, labelKey: string): CreateMap =>
  (wanted) =>
    new RedisMap({ ...wanted, redis, labelKey });

export class RedisMap<V> implements SharedMap<V> {
  readonly #parts: RedisMapParts<V>;
  readonly #codec: Codec<V>;
  /** `null`: nobody is told of changes. */
  readonly #channel: string | null;

  constructor(parts: RedisMapParts<V>) {
    const { redis, name, onChange } = parts;
    this.#parts = parts;
    this.#codec = parts.codec ?? (json as Codec<V>);
    this.#channel = onChange === undefined ? null : `sluice:shared:${name}:${redis.scope}`;
    if (onChange === undefined || this.#channel === null) return;
    const onMessage = (text: string): void => {
      const [entryName = '', entry = '', ttlMs] = text.split(' ');
      const found = this.#entryIn({ name: entryName }, Buffer.from(entry, 'base64'), Number(ttlMs));
      if (found.kind === 'entry' && Number.isFinite(found.leftMs)) onChange(entryName, found);
    };
    redis.listen(this.#channel, onMessage);
  }

  async read(key: MapKey): Promise<Reading<V>> {
    const replies = await this.#parts.redis.try((client) =>
      client.multi().getBuffer(this.#keyOf(key)).pttl(this.#keyOf(key)).exec(),
    );
    if (replies === null) return { kind: 'unavailable' };
    const [bytes, leftMs] = replies.map(([, reply]) => reply);
    return Buffer.isBuffer(bytes) && typeof leftMs === 'number' && leftMs >= 0
      ? this.#entryIn(key, bytes, leftMs)
      : { kind: 'none' };
  }

  async put(key: MapKey, value: V, { owner, ttlMs, over }: PutOptions): Promise<PutReply<V>> {
    const sealed = seal(this.#sealKey(key, owner), this.#codec.write(value));
    const entry = Buffer.concat([Buffer.from(`${owner} `, 'latin1'), sealed]);
    const reply = await this.#run(key, owner, over ?? '', entry, Math.max(1, Math.floor(ttlMs)));
    if (!Array.isArray(reply)) return { kind: 'unavailable' };
    const [stays, leftMs]: unknown[] = reply;
    if (!Buffer.isBuffer(stays)) return { kind: 'put' };
    return { kind: 'lost', to: this.#entryIn(key, stays, Number(leftMs)) };
  }

  async delete(key: MapKey, owner: string): Promise<void> {
    await this.#run(key, owner, '', '', 1);
  }

  #run(key: MapKey, owner: string, over: string, entry: Buffer | '', ttlMs: number): Promise<unknown> {
    const told = entry === '' ? null : this.#channel;
    const message = told === null ? '' : `${key.name} ${entry.toString('base64')} ${ttlMs}`;
    const words = { keys: [this.#keyOf(key)], argv: [owner, over, entry, ttlMs, told ?? '', message] };
    return this.#parts.redis.try((client) => runScript(client, put, words));
  }

  #entryIn(key: MapKey, bytes: Buffer, leftMs: number): Entry<V> | { readonly kind: 'unreadable' } {
    const at = bytes.indexOf(' ');
    const owner = bytes.toString('latin1', 0, Math.max(0, at));
    const plain = open(this.#sealKey(key, owner), bytes.subarray(at + 1));
    try {
      const value = plain && this.#codec.read(plain);
      if (value !== null) return { kind: 'entry', value, owner, leftMs };
    } catch {
      // It was written in another form.
    }
    return { kind: 'unreadable' };
  }

  #keyOf({ name }: MapKey): string {
    return `sluice:{${this.#parts.name}:${name}}`;
  }

  #sealKey({ name, secret = '' }: MapKey, owner: string): Parameters<typeof seal>[0] {
    return { labelKey: this.#parts.labelKey, purpose: this.#parts.name, secret, name: `${name} ${owner}` };
  }
}

// The form in which Redis holds what would reveal something: encrypted and authenticated (AES-256-GCM) under a key that is derived (HKDF-SHA-256)
// from the label key and a secret that only those know who may read it

const ivBytes = 12;
const tagBytes = 16;
/** The tag length is stated, because Node would otherwise accept a shorter tag when it decrypts. */
const tagged = { authTagLength: tagBytes };

export interface SealKey {
  readonly labelKey: string;
  /** What is sealed, such as `token`: what was sealed for one purpose cannot be opened for another. */
  readonly purpose: string;
  readonly secret: string;
  /** Authenticated with the bytes: they cannot be opened under another name. */
  readonly name: string;
}

function seal(key: SealKey, plain: Buffer): Buffer {
  const iv = randomBytes(ivBytes);
  const cipher = createCipheriv('aes-256-gcm', cipherKey(key), iv, tagged);
  cipher.setAAD(Buffer.from(key.name, 'utf8'));
  return Buffer.concat([iv, cipher.update(plain), cipher.final(), cipher.getAuthTag()]);
}

/** `null` = not sealed by Sluice, sealed under another key or name, or damaged. */
export function open(key: SealKey, sealed: Buffer): Buffer | null {
  try {
    const end = sealed.length - tagBytes;
    const decipher = createDecipheriv('aes-256-gcm', cipherKey(key), sealed.subarray(0, ivBytes), tagged);
    decipher.setAAD(Buffer.from(key.name, 'utf8'));
    decipher.setAuthTag(sealed.subarray(end));
    return Buffer.concat([decipher.update(sealed.subarray(ivBytes, end)), decipher.final()]);
  } catch {
    return null;
  }
}

const cipherKey = ({ labelKey, purpose, secret }: SealKey): Buffer =>
  Buffer.from(hkdfSync('sha256', labelKey, secret, `sluice ${purpose}`, 32));
