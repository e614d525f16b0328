/** `idempotency`: for how long, and up to which size, responses are kept for repeats with the same key. */
import { z } from 'zod';
import { section } from './values.ts';

const mebibyte = 1_048_576;

const bytes = () => z.number().int().min(0).max(Number.MAX_SAFE_INTEGER);

export const idempotency = section({
  keepSeconds: z
    .number()
    .int()
    .min(0)
    .max(86_400)
    .default(600)
    .describe('How long the response to a call with an idempotency key is kept. 0: not at all.'),
  maxBytes: bytes()
    .max(64 * mebibyte)
    .default(mebibyte)
    .describe('Larger responses are not kept; a repeat gets 409 idempotency_conflict.'),
  maxWorkspaceBytes: bytes()
    .default(16 * mebibyte)
    .describe('Bytes kept for one workspace at most; the oldest responses go first.'),
  maxTotalBytes: bytes()
    .default(64 * mebibyte)
    .describe('Bytes kept in all at most, with redis over all replicas.'),
});
