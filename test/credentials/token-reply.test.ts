import { describe, expect, test } from '@jest/globals';
import { oauthClient } from '../support/token-endpoint.ts';
import { objectOf, readToken, tokenRequest } from '../../src/credentials/token-endpoint.ts';

const read = (status: number, body: unknown, fields: Record<string, string> = {}) => {
  const text = typeof body === 'string' ? body : JSON.stringify(body);
  return readToken({ status, fields: new Map(Object.entries(fields)), body: text }, Date.UTC(2026, 0, 1));
};

test.each(['[]', '[{"access_token":"abc"}]', 'null', '"abc"', '7', 'no JSON'])(
  '%s is no JSON object',
  (text) => expect(objectOf(text)).toBeNull(),
);

describe('the response of a token endpoint', () => {
  test.each([
    [{ token_type: 'Bearer', expires_in: 3600 }, 3_600_000],
    [{ expires_in: 0.5 }, 500],
    [{ expires_in: '86399' }, 86_399_000],
    [{}, null],
    [{ expires_in: null }, null],
    [{ expires_in: 1e12 }, 31_536_000_000],
  ])('with %j is a token that lives for %s ms', (more, lifeMs) =>
    expect(read(200, { access_token: 'abc', ...more })).toEqual({ kind: 'token', token: 'abc', lifeMs }),
  );

  test.each([
    { access_token: 'abc', expires_in: 0 },
    { access_token: 'abc', expires_in: -5 },
    { access_token: 'abc', expires_in: 'soon' },
    { access_token: '' },
    { access_token: 'a b' },
    { access_token: 'a\r\nx: y' },
    { access_token: 'é' },
    { access_token: 'a'.repeat(16_385) },
    { access_token: 7 },
    { token: 'abc' },
    '<html>sign in</html>',
  ])('%j is no token', (body) =>
    expect(read(200, body)).toEqual({ kind: 'failed', fault: 'invalid', statedMs: null }),
  );

  test.each([
    [400, { error: 'invalid_client' }, 'refused'],
    [400, { error: 'invalid_scope' }, 'refused'],
    [401, '', 'refused'],
    [400, { error: 'temporarily' }, 'invalid'],
    [302, '', 'invalid'],
    [404, 'no such page', 'invalid'],
    [429, '', 'throttled'],
    [500, '', 'throttled'],
    [503, { error: 'invalid_client' }, 'throttled'],
  ] as const)('%d %j is %s', (status, body, fault) =>
    expect(read(status, body)).toMatchObject({ kind: 'failed', fault }),
  );

  test.each([
    ['7', 7_000],
    ['Thu, 01 Jan 2026 00:00:09 GMT', 9_000],
  ])('states a wait in seconds or as a date: %s', (field, statedMs) =>
    expect(read(429, '', { 'retry-after': field })).toMatchObject({ statedMs }),
  );
});

describe('a token request', () => {
  const client = { ...oauthClient, clientId: 'me & you', clientSecret: 's:e=c', scope: 'read write' };
  const grant = 'grant_type=client_credentials';

  test('is a form with the client in its body', () => {
    const { fields, body } = tokenRequest(client);
    expect(fields).not.toHaveProperty('authorization');
    expect(body).toBe(`${grant}&client_id=me+%26+you&client_secret=s%3Ae%3Dc&scope=read+write`);
  });

  test('is JSON where the endpoint wants it, without what is not configured', () => {
    const { fields, body } = tokenRequest({ ...client, format: 'json', scope: null });
    expect(fields['content-type']).toBe('application/json');
    const sent = { grant_type: 'client_credentials', client_id: 'me & you', client_secret: 's:e=c' };
    expect(JSON.parse(body)).toEqual(sent);
  });

  test('names the client only once', () => {
    const { fields, body } = tokenRequest({ ...client, clientAuth: 'basic' });
    expect(atob(fields['authorization']?.slice(6) ?? '')).toBe('me+%26+you:s%3Ae%3Dc');
    expect(body).toBe(`${grant}&scope=read+write`);
  });
});
