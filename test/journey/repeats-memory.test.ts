/** What is held for clients that have left: counted, and bounded. */
import { createServer, request as httpRequest, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterEach, expect, test } from '@jest/globals';
import { startGateway } from '../support/gateway.ts';
import { until } from '../support/until.ts';

const open: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const close of open.splice(0).toReversed()) await close();
});

const kibibyte = 1_024;

test.each([
  ['with a key', (at: number) => ({ 'idempotency-key': `k${at}` })],
  ['of an SDK', (at: number) => ({ 'x-stainless-retry-count': '0', 'x-call': `${at}` })],
])(
  'responses to calls %s whose clients have left are counted in sluice_queue_bytes and stay within the bounds',
  async (_words, headersOf) => {
    const held: ServerResponse[] = [];
    const http = createServer((request, response) => {
      request.resume().on('end', () => {
        held.push(response);
        response.writeHead(200, { 'content-type': 'text/event-stream' });
        response.write('x'.repeat(100 * kibibyte));
      });
    });
    await new Promise<void>((resolve) => http.listen(0, '127.0.0.1', resolve));
    open.push(
      () =>
        new Promise((resolve) => {
          http.close(resolve);
          http.closeAllConnections();
        }),
    );
    const origin = `http://127.0.0.1:${(http.address() as AddressInfo).port}`;
    const gateway = await startGateway({
      upstreams: `  api:\n    origins: ["${origin}"]\n    allowPrivateAddresses: true\n    credential: Bearer x\n    limits: { requestsPerMinute: 1000 }\n`,
      workspaces: { team: '' },
    });
    open.push(() => gateway.close());
    const bound = 400 * kibibyte;
    await gateway.reload(`${gateway.yaml}\nidempotency: { maxWorkspaceBytes: ${bound} }`);
    const gauge = async (name: string): Promise<number> => {
      const page = await (await fetch(`${gateway.adminUrl}/metrics`)).text();
      return Number(new RegExp(`^${name} (\\S+)`, 'm').exec(page)?.[1] ?? Number.NaN);
    };
    const responseBytes = (): number => {
      const { keptBytes, underWayBytes } = gateway.service.gateway.parts.repeats.memory();
      return keptBytes + underWayBytes;
    };
    const body = 'b'.repeat(10 * kibibyte);
    const leave = (at: number): Promise<void> =>
      new Promise((resolve) => {
        const headers = { authorization: `Bearer ${gateway.keys['team'] ?? ''}`, ...headersOf(at) };
        const request = httpRequest(`${gateway.url}/via/api/orders`, {
          method: 'POST',
          headers,
          agent: false,
        });
        request.on('error', () => {});
        request.on('close', resolve);
        request.on('response', (response) => {
          response.on('error', () => {});
          response.once('data', () => request.destroy());
        });
        request.end(body);
      });
    for (let at = 0; at < 12; at += 1) await leave(at);
    // The calls that go on count as open, and the bodies of their requests as held.
    await until(async () => (await gauge('sluice_queue_bytes')) > 200 * kibibyte);
    const openCalls = await gauge('sluice_open_calls');
    expect(openCalls).toBeGreaterThan(0);
    expect(responseBytes()).toBeLessThanOrEqual(bound);
    expect(await gauge('sluice_queue_bytes')).toBeGreaterThanOrEqual(openCalls * body.length);
    for (const response of held) response.end();
    await until(async () => (await gauge('sluice_open_calls')) === 0);
    expect(responseBytes()).toBeLessThanOrEqual(bound);
  },
);
