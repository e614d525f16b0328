/**
 * The Redis scripts of the bucket scheduler: their sources with includes resolved, and the names under which they are
 * defined.
 *
 * A line `-- @include name` is replaced by `lua/name.lua`, once per script: a name that is not there and a file that
 * includes itself are errors when the process starts, not when the first call comes. Nothing but such files ever
 * becomes Lua source; what a call carries goes in KEYS and ARGV (`script-calls.ts`).
 */
import { readFileSync } from 'node:fs';
import { scriptNames, type ScriptName } from './script-calls.ts';

/**
 * Tells versions apart in this process and in what a person reads. Redis knows a script by its digest, so that old and
 * new replicas run their own side by side; what both read is told apart by `layoutVersion` (`keys.ts`).
 */
export const scriptVersion = 1;

/** A script as ioredis' `defineCommand` wants it. Every script takes the same keys (`keys.ts`). */
export interface Script {
  readonly name: ScriptName;
  /** Versioned command name: `sluiceAdmitV1`. */
  readonly command: string;
  readonly lua: string;
  readonly numberOfKeys: 4;
}

/** Text of `lua/<name>.lua`, or `null` when there is no such file. */
export type ReadLua = (name: string) => string | null;

/** `sluiceAdmitV1` for `admit`. */
export const commandName = (name: ScriptName): string =>
  `sluice${name.charAt(0).toUpperCase()}${name.slice(1)}V${scriptVersion}`;

/** All scripts. Throws when a file is missing, an include is unknown, or a file includes itself. */
export function loadScripts(read: ReadLua = readLuaFile): readonly Script[] {
  return scriptNames.map((name) => ({
    name,
    command: commandName(name),
    lua: resolveIncludes(name, read),
    numberOfKeys: 4,
  }));
}

/** The source of one script with every include in place; each file is included once, where it is first named. */
export function resolveIncludes(name: string, read: ReadLua): string {
  const included = new Set<string>();
  const open: string[] = [];
  const resolve = (file: string): string => {
    if (open.includes(file)) throw new Error(`lua: ${[...open, file].join(' includes ')}`);
    if (included.has(file)) return '';
    const source = read(file);
    if (source === null) throw new Error(`lua: no file ${file}.lua (${open.join(' includes ') || 'script'})`);
    open.push(file);
    const resolved = source.replace(/^-- @include ([\w-]+)$/gm, (_line, wanted: string) => resolve(wanted));
    open.pop();
    included.add(file);
    return resolved;
  };
  return resolve(name);
}

function readLuaFile(name: string): string | null {
  try {
    return readFileSync(new URL(`./lua/${name}.lua`, import.meta.url), 'utf8');
  } catch (failure) {
    if (failure instanceof Error && 'code' in failure && failure.code === 'ENOENT') return null;
    throw failure;
  }
}

export * from './script-calls.ts';
export * from './script-replies.ts';
