/**
 * Fields of an upstream's response that command the hop in front of Sluice, or a browser's state for its origin, do not leave
 * Sluice: in no part of a response, and in no way in which a response reaches a client.
 */
import { afterEach, describe, expect, test } from '@jest/globals';
import { answering } from '../support/raw-upstream.ts';
import { faults, startStack } from './stack-fixture.ts';
import type { Stack } from './stack-fixture.ts';

const commands = [
  'X-Accel-Redirect: /via/other/canary',
  'x-accel-expires: 3600',
  'X-SENDFILE: /etc/canary',
  'X-Lighttpd-Send-File: /etc/canary',
  'X-Reproxy-URL: http://canary.example/',
  'X-Envoy-Immediate-Health-Check-Fail: canary',
  'Surrogate-Control: max-age=3600, content="canary"',
  'CDN-Cache-Control: public, max-age=3600',
  'Alt-Svc: h3="canary.example:443"',
  'Strict-Transport-Security: max-age=63072000; includeSubDomains',
  'Clear-Site-Data: "*"',
  'NEL: {"report_to":"canary","max_age":2592000}',
  'Report-To: {"group":"canary"}',
  'Reporting-Endpoints: canary="https://canary.example"',
  'Service-Worker-Allowed: /',
];
const lines = commands.join('\r\n');
const names = commands.map((line) => line.slice(0, line.indexOf(':')).toLowerCase());

let stack: Stack | null = null;

afterEach(async () => {
  const ended = stack;
  stack = null;
  await ended?.close();
});

function expectWithheld(text: string): void {
  const sent = text.toLowerCase();
  expect(names.filter((name) => sent.includes(`\r\n${name}:`))).toEqual([]);
  expect(sent).not.toContain('canary');
}

describe('a response that commands the hop in front of Sluice', () => {
  test.each([
    ['in its head', `HTTP/1.1 200 OK\r\n${lines}\r\nContent-Length: 2\r\n\r\nok`],
    ['in the head of an error', `HTTP/1.1 404 Not Found\r\n${lines}\r\nContent-Length: 2\r\n\r\nok`],
    ['in a head without a body', `HTTP/1.1 204 No Content\r\n${lines}\r\n\r\n`],
    [
      'in an interim response',
      `HTTP/1.1 103 Early Hints\r\nLink: </canary>; rel=preload\r\n${lines}\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok`,
    ],
    [
      'in its trailers',
      `HTTP/1.1 200 OK\r\nTrailer: X-Accel-Redirect\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n${lines}\r\n\r\n`,
    ],
  ])('%s is passed on without the command', async (_where, response) => {
    stack = await startStack(answering(response));
    for (const path of ['/via/up/a', stack.proxy('/a')]) {
      const { responses } = await stack.exchange(stack.head('GET', path));
      expect(responses).toHaveLength(1);
      const [only] = responses;
      expect(only?.field('sluice-error')).toBeUndefined();
      const head = only?.fields.map(([name, value]) => `\r\n${name}: ${value}`).join('') ?? '';
      expectWithheld(head + (only?.body.toString('latin1') ?? ''));
    }
    expect(faults(stack)).toEqual([]);
  });

  test('is replayed for the same idempotency key without the command, and kept from shared caches', async () => {
    const response = `HTTP/1.1 200 OK\r\n${lines}\r\nCache-Control: public, max-age=3600\r\nContent-Length: 2\r\n\r\nok`;
    stack = await startStack(answering(response));
    const request = stack.head('POST', '/via/up/a', 'Idempotency-Key: one\r\nContent-Length: 0\r\n');
    const first = await stack.exchange(request, 'POST');
    const second = await stack.exchange(request, 'POST');
    expect(second.responses[0]?.field('sluice-replayed')).toBe('true');
    for (const { responses } of [first, second]) {
      expectWithheld(responses[0]?.fields.map(([name, value]) => `\r\n${name}: ${value}`).join('') ?? '');
      expect(responses[0]?.field('cache-control')).toBe('private, max-age=3600');
      expect(responses[0]?.field('vary')).toBe('authorization, sluice-key');
    }
  });

  test('and refuses for good is answered from the breaker without the command', async () => {
    const refusal =
      '{"error":{"message":"no credit","type":"insufficient_quota","code":"insufficient_quota"}}';
    const head = `HTTP/1.1 429 Too Many Requests\r\n${lines}\r\nContent-Type: application/json\r\n`;
    stack = await startStack(answering(`${head}Content-Length: ${refusal.length}\r\n\r\n${refusal}`), {
      kind: 'language-model',
    });
    const request = stack.head('POST', '/via/up/v1/chat/completions', 'Content-Length: 0\r\n');
    const codes: (string | undefined)[] = [];
    for (let sent = 0; sent < 2; sent += 1) {
      const { responses } = await stack.exchange(request, 'POST');
      codes.push(responses[0]?.field('sluice-error'));
      expectWithheld(responses[0]?.fields.map(([name, value]) => `\r\n${name}: ${value}`).join('') ?? '');
    }
    expect(codes).toEqual([undefined, 'upstream_refused']);
  });
});

test('a response shows in Vary every field in which a key may come', async () => {
  stack = await startStack(answering('HTTP/1.1 200 OK\r\nVary: Accept\r\nContent-Length: 2\r\n\r\nok'), {
    credential: '{ header: x-api-key, value: injected-credential }',
  });
  const { responses } = await stack.exchange(stack.head('GET', '/via/up/a'));
  expect(responses[0]?.field('vary')).toBe('Accept, authorization, sluice-key, x-api-key');
});
