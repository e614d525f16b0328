/** `sluice serve`: where it listens, why it cannot, what it writes, and that Ctrl-C ends it. */
import { execFile } from 'node:child_process';
import { EventEmitter, once } from 'node:events';
import { writeFileSync } from 'node:fs';
import { type AddressInfo, connect, createServer } from 'node:net';
import { setImmediate } from 'node:timers/promises';
import { promisify } from 'node:util';
import { afterEach, expect, test } from '@jest/globals';
import { endSignals } from '../../src/cli/io.ts';
import { announcement } from '../../src/cli/serve.ts';
import { parseSettings } from '../../src/config/load.ts';
import { until } from '../support/until.ts';
import { clean, fileOf, found, serve, sluice, start, yamlOf } from './started.ts';

afterEach(clean);

test('a port that is in use is named, with what to do', async () => {
  const other = createServer().listen(0, '127.0.0.1');
  await once(other, 'listening');
  const { port } = other.address() as AddressInfo;
  const { ended, printed } = sluice(
    'serve',
    '--config',
    fileOf(yamlOf().replace('port: 0', `port: ${port}`)),
  );
  expect(await ended).toBe(1);
  expect(printed()).toMatch(new RegExp(`port ${port} is in use\\. .*server\\.port`));
  other.close();
});

test.each(['127.0.0.1:8080', '192.0.2.1'])(
  'a host on which nobody can listen is named, with what to do: %s',
  async (host) => {
    const { ended, printed } = sluice(
      'serve',
      '--config',
      fileOf(yamlOf().replace('host: 127.0.0.1', `host: '${host}'`)),
    );
    expect(await ended).toBe(1);
    expect(printed()).toContain(`${host} is no address of this machine. Give server.host`);
  },
);

test('a process that may open few files says so, and refuses connections before it has none left for the probes', async () => {
  const command = ['bin/sluice.mjs', 'serve', '--config', fileOf(yamlOf())];
  const serving = start('bash', ['-c', 'ulimit -n 256; exec "$@"', '_', process.execPath, ...command]);
  const printed = await serving.saying('few files may be open');
  const port = Number(found(/"port":(\d+)/, printed));
  const sockets = Array.from({ length: 300 }, () => connect(port, '127.0.0.1').on('error', () => {}));
  await Promise.all(sockets.filter(({ connecting }) => connecting).map((each) => once(each, 'connect')));
  const metrics = `http://127.0.0.1:${found(/"adminPort":(\d+)/, printed)}/metrics`;
  const isRefused = /sluice_overload_total\{bound="connections"\} [1-9]/;
  await until(async () => isRefused.test(await (await fetch(metrics)).text()));
  await serving.saying('connections of clients are refused or cut');
  for (const socket of sockets) socket.destroy();
});

test('Ctrl-C waits for no load balancer', async () => {
  // Longer than this test may take.
  const yaml = yamlOf(', drainSeconds: 1000').replace('drainDelaySeconds: 0', 'drainDelaySeconds: 900');
  const serving = sluice('serve', '--config', fileOf(yaml));
  await serving.saying('"message":"serving"');
  serving.signal('SIGINT');
  expect(await serving.ended).toBe(0);
});

test('an echo of the first signal to end is not a second one: they are told apart by time', async () => {
  let now = 1_000;
  const process = new EventEmitter();
  const { first, second } = endSignals({ monotonic: () => now }, process);
  const ended: string[] = [];
  void first.then(() => ended.push('first'));
  void second.then(() => ended.push('second'));
  process.emit('SIGINT');
  now += 499;
  process.emit('SIGINT');
  process.emit('SIGTERM');
  await setImmediate();
  expect(ended).toEqual(['first']);
  now += 1;
  process.emit('SIGTERM');
  await setImmediate();
  expect(ended).toEqual(['first', 'second']);
});

test('serve writes nothing but JSON, also of a refused reload, and a last line when it ends', async () => {
  const { path, adminUrl, ...process } = await serve(yamlOf());
  const asked = async (page: string) => (await fetch(`${adminUrl}/${page}`)).text();
  const at = async () =>
    Number(found(/^sluice_config_last_reload_success_timestamp_seconds (\S+)$/m, await asked('metrics')));
  const startedAt = await at();
  expect(startedAt).toBeGreaterThan(1e9);
  writeFileSync(path, yamlOf().replace('{ origins', '{ kond: generic, origins'));
  expect(await process.saying('configuration refused')).toMatch(/upstreams\.up\.kond: is not a known key/);
  expect(await asked('metrics')).toMatch(/^sluice_config_last_reload_successful 0$/m);
  expect(await asked('activity')).toMatch(
    /"Your last change is not in force\."[^}]*Your configuration was refused at \d\d:\d\d.UTC\./,
  );
  expect(await at()).toBe(startedAt);
  writeFileSync(path, yamlOf(', maxBodyBytes: 5').replace('none', '5'));
  expect(await process.saying('take effect at the next start')).toContain('"keys":"server.maxBodyBytes"');
  expect(process.printed()).toContain('configuration reloaded');
  expect(await asked('metrics')).toMatch(/^sluice_config_last_reload_successful 1$/m);
  expect(await at()).toBeGreaterThan(startedAt);
  process.signal('SIGTERM');
  expect(await process.ended).toBe(0);
  expect(process.printed()).not.toContain('acme');
  const lines = process.printed().trimEnd().split('\n');
  const read = lines.map((line) => JSON.parse(line) as { readonly message: unknown; readonly time: string });
  for (const { time } of read) expect(Date.parse(time)).not.toBeNaN();
  expect(read.at(-1)?.message).toBe('ended');
});

test('at a terminal it says where to call and where to look, and what will surprise', () => {
  const yaml = yamlOf().replace('workspaces: {', 'workspaces: { beta: { keys: [] },');
  const settings = parseSettings(yaml, { path: 'sluice.yaml', env: {} });
  const at = (address: string, port: number): AddressInfo => ({ address, port, family: 'any' });
  const addresses = { dataAddress: at('0.0.0.0', 8080), adminAddress: at('::1', 9090) };
  const said = announcement(settings, addresses, Date.UTC(2026, 0, 1));
  for (const words of ['http://localhost:8080/via/up/…', 'live page: http://[::1]:9090/', '2 workspaces'])
    expect(said).toContain(words);
  expect(said).toMatch(/^warning: {3}.*beta/m);
});

const entry = 'bin/sluice.mjs';
const words = (version: string): string =>
  `Sluice needs Node 24.18.1 or newer; this is ${version}. Older versions drop header fields that frame a body. ` +
  'Install Node 24: https://nodejs.org/en/download\n';

/** What the command says in a process that takes itself for this version. */
async function saidBy(version: string): Promise<unknown> {
  const pretence = `Object.defineProperty(process.versions, 'node', { value: '${version}' })`;
  const args = ['--import', `data:text/javascript,${encodeURIComponent(pretence)}`, entry, '--help'];
  const { stdout, stderr, code } = await promisify(execFile)(process.execPath, args)
    .then((said) => ({ ...said, code: 0 }))
    .catch((failure: { stdout: string; stderr: string; code: number }) => failure);
  return { stderr, code, helped: stdout.startsWith('Usage: sluice') };
}

test.each(['14.21.3', '20.19.5', '24.18.0'])('Node %s is told which one is needed', async (version) =>
  expect(await saidBy(version)).toEqual({ stderr: words(version), code: 1, helped: false }),
);

test.each(['24.18.1', '24.19.0', '26.0.0'])('Node %s runs the command', async (version) =>
  expect(await saidBy(version)).toMatchObject({ code: 0, helped: true }),
);
