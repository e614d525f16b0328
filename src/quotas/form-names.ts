/**
 * Which name the responses of an upstream give to the quota of calls of a form: method and path without what names single things.
 *
 * What a path names cannot always be told from what it does (`/repos/acme/shop/issues`). So a form that no response has named yet is
 * taken for one of those beside it, where most of them have the same name; the response to its first call sets that right.
 * Known to each replica for itself, and bounded.
 */
import { LRUCache } from 'lru-cache';

/** Forms, and beginnings of forms, that are known at most; those that are unused for longest are forgotten first. */
const maxForms = 10_000;
/** So many more forms must have a name than another one before it is taken for that of all that begin alike. */
const minVotes = 3;

interface Votes {
  readonly name: string;
  readonly votes: number;
}

export class FormNames {
  readonly #names = new LRUCache<string, string>({ max: maxForms });
  /** By the beginning of forms up to a segment: the name that most of them have, and for how many more it speaks. */
  readonly #beginnings = new LRUCache<string, Votes>({ max: maxForms });

  /** The name of the quota that calls of this form count against; `null` = no response shows it. */
  nameOf(upstream: string, form: string): string | null {
    const known = this.#names.get(`${upstream} ${form}`);
    if (known !== undefined) return known;
    for (const beginning of beginningsOf(form)) {
      const most = this.#beginnings.get(`${upstream} ${beginning}`);
      if (most !== undefined && most.votes >= minVotes) return most.name;
    }
    return null;
  }

  /** A response to a call of this form has named the quota. */
  learn(upstream: string, form: string, name: string): void {
    const key = `${upstream} ${form}`;
    if (this.#names.get(key) === name) return;
    this.#names.set(key, name);
    for (const beginning of beginningsOf(form)) {
      const at = `${upstream} ${beginning}`;
      this.#beginnings.set(at, counted(this.#beginnings.get(at), name));
    }
  }
}

/** Each other name takes a vote away, so that the name of most is left (Boyer and Moore). */
function counted(before: Votes | undefined, name: string): Votes {
  if (before === undefined || (before.votes === 0 && before.name !== name)) return { name, votes: 1 };
  return { ...before, votes: before.votes + (before.name === name ? 1 : -1) };
}

/** The form up to each of its segments but the last, longest first; at least method and one segment. */
function beginningsOf(form: string): readonly string[] {
  const parts = form.split('/');
  return Array.from({ length: Math.max(0, parts.length - 2) }, (_, cut) =>
    parts.slice(0, parts.length - 1 - cut).join('/'),
  ).filter((beginning) => beginning.includes('/'));
}
