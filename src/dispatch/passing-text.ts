/**
 * Finds members by name in a JSON text, or a stream of events, that passes in pieces. The text is not parsed: names are searched as
 * bytes, and only what stands around a name that was found is read, so that text without them costs next to nothing, whatever it is.
 *
 * Owns: the search over the borders of pieces, and its bounds. Does not own: what is found. Bounds: 16 KiB of memory; time in
 * proportion to the text; of names found, the first `readEach`, then one per 4 KiB of text, and the last one.
 */

/** Bytes around a name that are read: an object of usage, or an error, is smaller. */
const before = 512;
const behind = 4 * 1024;
const bufferBytes = 16 * 1024;
/** Names that are read one by one. A text may be full of them, and costs no more than other text then. */
const readEach = 32;

interface SoughtMember {
  /** How the quoted name begins, with its first quote: `"usage`. */
  readonly name: string;
  /** True: what is found ends with its line, and is given out then. False: it ends with the next name, or where enough has followed. */
  readonly isLine: boolean;
  /** What stands around a name, from 512 bytes before it to 4 KiB behind it at most. */
  readonly onFound: (text: string) => void;
}

/** `at`: place of a name that was found and is not given out yet; `null` = there is none. */
interface Search extends SoughtMember {
  at: number | null;
  /** How far the text has been searched. */
  until: number;
  left: number;
}

export class PassingText {
  readonly #buffer = Buffer.allocUnsafe(bufferBytes);
  #length = 0;
  readonly #searches: readonly Search[];

  constructor(...sought: readonly SoughtMember[]) {
    this.#searches = sought.map((member) => ({ ...member, at: null, until: 0, left: readEach }));
  }

  read(chunk: Buffer): void {
    for (let from = 0; from < chunk.length;) {
      if (this.#length === bufferBytes) this.#makeRoom();
      const taken = chunk.copy(this.#buffer, this.#length, from);
      from += taken;
      this.#length += taken;
      const text = this.#buffer.subarray(0, this.#length);
      for (const search of this.#searches) searchIn(text, search);
    }
  }

  /** Gives out what was found last. More may follow. */
  flush(): void {
    const text = this.#buffer.subarray(0, this.#length);
    for (const search of this.#searches) giveOut(text, search, this.#length);
  }

  /** Keeps the end of the text: what was found there is not given out yet. */
  #makeRoom(): void {
    const dropped = this.#length - before - behind;
    this.#buffer.copyWithin(0, dropped, this.#length);
    this.#length -= dropped;
    for (const search of this.#searches) {
      search.until = Math.max(0, search.until - dropped);
      if (search.at !== null) search.at -= dropped;
    }
  }
}

function searchIn(text: Buffer, search: Search): void {
  const { name, isLine } = search;
  for (;;) {
    const at = text.indexOf(name, search.until);
    if (at < 0) break;
    if (search.left === 0) {
      // Of very many names only the last one counts; it takes the place of the one before, which is not read.
      search.at = text.lastIndexOf(name);
    } else if (!isLine || search.at === null || endOfLine(text, search.at) < at) {
      giveOut(text, search, at);
      search.at = at;
    }
    search.until = (search.left === 0 ? (search.at ?? at) : at) + name.length;
  }
  // The text may end within a name.
  search.until = Math.max(search.until, text.length - name.length + 1);
  if (search.at === null) return;
  const isOver = isLine && search.left > 0 && endOfLine(text, search.at) < text.length;
  if (isOver || text.length - search.at >= behind) giveOut(text, search, text.length);
}

/** Gives out what was found, as far as it stands before `end`. */
function giveOut(text: Buffer, search: Search, end: number): void {
  const { at, isLine, onFound } = search;
  if (at === null) return;
  search.at = null;
  search.left = Math.max(0, search.left - 1);
  let from = Math.max(0, at - before);
  let to = Math.min(end, at + behind);
  if (isLine) {
    from = Math.max(from, text.lastIndexOf('\n', at) + 1, text.lastIndexOf('\r', at) + 1);
    to = Math.min(to, endOfLine(text, at));
  }
  onFound(text.toString('utf8', from, to));
}

/** Where the line around `at` ends, or the text. */
function endOfLine(text: Buffer, at: number): number {
  const ends = [text.indexOf('\n', at), text.indexOf('\r', at)].filter((end) => end >= 0);
  return Math.min(text.length, ...ends);
}
