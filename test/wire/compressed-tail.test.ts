import { randomBytes } from 'node:crypto';
import { Readable } from 'node:stream';
import { gzipSync } from 'node:zlib';
import { expect, test } from '@jest/globals';
import { withTail } from '../../src/dispatch/inspect.ts';

async function bytesOf(body: Readable): Promise<number> {
  let bytes = 0;
  for await (const chunk of body) if (Buffer.isBuffer(chunk)) bytes += chunk.length;
  return bytes;
}
/** Resolves when everything that was under way in zlib's threads has had its turn. */
const settled = (): Promise<void> => new Promise((resolve) => setTimeout(resolve, 50));

test('the end of a compressed body is decoded while the body is delivered', async () => {
  let tail = '';
  const packed = gzipSync('x'.repeat(100_000) + 'the end');
  expect(await bytesOf(withTail(Readable.from([packed]), 'gzip', (text) => (tail = text)))).toBe(
    packed.length,
  );
  while (tail === '') await settled();
  expect(tail).toHaveLength(8 * 1024);
  expect(tail.endsWith('the end')).toBe(true);
});

test('a compressed body that comes faster than it can be decoded is delivered, and is not kept in memory', async () => {
  let tails = 0;
  const packed = gzipSync(randomBytes(4 * 1024 * 1024).toString('hex'));
  const chunks = Array.from({ length: Math.ceil(packed.length / 65_536) }, (_, at) =>
    packed.subarray(at * 65_536, (at + 1) * 65_536),
  );
  expect(await bytesOf(withTail(Readable.from(chunks), 'gzip', () => (tails += 1)))).toBe(packed.length);
  for (let n = 0; n < 10; n += 1) await settled();
  expect(tails).toBe(0);
});
