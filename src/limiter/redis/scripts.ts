/**
 * The scripts of ceilings, presence and the guard of lanes. The names of their keys carry no
 * version of this service: what they mean stays the same (`layout.test.ts`).
 */
import type { RedisClient } from '../../redis/connection.ts';
import { runScript, type ScriptWords } from '../../redis/scripts.ts';

export type OwnScript = 'consume' | 'freelane' | 'giveback' | 'presence' | 'restore' | 'slots' | 'takelane';

const folder = new URL('lua/', import.meta.url);

/** A key that holds a value of another type, which somebody else has put there, is replaced. */
export async function runOwn(client: RedisClient, name: OwnScript, words: ScriptWords): Promise<unknown> {
  try {
    return await runScript(client, { folder, name }, words);
  } catch (failure) {
    if (!String(failure).includes('WRONGTYPE')) throw failure;
    for (const key of words.keys)
      await runScript(client, { folder, name: 'replace' }, { keys: [key], argv: [typeOf(key)] });
    return runScript(client, { folder, name }, words);
  }
}

const typeOf = (key: string): string => (/sends:|replicas$/.test(key) ? 'zset' : 'string');
