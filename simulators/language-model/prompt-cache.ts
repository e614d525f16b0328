/**
 * The cache of prompts that a call marks with `cache_control`: what of a prompt was there, and what it leaves there.
 *
 * Owns: which beginnings are kept, per organisation and model, and since when they were used last. Does not own: what a call is
 * charged for it (`cost.ts`). Invariant: a prompt is kept as a digest only.
 */
import { createHash, type Hash } from 'node:crypto';
import { listOf, objectOf, textOf, type Json } from '../json.ts';

/** Tokens of one prompt. */
export interface CacheUse {
  readonly read: number;
  readonly written: number;
}

export const noCacheUse: CacheUse = { read: 0, written: 0 };

export interface CacheTime {
  readonly now: number;
  /** How long a beginning is kept from its last use, milliseconds. */
  readonly lifeMs: number;
}

interface Mark {
  readonly key: string;
  readonly tokens: number;
}

export class PromptCache {
  /** When each beginning was last used, monotonic milliseconds. */
  readonly #usedAt = new Map<string, number>();

  /** What a call with this body would read and write; nothing changes, because it may be refused. */
  read(scope: string, body: Json, { now, lifeMs }: CacheTime): CacheUse {
    const marks = marksOf(scope, body);
    const kept = marks.filter(({ key }) => now - (this.#usedAt.get(key) ?? -Infinity) < lifeMs);
    const read = Math.max(0, ...kept.map(({ tokens }) => tokens));
    return { read, written: (marks.at(-1)?.tokens ?? 0) - read };
  }

  /** The call runs: every beginning that it marks is kept from now on. */
  keep(scope: string, body: Json, now: number): void {
    for (const { key } of marksOf(scope, body)) this.#usedAt.set(key, now);
  }

  /** Forgets every prompt. */
  clear(): void {
    this.#usedAt.clear();
  }
}

/** The beginnings of a prompt that end in a mark, shortest first. */
function marksOf(scope: string, body: Json): readonly Mark[] {
  const hash = createHash('sha256').update(scope);
  const marks: Mark[] = [];
  const seen = { chars: 0 };
  for (const part of [body['system'], body['messages']]) gather(part, hash, seen, marks, 0);
  return marks;
}

function gather(value: unknown, hash: Hash, seen: { chars: number }, marks: Mark[], depth: number): void {
  if (depth > 8) return;
  if (typeof value === 'string') {
    hash.update(value);
    seen.chars += value.length;
  } else if (Array.isArray(value)) {
    for (const item of listOf(value)) gather(item, hash, seen, marks, depth + 1);
  } else {
    const part = objectOf(value) ?? {};
    hash.update(textOf(part['role']) ?? '');
    for (const name of ['text', 'content']) gather(part[name] ?? [], hash, seen, marks, depth + 1);
    if (objectOf(part['cache_control']) === undefined) return;
    marks.push({ key: hash.copy().digest('base64'), tokens: Math.floor(seen.chars / 4) });
  }
}
