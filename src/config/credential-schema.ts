/**
 * How a credential of an upstream is written: alone, or with the field that carries it. An upstream has one for
 * everybody (`upstream-schema.ts`), a workspace its own (`workspace-schema.ts`).
 */
import { z } from 'zod';
import { fieldName, fieldValue, section } from './values.ts';

/** Either form, described by `text`. */
export const credential = (text: string) =>
  z
    .union([
      fieldValue(),
      section({
        header: fieldName()
          .optional()
          .describe('Field that carries the credential; default as for the short form.'),
        value: fieldValue().describe('The whole field value, sent as it is ("Bearer …" included).'),
      }),
    ])
    .describe(text);

/** What the short form means, for descriptions. */
export const shortForm =
  'Short form: the value alone, in the upstream’s credential field (authorization, or x-shopify-access-token for commerce).';
