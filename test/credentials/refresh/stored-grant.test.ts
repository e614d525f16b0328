import { describe, expect, test } from '@jest/globals';
import { grantText, parseGrant, usableAccess } from '../../../src/credentials/refresh/token-file.ts';

const at = Date.UTC(2026, 10, 23, 12);
const hour = 3_600_000;

describe('a refresh token’s file', () => {
  test.each([
    ['what echo writes', 'shprt_1\n', 'shprt_1'],
    ['plain text of any visible characters', '  a/b+c=.~{}\r\n', 'a/b+c=.~{}'],
    [
      'a response of the endpoint',
      '{"access_token":"a","expires_in":3600,"refresh_token":"r","scope":"x"}',
      'r',
    ],
  ])('may be %s', (_, text, refreshToken) => {
    // A response does not say when it was given: its access token is not used.
    expect(parseGrant(text)).toEqual({ refreshToken, access: null });
  });

  test.each([
    [''],
    [' \n'],
    ['two\nlines'],
    ['é'],
    ['{"access_token":"a"}'],
    ['{"refresh_token":7}'],
    ['{'],
    ['a'.repeat(16_385)],
  ])('%j holds no refresh token', (text) => expect(parseGrant(text)).toBeNull());

  test.each([
    [{ token: 'a', lifeMs: hour, endsAt: at + hour }],
    [{ token: 'a', lifeMs: null, endsAt: null }],
    [null],
  ])('says after a renewal what came of it: %j', (access) => {
    const grant = { refreshToken: 'r', access };
    expect(parseGrant(grantText(grant))).toEqual(grant);
  });

  test('with an end that is no time gives no access token', () => {
    const text = '{"refresh_token":"r","access_token":"a","expires_in":3600,"expires_at":"soon"}';
    expect(parseGrant(text)?.access).toBeNull();
  });
});

describe('the access token of the file', () => {
  const grant = (endsAt: number) => ({ refreshToken: 'r', access: { token: 'a', lifeMs: hour, endsAt } });
  const clocks = { now: at, monotonic: 5_000 };

  test('is used with the age that it has', () => {
    expect(usableAccess(grant(at + hour / 2), null, clocks)).toEqual({
      kind: 'token',
      token: 'a',
      lifeMs: hour,
      issuedAt: 5_000 - hour / 2,
      isShared: true,
    });
  });

  test('is not used when it is the unwanted one, has ended, or is about to', () => {
    expect(usableAccess(grant(at + hour), 'a', clocks)).toBeNull();
    expect(usableAccess(grant(at), null, clocks)).toBeNull();
    expect(usableAccess(grant(at + 5_000), null, clocks)).toBeNull();
  });

  test('of a writer whose clock is ahead is not younger than now', () => {
    expect(usableAccess(grant(at + 2 * hour), null, clocks)?.issuedAt).toBe(5_000);
  });
});
