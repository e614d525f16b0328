/** Fields of a response that command the hop in front of Sluice, or a browser, do not leave it. Cookies stay with their upstream. */
import { describe, expect, test } from '@jest/globals';
import { answering } from '../support/raw-upstream.ts';
import { bytes } from '../support/scripts.ts';
import type { RawResponse } from '../support/raw-client.ts';
import { receivedBy, stacks, type Stack } from './stack-fixture.ts';

const opened = stacks();

const get = async (stack: Stack, path: string, more = ''): Promise<RawResponse | undefined> =>
  (await stack.exchange(stack.head('GET', path, more))).responses.at(-1);
/** The responses to a call of `/via/up/a` that is sent twice, with the same key. */
async function twice(stack: Stack): Promise<readonly RawResponse[]> {
  const repeat = stack.head('POST', '/via/up/a', 'Idempotency-Key: one\r\nContent-Length: 0\r\n');
  const [first, second] = [await stack.exchange(repeat, 'POST'), await stack.exchange(repeat, 'POST')];
  expect(second.responses[0]?.field('sluice-replayed')).toBe('true');
  return [...first.responses, ...second.responses];
}

describe('a command to the hop in front of Sluice', () => {
  const lines = [
    'X-Accel-Redirect: /via/other/canary',
    'x-accel-expires: 3600',
    'X-SENDFILE: /etc/canary',
    'Surrogate-Control: max-age=3600, content="canary"',
    'Alt-Svc: h3="canary.example:443"',
    'Strict-Transport-Security: max-age=63072000; includeSubDomains',
    'Clear-Site-Data: "*"',
    'Service-Worker-Allowed: /',
  ];
  const commands = lines.join('|');
  const names = lines.map((line) => line.slice(0, line.indexOf(':')).toLowerCase());

  function expectWithheld(response: RawResponse | undefined): void {
    const { fields = [], body = '' } = response ?? {};
    expect(fields.filter(([name]) => names.includes(name))).toEqual([]);
    expect(`${JSON.stringify(fields)}${body.toString('latin1')}`.toLowerCase()).not.toMatch(/canary|x-accel/);
  }

  const ok = 'Content-Length: 2||ok';
  const hints = 'HTTP/1.1 103 Early Hints|Link: </canary>; rel=preload|';
  const chunks = 'Trailer: X-Accel-Redirect|Transfer-Encoding: chunked||2|ok|0|';
  test.each([
    ['the head', `HTTP/1.1 200 OK|${commands}|${ok}`],
    ['an interim response', `${hints}${commands}||HTTP/1.1 200 OK|${ok}`],
    ['the trailers', `HTTP/1.1 200 OK|${chunks}${commands}||`],
  ])('is not passed on in %s', async (_where, response) => {
    const stack = await opened(answering(bytes(response)));
    for (const path of ['/via/up/a', stack.proxy('/a')]) {
      const { responses } = await stack.exchange(stack.head('GET', path));
      expect(responses.map(({ field }) => field('sluice-error'))).toEqual([undefined]);
      expectWithheld(responses[0]);
    }
  });

  test('is not replayed for the same idempotency key, and the response is kept from shared caches', async () => {
    const caching = 'Cache-Control: public, max-age=3600';
    const stack = await opened(answering(bytes(`HTTP/1.1 200 OK|${commands}|${caching}|${ok}`)));
    for (const response of await twice(stack)) {
      expectWithheld(response);
      expect(response.field('cache-control')).toBe('private, max-age=3600');
      expect(response.field('vary')).toBe('authorization, sluice-key');
    }
  });
});

test('a response shows in Vary every field in which a key may come', async () => {
  const stack = await opened(answering(bytes('HTTP/1.1 200 OK|Vary: Accept|Content-Length: 2||ok')), {
    credential: '{ header: x-api-key, value: injected-credential }',
  });
  const response = await get(stack, '/via/up/a');
  expect(response?.field('vary')).toBe('Accept, authorization, sluice-key, x-api-key');
});

describe('cookies, of clients with one jar for Sluice and the upstreams behind it,', () => {
  const setting = [
    'Set-Cookie: sid=1; Path=/; HttpOnly',
    'set-cookie: wide=2; Domain=127.0.0.1; Path=/app',
    'Set-Cookie2: old=3',
  ];
  const jar = answering(bytes(`HTTP/1.1 200 OK|${setting.join('|')}|Content-Length: 2||ok`));
  const set = (response?: RawResponse): readonly string[] =>
    response?.fields.flatMap(([name, value]) => (name.startsWith('set-cookie') ? [value] : [])) ?? [];
  const theirs = ['sid=1; HttpOnly; Path=/via/up/', 'wide=2; Path=/via/up/app'];

  test('belong to their upstream’s own path and to no domain on /via, and go there', async () => {
    const stack = await opened(jar);
    expect(set(await get(stack, '/via/up/app/login?x=/', 'Cookie: sid=1; wide=2\r\n'))).toEqual(theirs);
    expect(receivedBy(stack)).toMatch(/\r\ncookie: sid=1; wide=2\r\n/i);
  });

  test('pass /proxy in neither direction', async () => {
    const stack = await opened(jar);
    const response = await get(stack, stack.proxy('/app/a'), 'Cookie: sid=1\r\nCOOKIE: b=2\r\n');
    expect(set(response)).toEqual([]);
    expect(receivedBy(stack).toLowerCase()).not.toContain('cookie');
  });

  test('pass /proxy unchanged where the upstream’s configuration says so, and /via as ever', async () => {
    const stack = await opened(jar, { more: '    cookies: pass' });
    const unchanged = ['sid=1; Path=/; HttpOnly', 'wide=2; Domain=127.0.0.1; Path=/app'];
    expect(set(await get(stack, stack.proxy('/app/a'), 'Cookie: sid=1\r\n'))).toEqual(unchanged);
    expect(receivedBy(stack)).toMatch(/\r\ncookie: sid=1\r\n/i);
    expect(set(await get(stack, '/via/up/a'))).toEqual(theirs);
  });
});
