/** Each way in which an upstream cannot be reached has a reason of its own in the response, the log and the metric. */
import { readFileSync } from 'node:fs';
import { afterAll, beforeAll, describe, expect, test } from '@jest/globals';
import { createKey } from '../../src/cli/keys.ts';
import type { Service } from '../../src/service.ts';
import { freePort } from '../support/free-port.ts';
import { gatewayYaml, serviceOf } from '../support/gateway.ts';
import { rawUpstream, type RawUpstream, type Script } from '../support/raw-upstream.ts';
import { metricsPage } from '../wire/stack-fixture.ts';

const { key, hash } = createKey();
const pem = (name: string): string =>
  readFileSync(new URL(`../fixtures/tls/upstream.test.${name}`, import.meta.url), 'utf8');

/** Sends these bytes once the request has come, in one packet. */
const sends =
  (bytes: string): Script =>
  async (connection) => {
    await connection.requests(1);
    connection.send(bytes);
  };

const chunked = 'HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n';

interface Ended {
  readonly status: number;
  readonly code: string;
  readonly detail: string;
  readonly line: Record<string, unknown>;
}

let service: Service;
const logs: string[] = [];
const opened: RawUpstream[] = [];
const hosts: string[] = [];

async function upstreamOf(script: Script, tls?: { key: string; cert: string }): Promise<string> {
  const upstream = await rawUpstream(script, tls === undefined ? {} : { tls });
  opened.push(upstream);
  return upstream.origin;
}

beforeAll(async () => {
  const silent = await upstreamOf(() => {});
  const origins = {
    refused: `http://127.0.0.1:${await freePort()}`,
    dns: 'https://unknown.example',
    certificate: await upstreamOf(() => {}, { key: pem('key'), cert: pem('crt') }),
    reset: await upstreamOf(async (connection) => {
      await connection.requests(1);
      connection.socket.resetAndDestroy();
    }),
    timeout: silent,
    protocol: await upstreamOf(sends('SSH-2.0-OpenSSH\r\n\r\n')),
    // A server without TLS answers the first bytes of a handshake with text.
    plain: (
      await upstreamOf(async (connection) => {
        await connection.until((received) => received.length > 0);
        connection.send('HTTP/1.1 400 Bad Request\r\n\r\n');
      })
    ).replace('http:', 'https:'),
    broken: await upstreamOf(sends(`${chunked}nonsense\r\n`)),
    cut: await upstreamOf(async (connection) => {
      await connection.requests(1);
      connection.send(`${chunked}2\r\nok\r\n`);
      setTimeout(() => connection.socket.resetAndDestroy(), 50);
    }),
  };
  hosts.push('127.0.0.1', 'unknown.example', ...opened.map(({ port }) => String(port)));
  const upstreams = Object.entries(origins).map(
    ([name, origin]) =>
      `  ${name}:\n    origins: ["${origin}"]\n    allowPrivateAddresses: true\n    credential: "Bearer x"${name === 'timeout' ? '\n    timeouts: { headSeconds: 1 }' : ''}`,
  );
  const yaml = gatewayYaml({ upstreams: upstreams.join('\n') }, { acme: hash });
  const unknown = Object.assign(new Error('unknown.example'), { code: 'ENOTFOUND' });
  service = await serviceOf(yaml, logs, { resolve: () => Promise.reject(unknown) });
});

afterAll(async () => {
  await service.close();
  for (const upstream of opened) await upstream.close();
});

async function called(upstream: string): Promise<Ended> {
  const response = await fetch(`http://127.0.0.1:${service.dataAddress.port}/via/${upstream}/orders`, {
    method: 'POST',
    headers: { authorization: `Bearer ${key}`, prefer: 'wait=0' },
    body: '{}',
  });
  const id = response.headers.get('sluice-request-id') ?? '';
  const text = await response.text().catch(() => '{}');
  const { code = '', detail = '' } = text.startsWith('{') ? (JSON.parse(text) as Partial<Ended>) : {};
  for (;;) {
    const line = logs.find((each) => each.includes(id));
    if (line !== undefined)
      return { status: response.status, code, detail, line: JSON.parse(line) as Record<string, unknown> };
    await new Promise((resume) => setTimeout(resume, 5));
  }
}

async function counted(upstream: string, reason: string): Promise<number> {
  const page = await metricsPage(`http://127.0.0.1:${service.adminAddress.port}`);
  const series = `sluice_upstream_failures_total{upstream="${upstream}",reason="${reason}"} `;
  return Number(
    page
      .split('\n')
      .find((line) => line.startsWith(series))
      ?.slice(series.length),
  );
}

describe('a failed attempt', () => {
  test.each([
    ['refused', 'refused', 502, 'upstream_unreachable'],
    ['dns', 'dns', 502, 'upstream_unreachable'],
    ['certificate', 'certificate', 502, 'upstream_unreachable'],
    ['reset', 'reset', 502, 'upstream_unreachable'],
    ['timeout', 'timeout', 504, 'upstream_timeout'],
    ['protocol', 'protocol', 502, 'upstream_invalid'],
    ['plain', 'protocol', 502, 'upstream_unreachable'],
  ])('is logged with its cause: %s', async (upstream, reason, status, code) => {
    const ended = await called(upstream);
    expect(ended).toMatchObject({ status, code, line: { code, reason, upstream } });
    expect(ended.detail).toContain(`Reason: ${reason}.`);
    expect(await counted(upstream, reason)).toBe(1);
    // A port may stand in a random id by chance.
    const said = ended.detail + JSON.stringify({ ...ended.line, requestId: null, workspace: null });
    for (const host of hosts) expect(said).not.toContain(host);
  });

  test('is 502 upstream_invalid when the body breaks in the packet of its head', async () => {
    const ended = await called('broken');
    expect(ended).toMatchObject({ status: 502, code: 'upstream_invalid', line: { reason: 'protocol' } });
  });

  test('is logged also when the head of its response had been passed on', async () => {
    const ended = await called('cut');
    expect(ended).toMatchObject({ status: 200, line: { outcome: 'failed', reason: 'reset' } });
    expect(await counted('cut', 'reset')).toBe(1);
  });
});
