import { describe, expect, test } from '@jest/globals';
import fc from 'fast-check';
import { PassingText } from '../../src/dispatch/passing-text.ts';

/** What is found of `name` in a text that comes in pieces of these sizes, over and over. */
function found(text: string, sizes: readonly number[], { name = '"usage', isLine = false } = {}): string[] {
  const all: string[] = [];
  const passing = new PassingText({ name, isLine, onFound: (around) => all.push(around) });
  const bytes = Buffer.from(text);
  for (let from = 0, n = 0; from < bytes.length; n += 1) {
    const size = sizes[n % sizes.length] ?? bytes.length;
    passing.read(bytes.subarray(from, from + size));
    from += size;
  }
  passing.flush();
  return all;
}

const filler = fc.stringMatching(/^[a-z{}:,\n" \\]{0,40}$/).map((unit) => unit.repeat(200));

describe('a member that is sought in a passing text', () => {
  test('is found with all of its value, however the text is cut', () => {
    const usage = '"usage": {"prompt_tokens": 12, "completion_tokens": 34}';
    fc.assert(
      fc.property(
        filler,
        filler,
        fc.array(fc.integer({ min: 1, max: 40_000 }), { minLength: 1, maxLength: 5 }),
        (head, tail, sizes) => {
          const all = found(head.replaceAll('"', '') + usage + tail.replaceAll('"', ''), sizes);
          expect(all).toHaveLength(1);
          expect(all[0]).toContain(usage);
        },
      ),
    );
  });

  test('is found as its whole line, where lines are sought', () => {
    const line = 'data: {"type":"error","error":{"code":429,"message":"later"}}';
    for (const end of ['\n', '\r', '\r\n\r\n']) {
      for (const size of [1, 2, 7, 64, 20_000]) {
        const text = `data: x${end}`.repeat(3_000) + line + end + `data: y${end}`.repeat(3_000);
        expect(found(text, [size], { name: '"error"', isLine: true })).toEqual([line]);
      }
    }
  });

  test('is given out as soon as its line is over', () => {
    const all: string[] = [];
    const passing = new PassingText({ name: '"error"', isLine: true, onFound: (line) => all.push(line) });
    passing.read(Buffer.from('data: {"error":'));
    expect(all).toEqual([]);
    passing.read(Buffer.from('1}\n'));
    expect(all).toEqual(['data: {"error":1}']);
  });

  test('is read first and last, where a text is full of it', () => {
    const each = (n: number): string => `{"usage":{"total_tokens":${n}}}\n`;
    const text = Array.from({ length: 50_000 }, (_, n) => each(n)).join('');
    const all = found(text, [65_536]);
    expect(all[0]).toContain('"total_tokens":0}');
    expect(all.at(-1)).toContain('"total_tokens":49999}');
  });
});

describe('a text that says nothing costs next to nothing', () => {
  const mib = 1024 * 1024;
  test.each([
    ['lines of one letter', 'a\n'],
    ['empty lines', '\n'],
    ['comments', ': OPENROUTER PROCESSING\n\n'],
    ['fields without a name', ': \n'],
    ['unknown fields', 'x-y: "usag"\n'],
    ['one line without end', 'data: '],
    ['content', 'data: {"choices":[{"delta":{"content":"\\"error\\": 429, \\"usage\\": {"}}]}\n\n'],
    ['events without data', 'event: error\nid: 7\nretry: soon\n\n'],
    ['carriage returns', '\r'],
    ['zeros', '\0'],
  ])('%s: nothing is read of them', (_name, unit) => {
    const text = unit.repeat(mib / unit.length);
    expect(found(text, [65_536], { name: '"error"', isLine: true })).toEqual([]);
  });

  test.each([
    ['names alone', '"usage'],
    ['broken objects', '"usage":{x}'],
    ['small objects', '"usage":{}\n'],
    ['nulls', 'data: {"usage":null}\n\n'],
    ['open objects', '"usage":{'],
  ])('of a text full of %s a bounded part is read', (_name, unit) => {
    const text = unit.repeat(mib / unit.length);
    for (const size of [unit.length, 4_099, 65_536]) {
      for (const isLine of [true, false]) {
        const all = found(text, [size], { isLine });
        expect(all.length).toBeLessThanOrEqual(32 + mib / 4_096 + 1);
        expect(all.join('').length).toBeLessThan(1.5 * mib);
      }
    }
  });
});
