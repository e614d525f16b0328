/**
 * Scripts in Redis. The server knows each by its digest (`EVALSHA`, and `EVAL` where it does not have it), so that versions of this
 * service run their own side by side.
 */
import { readFileSync } from 'node:fs';
import type { RedisClient } from './connection.ts';

/** What a script is run on and with. A script always has the same number of keys. */
export interface ScriptWords {
  readonly keys: readonly string[];
  readonly argv: readonly (string | number)[];
}

/** Runs the script in this file. Its name tells it from others on the client. */
export async function runScript(
  client: RedisClient,
  file: URL,
  { keys, argv }: ScriptWords,
): Promise<unknown> {
  const name = `sluice_${file.pathname.slice(file.pathname.lastIndexOf('/') + 1, -'.lua'.length)}`;
  if (Reflect.get(client, name) === undefined) {
    client.defineCommand(name, { lua: readFileSync(file, 'utf8'), numberOfKeys: keys.length });
  }
  const command: unknown = Reflect.get(client, name);
  if (typeof command !== 'function') throw new TypeError('a script is not defined');
  return Reflect.apply(command, client, [...keys, ...argv]);
}
