/**
 * How a credential of an upstream is written: alone, or with the field that carries it and where its value comes from. An
 * upstream has one for everybody (`upstream-schema.ts`), a workspace its own (`workspace-schema.ts`). What the keys must be
 * together is judged in `credential-checks.ts`.
 */
import { z } from 'zod';
import { accountName, fieldName, fieldValue, secret, section, valuePrefix } from './values.ts';

const oauth = section({
  tokenUrl: z
    .string()
    .min(1)
    .describe('Token endpoint: https, or http where the upstream has allowPrivateAddresses.'),
  clientId: secret().describe('Id of the client.'),
  clientSecret: secret().describe('Secret of the client.'),
  scope: z.string().min(1).optional().describe('Scopes to ask for, separated by blanks.'),
  format: z.enum(['form', 'json']).default('form').describe('How the request’s body is written.'),
  clientAuth: z
    .enum(['body', 'basic'])
    .default('body')
    .describe('Where client id and secret stand: in the body, or in Authorization: Basic.'),
  shared: z
    .boolean()
    .default(true)
    .describe(
      'With redis, one replica fetches a token and the others read it there, encrypted: needed where the tokens of a client revoke each other. false: each replica fetches its own.',
    ),
  refreshTokenFile: z
    .string()
    .min(1)
    .optional()
    .describe(
      'File that keeps the refresh token (RFC 6749 §6), as plain text or as the endpoint’s JSON; Sluice writes the next one into it. All replicas must see the same file. Relative to this file.',
    ),
});

/** Either form, described by `text`. */
export const credential = (text: string) =>
  z
    .union([
      fieldValue(),
      section({
        header: fieldName()
          .optional()
          .describe('Field that carries the credential; default as for the short form.'),
        prefix: valuePrefix()
          .optional()
          .describe(
            'Stands before what file or oauth gives. Default: "Bearer " for oauth in authorization, else empty.',
          ),
        value: fieldValue()
          .optional()
          .describe('The whole field value, sent as it is ("Bearer …" included).'),
        file: z
          .string()
          .min(1)
          .optional()
          .describe('File with the value, read again when it changes; relative to this file.'),
        oauth: oauth
          .optional()
          .describe(
            'Client of a token endpoint (RFC 6749 §4.4, with refreshTokenFile §6); its tokens are renewed before they end.',
          ),
      }),
    ])
    .describe(text);

/** Name of the quota behind a credential. */
export const account = accountName().describe(
  'Names the quota that the credential stands for: with it the bucket, its order and what was learned of it outlive a new value. Default: each fixed value, file, or client of a token endpoint is a quota of its own.',
);

/** What the short form means, for descriptions. */
export const shortForm =
  'Short form: the value alone, in the upstream’s credential field (authorization, or x-shopify-access-token for commerce).';
