/**
 * Scripts in Redis. The server knows each by its digest (`EVALSHA`, and `EVAL` where it does not have it), so that versions of this
 * service run their own side by side. What is read of a reply is checked here.
 */
import { readFileSync } from 'node:fs';
import type { RedisClient } from './connection.ts';

/** What a script is run on and with. A script always has the same number of keys. */
export interface ScriptWords {
  readonly keys: readonly string[];
  readonly argv: readonly (string | number | Buffer)[];
}

/** A script is in the file of its name in this folder, and runs behind `prelude.lua`. Its name tells it from others on the client. */
export interface ScriptFile {
  readonly folder: URL;
  readonly name: string;
  /** Texts of the reply are bytes; left out: they are strings. */
  readonly repliesInBytes?: true;
}

const prelude = readFileSync(new URL('prelude.lua', import.meta.url), 'utf8');

export async function runScript(
  client: RedisClient,
  { folder, name, repliesInBytes }: ScriptFile,
  { keys, argv }: ScriptWords,
): Promise<unknown> {
  const method = `sluice_${name}`;
  if (Reflect.get(client, method) === undefined) {
    const lua = prelude + readFileSync(new URL(`${name}.lua`, folder), 'utf8');
    client.defineCommand(method, { lua, numberOfKeys: keys.length });
  }
  const command: unknown = Reflect.get(client, repliesInBytes === true ? `${method}Buffer` : method);
  if (typeof command !== 'function') throw new TypeError('a script is not defined');
  return Reflect.apply(command, client, [...keys, ...argv]);
}

// A reply of the right type that says nothing our scripts say: somebody else answered, or a script has a bug. It never
// means "granted"; `health.ts` treats it like an absence of Redis.

export class MalformedReply extends TypeError {
  constructor() {
    super('malformed reply of a limiter script');
    this.name = 'MalformedReply';
  }
}

/** Throws `MalformedReply`. */
export function malformed(): never {
  throw new MalformedReply();
}

/** The elements of a reply. */
export function listOf(value: unknown): readonly unknown[] {
  return Array.isArray(value) ? value : malformed();
}

export function textOf(value: unknown): string {
  return typeof value === 'string' ? value : malformed();
}

/** A finite number, sent as text or as Redis' own integer. */
export function numberOf(value: unknown): number {
  const read =
    typeof value === 'number' ? value : typeof value === 'string' && value !== '' ? Number(value) : NaN;
  return Number.isFinite(read) ? read : malformed();
}

/** A count, a time or a duration: not below zero. */
export function amountOf(value: unknown): number {
  const read = numberOf(value);
  return read >= 0 ? read : malformed();
}
