/** `sluice serve` at a terminal: where it listens, why it cannot, and that Ctrl-C ends it. */
import { connect, createServer, type AddressInfo, type Socket } from 'node:net';
import { once } from 'node:events';
import { afterEach, expect, test } from '@jest/globals';
import { Redis } from 'ioredis';
import { announcement } from '../../src/cli/serve.ts';
import { parseSettings } from '../../src/config/load.ts';
import { replicasKey } from '../../src/limiter/redis/presence.ts';
import { startRedis } from '../support/redis.ts';
import { until } from '../support/until.ts';
import { start } from './started.ts';
import { clean, fileOf, hash, privacy, said, sluice } from './new-user.ts';

afterEach(clean);

const rest = `${privacy}\nupstreams: { up: { origins: ["https://up.example"] } }\nworkspaces: { acme: { keys: ["${hash}"] } }\n`;

test('a port that is in use is named, with what to do', async () => {
  const other = createServer();
  await new Promise<void>((resolve) => other.listen(0, '127.0.0.1', resolve));
  const { port } = other.address() as AddressInfo;
  const path = await fileOf(`server: { host: 127.0.0.1, port: ${port}, adminPort: 0 }\n${rest}`);
  const { code, screen } = await said(sluice('serve', '--config', path));
  other.close();
  expect([code, screen]).toEqual([
    1,
    expect.stringMatching(new RegExp(`port ${port} is in use\\. .*server\\.port`)),
  ]);
});

test('a replica that could not start does not count as one', async () => {
  const redis = await startRedis();
  const probe = new Redis(redis.port, '127.0.0.1');
  const other = createServer();
  try {
    await new Promise<void>((resolve) => other.listen(0, '127.0.0.1', resolve));
    const { port } = other.address() as AddressInfo;
    const path = await fileOf(
      `server: { host: 127.0.0.1, port: ${port}, adminPort: 0 }\nredis: { url: "${redis.url}", replicas: 2, commandTimeoutMs: 2000 }\n${rest}`,
    );
    expect((await said(sluice('serve', '--config', path))).code).toBe(1);
    expect(await probe.zcard(replicasKey)).toBe(0);
    // It had been there: what Redis keeps of the log names its replica.
    expect((await probe.keys('sluice:*')).length).toBeGreaterThan(0);
  } finally {
    other.close();
    probe.disconnect();
    await redis.stop();
  }
});

test('a process that may open few files says so, and refuses connections before it has none left for the probes', async () => {
  const path = await fileOf(
    `server: { host: 127.0.0.1, port: 0, adminHost: 127.0.0.1, adminPort: 0 }\n${rest}`,
  );
  const limited = 'ulimit -n 256; exec "$@"';
  const serving = start('bash', [
    '-c',
    limited,
    '_',
    process.execPath,
    'bin/sluice.mjs',
    'serve',
    '--config',
    path,
  ]);
  const printed = await serving.saying('few files may be open');
  const [, port, adminPort] = /"port":(\d+),"adminPort":(\d+)/.exec(printed) ?? [];
  const sockets: Socket[] = [];
  for (let n = 0; n < 300; n += 1) sockets.push(connect(Number(port), '127.0.0.1').on('error', () => {}));
  const connecting = sockets.filter((socket) => socket.connecting);
  await Promise.all(connecting.map((socket) => once(socket, 'connect')));
  const metrics = async (): Promise<string> => (await fetch(`http://127.0.0.1:${adminPort}/metrics`)).text();
  await until(async () => /sluice_overload_total\{bound="connections"\} [1-9]/.test(await metrics()));
  for (const socket of sockets) socket.destroy();
});

test('Ctrl-C waits for no load balancer', async () => {
  // Longer than this test may take.
  const path = await fileOf(
    `server: { host: 127.0.0.1, port: 0, adminHost: 127.0.0.1, adminPort: 0, drainDelaySeconds: 100, drainSeconds: 110 }\n${rest}`,
  );
  const serving = sluice('serve', '--config', path);
  await serving.saying('"message":"serving"');
  serving.signal('SIGINT');
  expect(await serving.ended).toBe(0);
});

test('at a terminal it says where to call and where to look, and what will surprise', () => {
  const yaml = `${privacy}\nupstreams: { up: { origins: ["https://up.example"] } }\nworkspaces: { acme: { keys: ["${hash}"] }, beta: { keys: [] } }\n`;
  const settings = parseSettings(yaml, { path: 'sluice.yaml', env: {} });
  const at = (address: string, port: number): AddressInfo => ({ address, port, family: 'any' });
  const said = announcement(
    settings,
    { dataAddress: at('0.0.0.0', 8080), adminAddress: at('::1', 9090) },
    Date.UTC(2026, 0, 1),
  );
  expect(said).toContain('http://localhost:8080/via/up/…');
  expect(said).toContain('live page: http://[::1]:9090/');
  expect(said).toContain('2 workspaces');
  expect(said).toMatch(/^warning: {3}.*beta/m);
});
