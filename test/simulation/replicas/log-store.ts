/** Logs in the Redis of a history: what the scripts of `src/log/lua/` do, an array of entries and a head for each log, and snapshots. */
import { markOf } from '../../../src/log/redis-commands.ts';

/** A state as a replica has written it down, after the entry with this sequence and mark. */
export interface Snapshot extends Place {
  /** Empty: a new one. */
  readonly text: string;
}

interface LogListener {
  onBegin(log: string, copy: Snapshot): void;
  onSaved(log: string, copy: Snapshot): void;
  onEntry(log: string, entry: { readonly channel: string; readonly text: string }): void;
}

/** The server that runs a command, and its clock. Milliseconds. */
interface Ran {
  readonly clock: number;
  readonly server: string;
}

interface Place {
  readonly sequence: number;
  readonly mark: string;
}

interface Head {
  readonly life: string;
  readonly born: number;
  readonly began: number;
  sequence: number;
  mark: string;
  term: number;
  termAt: number;
  at: number;
  clock: number;
  server: string;
  /** The entries after `base`: as of the snapshot before the latest, so that whoever is a little behind can catch up. */
  entries: { readonly sequence: number; readonly mark: string; readonly text: string }[];
  base: Place;
  saved: Snapshot & { readonly at: string; readonly term: string };
  savingAt: number;
}

const settlingMs = 1_300;
const givesWayMs = 10_000;
const maxEntries = 100;
/** A snapshot is due after so many entries, and no sooner than after this time: rare in Redis, frequent where joining is to be tried. */
const saveAfter = 40;
const saveEveryMs = 500;

export class LogStore {
  readonly #listener: LogListener;
  readonly #heads = new Map<string, Head>();

  constructor(listener: LogListener) {
    this.#listener = listener;
  }

  lose(): void {
    this.#heads.clear();
  }

  /** The log's time; `null` = there is no such log. */
  now(log: string, clock: number): number | null {
    const head = [...this.#heads].find(([key]) => key.startsWith(`sluice:{${log}}:`))?.[1];
    return head === undefined ? null : head.at + Math.max(0, clock - head.clock);
  }

  execute(command: string, words: readonly string[], ran: Ran): unknown {
    if (command === 'sluice_append') return this.#append(words, ran);
    if (command === 'sluice_begin') return this.#begin(words, ran);
    if (command === 'sluice_saved') return this.#saved(words);
    if (command === 'sluice_read') return this.#read(words);
    throw new Error(`the simulated Redis has no ${command}`);
  }

  #append([key = '', , ...argv]: readonly string[], { clock, server }: Ran): unknown[] {
    const [life = '', sequence, mark, replica, batch = '', events, channel = '', maxMs, returns] = argv;
    const known = Number(sequence);
    const head = this.#heads.get(key);
    if (head === undefined) return ['none', ''];
    if (known > head.sequence) {
      const givesWay = head.began === 0 && clock - head.born < givesWayMs;
      return [head.life === life || givesWay ? 'short' : 'fork', head.life];
    }
    const { base } = head;
    if (known < base.sequence) return ['far', head.life];
    const last = known === base.sequence ? base.mark : head.entries[known - base.sequence - 1]?.mark;
    if (last !== mark) return ['fork', head.life];
    const missed = head.entries.slice(known - base.sequence, known - base.sequence + maxEntries);
    const texts = missed.map(({ text }) => text);
    const reply = (kind: string, appended = '', due = ''): unknown[] => {
      return [kind, head.life, texts, head.term, appended, due];
    };
    if (known + missed.length < head.sequence) return reply('more');
    const isThere = texts.some((text) => {
      const [, , , , by, number] = text.split(' ');
      return by === replica && Number(number) >= Number(batch);
    });
    if (events === '' || isThere) return reply('whole');
    head.at += Math.max(0, Math.min(clock - head.clock, Number(maxMs)));
    head.clock = clock;
    if (server !== head.server || (returns === '1' && head.at - head.termAt > settlingMs))
      Object.assign(head, { server, term: head.term + 1, termAt: head.at });
    const stamp = `${head.at} ${replica} ${batch}`;
    head.sequence += 1;
    head.mark = markOf(head.mark, stamp);
    const text = `${head.sequence} ${head.mark} ${head.term} ${stamp} ${events}`;
    texts.push(text);
    head.entries.push({ sequence: head.sequence, mark: head.mark, text });
    this.#listener.onEntry(logOfKey(key), { channel, text });
    const isDue = head.sequence - head.saved.sequence > saveAfter && clock - head.savingAt > saveEveryMs;
    if (isDue) head.savingAt = clock;
    return reply('whole', '1', isDue ? '1' : '');
  }

  #begin([key = '', , ...argv]: readonly string[], { clock, server }: Ran): string {
    const [over, life = '', sequence, mark = '', at, term, copy = '', forced] = argv;
    const head = this.#heads.get(key);
    const began = Number(sequence);
    if (head?.life === life) return 'begun';
    if (head !== undefined && (head.life !== over || (forced !== '1' && head.sequence >= began)))
      return 'other';
    const place = { sequence: began, mark };
    const from = at === '' ? clock : Number(at);
    const next = Math.max(Number(term), head?.term ?? 0) + 1;
    this.#heads.set(key, {
      ...place,
      life,
      began,
      born: clock,
      term: next,
      termAt: from,
      at: from,
      clock,
      server,
      entries: [],
      base: place,
      saved: { ...place, at: String(from), term: String(next), text: copy },
      savingAt: clock,
    });
    this.#listener.onBegin(logOfKey(key), { ...place, text: copy });
    return 'begun';
  }

  #saved([key = '', , ...argv]: readonly string[]): null {
    const [life, number, mark = '', at = '', term = '', text = ''] = argv;
    const head = this.#heads.get(key);
    const sequence = Number(number);
    if (head === undefined || head.life !== life || head.saved.sequence >= sequence) return null;
    const { saved } = head;
    head.base = { sequence: saved.sequence, mark: saved.mark };
    head.entries = head.entries.filter((entry) => entry.sequence > saved.sequence);
    head.saved = { sequence, mark, at, term, text };
    this.#listener.onSaved(logOfKey(key), { sequence, mark, text });
    return null;
  }

  #read([key = '']: readonly string[]): unknown[] {
    const head = this.#heads.get(key);
    if (head === undefined) return ['none', ''];
    const { life, saved } = head;
    return ['saved', life, saved.sequence, saved.mark, saved.term, saved.at, saved.text];
  }
}

const logOfKey = (key: string): string => key.slice('sluice:{'.length, key.indexOf('}'));
