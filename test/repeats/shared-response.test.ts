import { PassThrough, type Readable } from 'node:stream';
import { expect, test } from '@jest/globals';
import type { Outcome } from '../../src/call.ts';
import { KeptBody } from '../../src/repeats/kept-responses.ts';
import { SharedResponse } from '../../src/repeats/shared-response.ts';
import { until } from '../support/until.ts';

const kibibyte = 1_024;

function shared(maxKeptBytes: number) {
  const body = new PassThrough();
  const kept = new KeptBody(maxKeptBytes, { take: () => true, give() {} });
  const outcome = { status: 200, fields: [], body, onEnd() {} } as unknown as Outcome & {
    readonly body: Readable;
  };
  const response = new SharedResponse(outcome, { kept, goesOn: () => true, onBody() {} });
  const reader = (): Readable => response.copy(() => {}).body as Readable;
  return { body, response, reader };
}

/** Counts what arrives at a client that reads. */
function reading(stream: Readable): () => number {
  let bytes = 0;
  stream.on('data', (chunk: Buffer) => (bytes += chunk.length));
  return () => bytes;
}

test('a client that reads nothing does not hold up its repeat while the response is kept whole', async () => {
  const { body, reader } = shared(1_024 * kibibyte);
  reader();
  const bytes = reading(reader());
  for (let at = 0; at < 8; at += 1) body.write(Buffer.alloc(64 * kibibyte));
  await until(() => bytes() === 512 * kibibyte);
});

test('a single client that does not read holds the upstream up, and so does the slowest above what is kept', async () => {
  const single = shared(1_024 * kibibyte);
  single.reader();
  const several = shared(64 * kibibyte);
  several.reader();
  reading(several.reader());
  for (const { body } of [single, several]) {
    for (let at = 0; at < 8; at += 1) body.write(Buffer.alloc(64 * kibibyte));
    await until(() => body.isPaused() && body.readableLength > 0);
  }
});

test('a client that comes amid the response gets it from its first byte, and one that comes when it is too large cannot', async () => {
  const { body, response, reader } = shared(4 * kibibyte);
  const first = reading(reader());
  body.write('a'.repeat(3 * kibibyte));
  await until(() => first() === 3 * kibibyte);
  expect(response.isWhole).toBe(true);
  const late = reading(reader());
  body.write('b'.repeat(2 * kibibyte));
  await until(() => late() === 5 * kibibyte);
  expect(response.isWhole).toBe(false);
});
