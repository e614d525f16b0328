import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { connect } from 'node:net';
import { fileURLToPath } from 'node:url';
import { afterEach, expect, test } from '@jest/globals';
import { createCommerceSimulator } from '../../simulators/commerce.ts';
import { createLanguageModelSimulator } from '../../simulators/language-model.ts';
import { manualClock } from '../support/manual-clock.ts';

const closing: (() => Promise<void>)[] = [];

afterEach(async () => {
  for (const close of closing.splice(0)) await close();
});

/** Sends bytes, waits until the other side has closed or answered, gives what came back. */
async function raw(port: number, bytes: string | Uint8Array): Promise<string> {
  const socket = connect(port, '127.0.0.1');
  let text = '';
  socket.on('data', (part) => {
    text += part.toString('latin1');
    if (text.includes('\r\n\r\n')) socket.destroy();
  });
  socket.on('error', () => {});
  socket.write(bytes);
  socket.end();
  await once(socket, 'close');
  return text;
}

const head = (path: string, fields: string): string =>
  `POST ${path} HTTP/1.1\r\nHost: localhost\r\n${fields}\r\n\r\n`;

test('no bytes of a client end a simulator', async () => {
  const clock = manualClock();
  const still = { latency: { baseMs: 0, perTokenMs: 0, jitter: 0 } };
  const model = createLanguageModelSimulator({ clock, ...still });
  const shop = createCommerceSimulator({ clock, latency: { minMs: 0, maxMs: 0 } });
  closing.push(
    () => model.close(),
    () => shop.close(),
  );
  const key = 'Authorization: Bearer sk-sim\r\nX-Shopify-Access-Token: shpat_sim';
  const deep = '['.repeat(50_000);
  const bad = [
    'GARBAGE\r\n\r\n',
    Buffer.from([0, 255, 13, 10, 13, 10]),
    'GET http://[::1 HTTP/1.1\r\nHost: x\r\n\r\n',
    head('/v1/chat/completions', `${key}\r\nContent-Length: 50`) + 'cut',
    head('/v1/chat/completions', `${key}\r\nContent-Length: ${deep.length}`) + deep,
    head('/v1/images/edits', `${key}\r\nContent-Type: multipart/form-data\r\nContent-Length: 1`) + 'x',
    head('/openai/deployments/%E0%A4%A/chat/completions', `${key}\r\nContent-Length: 2`) + '{}',
    head('/v1/embeddings', `${key}\r\nTransfer-Encoding: chunked`) + 'ZZ\r\n',
    head('/admin/api/2026-10/products.json', `${key}\r\nContent-Length: 4`) + 'null',
    head('/admin/api/2026-10/graphql.json', `${key}\r\nContent-Length: 17`) + '{"query":"{a{b{"}',
    head('/__sim/faults', 'Content-Length: 4') + 'null',
    head('/__sim/config', 'Content-Length: 1') + '{',
    head('/__proto__', key),
  ];
  for (const simulator of [model, shop]) {
    const { port, url } = await simulator.listen();
    for (const bytes of bad) await raw(port, bytes);
    expect((await fetch(`${url}/__sim/state`)).status).toBe(200);
    expect(simulator.state().failures).toEqual([]);
  }
});

test('a client that leaves a stream of a simulator is logged, and closing the simulator ends open calls', async () => {
  const clock = manualClock();
  const model = createLanguageModelSimulator({ clock, latency: { baseMs: 0, perTokenMs: 10, jitter: 0 } });
  closing.push(() => model.close());
  const { url } = await model.listen();
  const abort = new AbortController();
  const send = async (): Promise<Response> =>
    await fetch(`${url}/v1/chat/completions`, {
      method: 'POST',
      headers: { authorization: 'Bearer sk-sim' },
      body: JSON.stringify({ model: 'gpt-4o', stream: true, messages: [] }),
      signal: abort.signal,
    });
  await send();
  abort.abort();
  while (model.log[0]?.endedT === null) await new Promise((resolve) => setImmediate(resolve));
  expect(model.log[0]).toMatchObject({ aborted: true, status: 200, decision: 'admitted' });
  expect(clock.waiting).toBe(0);
  model.fault({ kind: 'hang' });
  const held = fetch(`${url}/v1/chat/completions`, {
    method: 'POST',
    headers: { authorization: 'Bearer sk-sim' },
    body: JSON.stringify({ model: 'gpt-4o', messages: [] }),
  });
  const failed = expect(held).rejects.toThrow();
  while (model.log.length < 2) await new Promise((resolve) => setImmediate(resolve));
  await model.close();
  await failed;
  expect(clock.waiting).toBe(0);
});

test('the control API of a simulator shows state and log, changes settings, takes units, closes, and refuses unknown faults', async () => {
  const shop = createCommerceSimulator({ clock: manualClock() });
  closing.push(() => shop.close());
  const { url } = await shop.listen();
  const post = async (name: string, body: unknown): Promise<Response> =>
    await fetch(`${url}/__sim/${name}`, { method: 'POST', body: JSON.stringify(body) });
  const state = await (await post('config', { callLimitField: 'all', consume: { units: 5 } })).json();
  expect(state).toMatchObject({ buckets: { 'acme.myshopify.com|app-sim|rest': { used: 5 } } });
  await post('config', { close: { forMs: 1000, api: 'graphql' } });
  expect(await (await fetch(`${url}/__sim/state`)).json()).toMatchObject({
    buckets: { 'acme.myshopify.com|app-sim|graphql': { used: 2099 } },
  });
  expect((await post('faults', { kind: 'typo' })).status).toBe(400);
  expect(await (await post('faults', [{ kind: 'hang', times: 2 }])).json()).toEqual([
    { kind: 'hang', times: 2 },
  ]);
  await post('reset', {});
  expect(await (await fetch(`${url}/__sim/state`)).json()).toMatchObject({ buckets: {}, faults: [] });
  expect((await post('other', {})).status).toBe(404);
});

test.each(['language-model', 'commerce'])(
  'the simulator %s runs as a process of its own and ends on SIGTERM',
  async (name) => {
    const main = fileURLToPath(new URL('../../simulators/main.ts', import.meta.url));
    const child = spawn(process.execPath, [main, name, '--config', '{"seed":2}'], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    const exit = once(child, 'exit');
    const [line] = (await once(child.stdout, 'data')) as [Uint8Array];
    const { url } = JSON.parse(Buffer.from(line).toString()) as { url: string };
    expect(await (await fetch(`${url}/__sim/log`)).json()).toEqual([]);
    child.kill('SIGTERM');
    expect(await exit).toEqual([0, null]);
  },
);
