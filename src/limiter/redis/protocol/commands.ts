/**
 * The commands this service defines on a connection: `apply` of the bucket scheduler and `consume` of the ceilings, and the scripts of
 * presence, breakers, shared quotas and controls. Redis knows them by their digests: old and new replicas run their own side by
 * side.
 */
import { readFileSync } from 'node:fs';
import type { ApplyCall } from './event-codec.ts';
import type { RedisClient } from '../../../redis/connection.ts';
import { ScriptLibrary } from './script-library.ts';
import { buildScripts, libraryCommands, type LibraryCommand } from './scripts.ts';

/**
 * Tells versions apart in this process. The keys of ceilings, presence, breakers and controls carry none: what they mean stays the same
 * (`layout.test.ts`); those of a bucket carry the version of their layout (`keys.ts`).
 */
const version = 1;

const own = {
  giveback: 2,
  slots: 2,
  restore: 1,
  presence: 4,
  breaker: 3,
  quotas: 3,
  publish: 1,
  controls: 2,
  takelane: 1,
  freelane: 1,
} as const;
export type OwnScript = keyof typeof own;

const ownName = (script: OwnScript | LibraryCommand): string =>
  `sluice${script.charAt(0).toUpperCase()}${script.slice(1)}V${version}`;

const { library, commands } = buildScripts();

/** By client; one that is not here (of a test) runs scripts only. */
const libraries = new WeakMap<RedisClient, ScriptLibrary>();

/** Defines every command on the client (each is EVALSHA with EVAL behind it), and the library that is preferred to them. */
export function defineCommands(client: RedisClient): void {
  for (const command of libraryCommands) {
    const { script, numberOfKeys } = commands[command];
    client.defineCommand(ownName(command), { lua: script, numberOfKeys });
  }
  for (const script of [
    'giveback',
    'slots',
    'restore',
    'presence',
    'breaker',
    'quotas',
    'publish',
    'controls',
    'takelane',
    'freelane',
  ] as const) {
    const lua = readFileSync(new URL(`../lua/${script}.lua`, import.meta.url), 'utf8');
    client.defineCommand(ownName(script), { lua, numberOfKeys: own[script] });
  }
  libraries.set(client, new ScriptLibrary(client, { library }));
}

/** Applies events to a bucket. */
export const runApply = (client: RedisClient, call: ApplyCall): Promise<unknown> =>
  runInLibrary(client, 'apply', call);

interface Words {
  readonly keys: readonly string[];
  readonly argv: readonly string[];
}

/** Runs a command as a function of the library where the server has it, as a script elsewhere. */
export async function runInLibrary(
  client: RedisClient,
  command: LibraryCommand,
  { keys, argv }: Words,
): Promise<unknown> {
  const words = [...keys, ...argv];
  const done = await libraries.get(client)?.run(commands[command], words);
  return done === undefined || done === null ? invoke(client, ownName(command), words) : done.reply;
}

/** Runs a script of ceilings, presence, breakers or controls. */
export const runOwn = (client: RedisClient, script: OwnScript, { keys, argv }: Words): Promise<unknown> =>
  invoke(client, ownName(script), [...keys, ...argv]);

async function invoke(client: RedisClient, name: string, words: readonly string[]): Promise<unknown> {
  const command: unknown = Reflect.get(client, name);
  if (typeof command !== 'function') throw new TypeError('a command of the limiter is not defined');
  return Reflect.apply(command, client, words);
}
