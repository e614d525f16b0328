/**
 * The commands this service defines on a connection: `apply` of the bucket scheduler, and the scripts of ceilings, presence, breakers, shared
 * quotas and controls. Redis
 * knows them by their digests: old and new replicas run their own side by side.
 */
import { readFileSync } from 'node:fs';
import type { ApplyCall } from './event-codec.ts';
import type { RedisClient } from '../client/connection.ts';
import { ScriptLibrary } from './script-library.ts';
import { buildScripts } from './scripts.ts';

/**
 * Tells versions apart in this process. The keys of ceilings, presence, breakers and controls carry none: what they mean stays the same
 * (`layout.test.ts`); those of a bucket carry the version of their layout (`keys.ts`).
 */
const version = 1;

const own = {
  consume: 2,
  giveback: 2,
  slots: 2,
  restore: 1,
  presence: 4,
  breaker: 3,
  quotas: 3,
  publish: 1,
  controls: 2,
} as const;
export type OwnScript = keyof typeof own;

const ownName = (script: OwnScript): string =>
  `sluice${script.charAt(0).toUpperCase()}${script.slice(1)}V${version}`;

const applyName = `sluiceApplyV${version}`;

/** By client; one that is not here (of a test) runs scripts only. */
const libraries = new WeakMap<RedisClient, ScriptLibrary>();

/** Defines every command on the client (each is EVALSHA with EVAL behind it), and the library that is preferred to them. */
export function defineCommands(client: RedisClient): void {
  const built = buildScripts();
  client.defineCommand(applyName, { lua: built.script, numberOfKeys: 4 });
  for (const script of [
    'consume',
    'giveback',
    'slots',
    'restore',
    'presence',
    'breaker',
    'quotas',
    'publish',
    'controls',
  ] as const) {
    const lua = readFileSync(new URL(`../lua/${script}.lua`, import.meta.url), 'utf8');
    client.defineCommand(ownName(script), { lua, numberOfKeys: own[script] });
  }
  libraries.set(client, new ScriptLibrary(client, built));
}

/** Applies events to a bucket: as a function of the library where the server has it. */
export async function runApply(client: RedisClient, { keys, argv }: ApplyCall): Promise<unknown> {
  const done = await libraries.get(client)?.run([...keys, ...argv]);
  return done === undefined || done === null ? invoke(client, applyName, [...keys, ...argv]) : done.reply;
}

/** Runs a script of ceilings, presence, breakers or controls. */
export const runOwn = (
  client: RedisClient,
  script: OwnScript,
  { keys, argv }: { readonly keys: readonly string[]; readonly argv: readonly string[] },
): Promise<unknown> => invoke(client, ownName(script), [...keys, ...argv]);

async function invoke(client: RedisClient, name: string, words: readonly string[]): Promise<unknown> {
  const command: unknown = Reflect.get(client, name);
  if (typeof command !== 'function') throw new TypeError('a command of the limiter is not defined');
  return Reflect.apply(command, client, words);
}
