/** What callers are promised beside a plain response, asked of the running gateway. */
import { expect, test } from '@jest/globals';
import { answering } from '../support/raw-upstream.ts';
import { bytes } from '../support/scripts.ts';
import { until } from '../support/until.ts';
import { receivedBy, requestLines, stacks } from './stack-fixture.ts';

const opened = stacks({ timeouts: '{ headSeconds: 20 }' });

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
