/** Cookies between clients with one jar for Sluice and the upstreams behind it. */
import { afterEach, describe, expect, test } from '@jest/globals';
import { answering } from '../support/raw-upstream.ts';
import { receivedBy, startStack } from './stack-fixture.ts';
import type { Stack, StackOptions } from './stack-fixture.ts';

const setting =
  'HTTP/1.1 200 OK\r\nSet-Cookie: sid=1; Path=/; HttpOnly\r\nset-cookie: wide=2; Domain=127.0.0.1; Path=/app\r\nSet-Cookie2: old=3\r\nContent-Length: 2\r\n\r\nok';

let stack: Stack | null = null;

afterEach(async () => {
  const ended = stack;
  stack = null;
  await ended?.close();
});

async function cookiesOf(opened: Stack, path: string, more = ''): Promise<(readonly [string, string])[]> {
  const { responses } = await opened.exchange(opened.head('GET', path, more));
  return responses[0]?.fields.filter(([name]) => name.startsWith('set-cookie')) ?? [];
}

const started = async (options: StackOptions = {}): Promise<Stack> => {
  stack = await startStack(answering(setting), options);
  return stack;
};

describe('cookies', () => {
  test('of an upstream on /via belong to its own path and to no domain', async () => {
    expect(await cookiesOf(await started(), '/via/up/app/login?x=/')).toEqual([
      ['set-cookie', 'sid=1; HttpOnly; Path=/via/up/'],
      ['set-cookie', 'wide=2; Path=/via/up/app'],
    ]);
  });

  test('of a client go to the upstream whose path they belong to, on /via', async () => {
    const opened = await started();
    await cookiesOf(opened, '/via/up/app/a', 'Cookie: sid=1; wide=2\r\n');
    expect(receivedBy(opened)).toMatch(/\r\ncookie: sid=1; wide=2\r\n/i);
  });

  test('pass /proxy in neither direction', async () => {
    const opened = await started();
    expect(await cookiesOf(opened, opened.proxy('/app/a'), 'Cookie: sid=1\r\nCOOKIE: b=2\r\n')).toEqual([]);
    expect(receivedBy(opened).toLowerCase()).not.toContain('cookie');
  });

  test('pass /proxy unchanged where the upstream’s configuration says so, and /via as ever', async () => {
    const opened = await started({ more: '    cookies: pass' });
    expect(await cookiesOf(opened, opened.proxy('/app/a'), 'Cookie: sid=1\r\n')).toEqual([
      ['set-cookie', 'sid=1; Path=/; HttpOnly'],
      ['set-cookie', 'wide=2; Domain=127.0.0.1; Path=/app'],
    ]);
    expect(receivedBy(opened)).toMatch(/\r\ncookie: sid=1\r\n/i);
    expect((await cookiesOf(opened, '/via/up/a'))[0]).toEqual([
      'set-cookie',
      'sid=1; HttpOnly; Path=/via/up/',
    ]);
  });

  test('of a replayed response are as those of the first one', async () => {
    const opened = await started();
    const request = opened.head('POST', '/via/up/a', 'Idempotency-Key: one\r\nContent-Length: 0\r\n');
    const [first, second] = [await opened.exchange(request, 'POST'), await opened.exchange(request, 'POST')];
    expect(second.responses[0]?.field('sluice-replayed')).toBe('true');
    expect(second.responses[0]?.field('set-cookie')).toBe('sid=1; HttpOnly; Path=/via/up/');
    expect(first.responses[0]?.field('set-cookie')).toBe('sid=1; HttpOnly; Path=/via/up/');
  });
});
