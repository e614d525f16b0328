/**
 * The shape of the configuration file: every key, its default, its description; each section that is long has a file
 * `<section>-schema.ts`. What a value may be is in `values.ts`, rules between values in `cross-checks.ts`, the meaning
 * of absent keys in `build.ts`. The published JSON Schema is generated from here, so a description is documentation.
 * Invariant: unknown keys are refused everywhere.
 */
import { z } from 'zod';
import { upstreamNamePattern } from './names.ts';
import { idempotency } from './idempotency-schema.ts';
import { redis } from './redis-schema.ts';
import { server } from './server-schema.ts';
import { upstream } from './upstream-schema.ts';
import { secret, section } from './values.ts';
import { workspace } from './workspace-schema.ts';

const labelKey = secret()
  .refine((text) => text.trim() === '' || text.length >= 16, {
    message: 'is shorter than 16 characters',
    params: { fix: 'use a random secret, for instance of: openssl rand -hex 32' },
  })
  .optional()
  .describe(
    'Secret for workspace labels and keyed digests. Required with redis; else a random one per process.',
  );

/** The whole file. */
export const fileSchema = section({
  server: server.prefault({}),
  redis: redis.optional().describe('Leave out for the embedded limiter of one process.'),
  privacy: section({ labelKey }).prefault({}),
  log: section({
    level: z
      .enum(['debug', 'info', 'warn', 'error', 'silent'])
      .default('info')
      .describe('Least level that is written.'),
    sampleSuccesses: z
      .number()
      .min(0)
      .max(1)
      .default(1)
      .describe('Share of successful calls that get a log line.'),
  }).prefault({}),
  idempotency: idempotency.prefault({}),
  upstreams: z
    .record(z.string(), upstream)
    .meta({ minProperties: 1, propertyNames: { pattern: upstreamNamePattern.source } })
    .describe('APIs behind Sluice, by name.'),
  workspaces: z
    .record(z.string(), workspace)
    .meta({ propertyNames: { minLength: 1, maxLength: 128 } })
    .describe('Callers, by id. {} lets nobody call.'),
});

/** The file after defaults of single keys; absent keys that depend on others are still absent. */
export type FileInput = z.output<typeof fileSchema>;
export type RedisInput = NonNullable<FileInput['redis']>;
export type UpstreamInput = FileInput['upstreams'][string];
export type WorkspaceInput = FileInput['workspaces'][string];
export type CredentialInput = NonNullable<UpstreamInput['credential']>;
