/** What responses have beside those of the upstream, and what of them Sluice withholds: commands to the hop in front of it or to a browser, and cookies of others. */
import { describe, expect, test } from '@jest/globals';
import type { RawResponse } from '../support/raw-client.ts';
import { answering } from '../support/raw-upstream.ts';
import { bytes } from '../support/scripts.ts';
import { until } from '../support/until.ts';
import { receivedBy, requestLines, type Stack, stacks } from './stack-fixture.ts';

const opened = stacks({ timeouts: '{ headSeconds: 20 }' });

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

test('a silent event stream gets comments between its events and within none, if that is configured', async () => {
  let allowed = 0;
  const stack = await opened(
    async ({ requests, send }) => {
      await requests(1);
      send(bytes('HTTP/1.1 200 OK|Content-Type: text/event-stream|Transfer-Encoding: chunked||'));
      for (const [at, part] of ['data: 1\n\n', 'data: ', '2\n\n', ''].entries()) {
        await until(() => allowed > at);
        send(bytes(`${part.length.toString(16)}|${part}|`));
      }
    },
    { more: '    keepAliveComments: 0.05' },
  );
  const response = await fetch(`http://127.0.0.1:${stack.port}${stack.proxy('/x')}`, {
    headers: { authorization: `Bearer ${stack.key}` },
  });
  let text = '';
  const reading = (async () => {
    for await (const part of response.body ?? []) text += Buffer.from(part).toString();
  })();
  const comments = (): number => text.split(': waiting\n\n').length - 1;
  await until(() => comments() >= 2);
  allowed += 1;
  await until(() => text.includes('data: 1'));
  const before = comments();
  await until(() => comments() >= before + 2);
  allowed += 1;
  await until(() => text.endsWith('data: '));
  // Several silences long.
  await new Promise((resolve) => setTimeout(resolve, 300));
  expect(text.endsWith('data: ')).toBe(true);
  allowed += 1;
  await until(() => text.endsWith(': waiting\n\n'));
  allowed += 1;
  await reading;
  expect(text.replaceAll(': waiting\n\n', '')).toBe('data: 1\n\ndata: 2\n\n');
});

test('a redirect to a metadata address is passed back and not followed', async () => {
  const location = 'http://169.254.169.254/latest/meta-data/';
  const stack = await opened(
    answering(bytes(`HTTP/1.1 302 Found|Location: ${location}|Content-Length: 0||`)),
  );
  for (const path of [stack.proxy('/a'), '/via/up/a']) {
    const { responses } = await stack.exchange(stack.head('GET', path));
    expect(responses.map(({ status, field }) => [status, field('location')])).toEqual([[302, location]]);
  }
  expect(requestLines(receivedBy(stack))).toHaveLength(2);
});

test('path and query arrive byte for byte', async () => {
  const stack = await opened();
  const odd = "/a;b?a=$&b=$'&c=$`$& /%2f%2F+?q=a+b%20c&&= //x// /a%00'()*!~|^`{} /? /%61/..a/.../".split(' ');
  for (const path of odd)
    for (const form of [stack.proxy(path), `/via/up${path}`]) await stack.exchange(stack.head('GET', form));
  const lines = odd.map((path) => `GET ${path} HTTP/1.1`);
  expect(requestLines(receivedBy(stack))).toEqual(lines.flatMap((line) => [line, line]));
});
