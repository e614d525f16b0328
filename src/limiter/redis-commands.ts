/**
 * The commands this service defines on a connection: the scheduler's scripts, and those of ceilings and presence. Redis
 * knows them by their digests: old and new replicas run their own side by side.
 */
import { readFileSync } from 'node:fs';
import type { RedisClient } from './redis-connection.ts';
import { commandName, loadScripts, type ScriptCall } from './scripts.ts';

/** As `scriptVersion`, for these scripts. Their keys carry none: what they mean stays the same (`layout.test.ts`). */
const version = 1;

const own = { consume: 2, giveback: 2, places: 2, restore: 1, presence: 3 } as const;
export type OwnScript = keyof typeof own;

const ownName = (script: OwnScript): string =>
  `sluice${script.charAt(0).toUpperCase()}${script.slice(1)}V${version}`;

/** Defines every command on the client; each is EVALSHA with EVAL behind it. */
export function defineCommands(client: RedisClient): void {
  for (const { command, lua, numberOfKeys } of loadScripts()) {
    client.defineCommand(command, { lua, numberOfKeys });
  }
  for (const script of ['consume', 'giveback', 'places', 'restore', 'presence'] as const) {
    const lua = readFileSync(new URL(`./lua/${script}.lua`, import.meta.url), 'utf8');
    client.defineCommand(ownName(script), { lua, numberOfKeys: own[script] });
  }
}

/** Runs a script of the scheduler. */
export const runScript = (client: RedisClient, { script, keys, argv }: ScriptCall): Promise<unknown> =>
  invoke(client, commandName(script), [...keys, ...argv]);

/** Runs a script of ceilings or presence. */
export const runOwn = (
  client: RedisClient,
  script: OwnScript,
  keys: readonly string[],
  argv: readonly string[],
): Promise<unknown> => invoke(client, ownName(script), [...keys, ...argv]);

async function invoke(client: RedisClient, name: string, words: readonly string[]): Promise<unknown> {
  const command: unknown = Reflect.get(client, name);
  if (typeof command !== 'function') throw new TypeError('a command of the limiter is not defined');
  return Reflect.apply(command, client, words);
}
