/** What the tests of the client's side share: requests as text, a server with a client, and short words for a response. */
import { expect } from '@jest/globals';
import type { Call, Outcome } from '../../src/call.ts';
import { outcomeOf, startDataServer, type Fixture } from '../ingress/data-server-fixture.ts';
import { readResponses, type RawClient, type RawResponse } from '../support/raw-client.ts';

export const head = (line: string, ...fields: readonly string[]): string =>
  [line, 'Host: sluice.test', ...fields, '', ''].join('\r\n');
export const get = (...fields: readonly string[]): string => head('GET /proxy?target=x HTTP/1.1', ...fields);
export const upload = (...fields: readonly string[]): string =>
  head('POST /proxy?target=x HTTP/1.1', ...fields);

/** A server whose journey is `handle`, and a client on it. */
export async function served(
  ...parts: Parameters<typeof startDataServer>
): Promise<Fixture & { raw: RawClient }> {
  const server = await startDataServer(...parts);
  return { ...server, raw: await server.client() };
}

/** Gives a body back. Its bytes count for the workspace that `X-Owner` names, otherwise for its call alone. */
export async function echo(call: Call): Promise<Outcome> {
  const at = call.rawFields.indexOf('X-Owner');
  const owner = at < 0 ? call.id : (call.rawFields[at + 1] ?? '');
  const { bytes, replayable } = await call.readBody(owner);
  return outcomeOf({ body: bytes, fields: ['X-Replayable', String(replayable)] });
}

/** Status, code of a refusal, and what becomes of the connection: `413 body_too_large close`. */
export const inShort = (response: RawResponse | undefined): string =>
  [response?.status, response?.field('sluice-error'), response?.field('connection')]
    .filter((word) => word !== undefined)
    .join(' ');

export const answer = async (raw: RawClient): Promise<string> => inShort((await raw.responses(1))[0]);

/** All responses on a connection that ends; nothing else may have come on it. */
export async function allOf(raw: RawClient): Promise<readonly RawResponse[]> {
  const { responses, rest } = readResponses((await raw.closed).bytes);
  expect(rest).toHaveLength(0);
  return responses;
}
