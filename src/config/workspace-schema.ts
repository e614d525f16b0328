/** `workspaces.<id>`: who may call, and how much. What its names must refer to is judged in `workspace-checks.ts`. */
import { z } from 'zod';
import { account, credential, shortForm } from './credential-schema.ts';
import { count, expires, hash, keyId, rate, section } from './values.ts';

const perUpstream = (text: string) =>
  z
    .union([count(), z.literal('none'), z.record(z.string(), z.union([count(), z.literal('none')]))])
    .optional()
    .describe(`${text} One number counts for each upstream alone; "none" = no ceiling.`);

/** One workspace. */
export const workspace = section({
  keys: z
    .array(z.union([hash, section({ hash, id: keyId.optional(), expires: expires.optional() })]))
    .describe(
      'Valid API keys, as hashes. Several may be valid at once, for rotation; [] takes the last one away.',
    ),
  upstreams: z
    .array(z.string())
    .min(1)
    .optional()
    .describe('Upstreams this workspace may call. Default: all.'),
  requestsPerMinute: perUpstream('Own ceiling in every 60 s window, by upstream.'),
  requestsPerDay: perUpstream('Own ceiling per 24 h, by upstream.'),
  weight: rate().default(1).describe('Share of a bucket relative to other workspaces that wait for it.'),
  credentials: z
    .record(z.string(), credential(shortForm))
    .optional()
    .describe('Own upstream credentials, by upstream.'),
  accounts: z
    .record(z.string(), account)
    .optional()
    .describe('Names of the quotas behind those credentials, by upstream.'),
});
