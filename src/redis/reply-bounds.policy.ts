/**
 * Bounds of what Redis may say, checked on the bytes before they are decoded: RESP3 as its specification has it, but
 * without streamed types and attributes, which Redis does not send.
 *
 * Owns: following lines, bodies and counts through chunks that may end anywhere. Does not own: values. Keeps: what a
 * decoder has to hold is in proportion to the bytes that came, and no reply is longer than `maxBytes`.
 */

/** Elements that counts may claim before they come. 8 MB of references; the longest replies have some thousands. */
const maxOwed = 1_000_000;
/** The largest reply, with everything nested in it. */
const maxBytes = 64 * 1024 * 1024;
/** Digits of a length or a count: no real one has more. */
const maxDigits = 12;

const cr = 13;
const lf = 10;
const minus = 45;
const zero = 48;
const nine = 57;

const codes = (types: string): ReadonlySet<number> =>
  new Set(Array.from(types, (type) => type.charCodeAt(0)));
const simple = codes('+-:,#_(');
const bodies = codes('$=!');
const lists = codes('*~>');
const map = '%'.charCodeAt(0);
const verbatim = '='.charCodeAt(0);
/** The nulls of RESP2. */
const nullable = codes('$*');
/** How many characters stand on the lines of booleans and nulls: the decoder counts instead of looking. */
const fixed = new Map([
  ['#'.charCodeAt(0), 1],
  ['_'.charCodeAt(0), 0],
]);

export class ReplyBounds {
  /** Bytes of a body, with its line end, that are still to come. */
  #body = 0;
  /** Type of the line that is being read; 0 between two of them. */
  #type = 0;
  #length = 0;
  #digits = 0;
  #isNegative = false;
  /** The last byte of the line was the first half of its end. */
  #isEnding = false;
  /** Elements still to come until the reply is whole. */
  #owed = 0;
  #size = 0;

  /** Takes the next bytes of a connection. Throws `RangeError` when they are out of bounds or no RESP. */
  read(bytes: Uint8Array): void {
    for (let at = 0; at < bytes.length; at += 1) {
      const byte = bytes[at] ?? 0;
      if (this.#body > 0) {
        const step = Math.min(this.#body, bytes.length - at);
        this.#body -= step;
        this.#size += step;
        at += step - 1;
      } else {
        if (this.#type === 0) this.#begin(byte);
        else this.#line(byte);
        this.#size += 1;
      }
      if (this.#size > maxBytes) throw new RangeError('a reply of Redis is out of bounds');
    }
  }

  #begin(byte: number): void {
    if (!simple.has(byte) && !bodies.has(byte) && !lists.has(byte) && byte !== map) throw malformed();
    if (this.#owed === 0) this.#size = 0;
    this.#type = byte;
    this.#length = 0;
    this.#digits = 0;
    this.#isNegative = false;
    this.#isEnding = false;
  }

  #line(byte: number): void {
    if (this.#isEnding) {
      if (byte !== lf) throw malformed();
      return this.#end();
    }
    if (byte === cr) this.#isEnding = true;
    else if (simple.has(this.#type)) this.#digits += 1;
    else if (byte === minus && this.#digits === 0 && !this.#isNegative) this.#isNegative = true;
    else if (byte >= zero && byte <= nine && this.#digits < maxDigits) {
      this.#length = this.#length * 10 + (byte - zero);
      this.#digits += 1;
    } else throw malformed();
  }

  #end(): void {
    const [type, length] = [this.#type, this.#length];
    this.#owed = Math.max(0, this.#owed - 1);
    if (simple.has(type)) {
      const wanted = fixed.get(type);
      if (wanted !== undefined && this.#digits !== wanted) throw malformed();
    } else {
      const isNull = nullable.has(type) && this.#digits === 1 && length === 1;
      if (this.#isNegative ? !isNull : this.#digits === 0) throw malformed();
      if (type === verbatim && length < 4) throw malformed();
      if (!this.#isNegative && bodies.has(type)) this.#body = length + 2;
      else if (!this.#isNegative) this.#owed += type === map ? 2 * length : length;
    }
    if (this.#owed > maxOwed || this.#body > maxBytes)
      throw new RangeError('a reply of Redis is out of bounds');
    this.#type = 0;
  }
}

const isWithin = (value: unknown, most: number): boolean =>
  typeof value === 'number' && Number.isInteger(value) && value >= 0 && value <= most;

/** True when a reply has the shape of `CLUSTER SLOTS`: ranges of slots, each with its nodes (a host may be unknown). */
export const isSlots = (reply: unknown): boolean =>
  Array.isArray(reply) &&
  reply.every(
    (range: unknown) =>
      Array.isArray(range) &&
      range.slice(0, 2).length === 2 &&
      range.slice(0, 2).every((slot) => isWithin(slot, 16_383)) &&
      range
        .slice(2)
        .every(
          (node: unknown) =>
            Array.isArray(node) &&
            (node[0] === null || typeof node[0] === 'string') &&
            isWithin(node[1], 65_535),
        ),
  );

const malformed = (): RangeError => new RangeError('a reply of Redis is malformed');
