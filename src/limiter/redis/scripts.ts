/**
 * The scripts of ceilings, presence and the guard of lanes. The names of their keys carry no
 * version of this service: what they mean stays the same (`layout.test.ts`).
 */
import type { RedisClient } from '../../redis/connection.ts';
import { runScript, type ScriptWords } from '../../redis/scripts.ts';

export type OwnScript = 'consume' | 'freelane' | 'giveback' | 'presence' | 'restore' | 'slots' | 'takelane';

const folder = new URL('lua/', import.meta.url);

export const runOwn = (client: RedisClient, name: OwnScript, words: ScriptWords): Promise<unknown> =>
  runScript(client, { folder, name }, words);
