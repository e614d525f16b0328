/** The check behind every test file finds what a planted file leaves open, and leaves a tidy one alone. */
import { afterAll, beforeAll, describe, expect, test } from '@jest/globals';
import { execFile } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('../../', import.meta.url));

/** By name: what a planted test does, and what the check says of it; `null` = nothing. */
const planted: Readonly<Record<string, readonly [body: string, leak: string | null]>> = {
  tidy: [
    `const timer = setTimeout(() => {}, 60_000); clearTimeout(timer); await listen(); server.close();`,
    null,
  ],
  timer: [`setTimeout(() => {}, 60_000);`, 'a timer made here'],
  interval: [`setInterval(() => {}, 60_000);`, 'a timer made here'],
  'unreferenced timer': [`setTimeout(() => {}, 60_000).unref();`, 'a timer made here'],
  server: [`await listen();`, 'a server on 127.0.0.1:'],
  socket: [
    `await listen(); const socket = connect(server.address().port, '127.0.0.1'); await once(socket, 'connect'); server.close();`,
    'a socket on 127.0.0.1:',
  ],
  'settled lease': [
    `const ticket = await enter(); (await ticket.whenGranted()).settle({ kind: 'succeeded', spent: null }, null); ticket.leave();`,
    null,
  ],
  'lease of unknown fate': [
    `const ticket = await enter(); (await ticket.whenGranted()).settle({ kind: 'unknown' }, null); ticket.leave();`,
    null,
  ],
  ticket: [
    `const ticket = await enter(); (await ticket.whenGranted()).settle({ kind: 'succeeded', spent: null }, null);`,
    'a ticket of a call to "u" in the test "planted", which never leaves its lane',
  ],
  lease: [
    `const ticket = await enter(); await ticket.whenGranted(); ticket.leave();`,
    'a lease of a call to "u" in the test "planted", which nobody settles',
  ],
  'lease in a store': [
    `await limiter.admit({ ...callOf(systemClock, 'other')[0].admission, maxWaitMs: 5_000, position: { kind: 'arrival', at: 0 } });`,
    '1 leases in a store, in a bucket of "u"',
  ],
  'child process': [
    `spawn(process.execPath, ['-e', 'setTimeout(() => {}, 5_000)'], { stdio: 'ignore' });`,
    'a child process made here',
  ],
};

const fileOf = (name: string): string => `${name.replaceAll(' ', '-')}.test.ts`;

const source = (body: string): string => `
import { afterAll, test } from '@jest/globals';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { connect, createServer } from 'node:net';
import { systemClock } from '${root}src/clock.ts';
import { callOf, embeddedQueue } from '${root}test/support/admission-queue.ts';
import { watchAdmission, watchStores } from '${root}test/support/open-calls.ts';
watchAdmission();
const { queue, limiter } = embeddedQueue({ clock: systemClock });
watchStores({ buckets: () => limiter.snapshot().map((snapshot) => ({ upstream: 'u', snapshot })) });
const enter = () => queue.enter(...callOf(systemClock, 'ticket'));
afterAll(() => limiter.close());
const server = createServer();
const listen = () => once(server.listen(0, '127.0.0.1'), 'listening');
test('planted', async () => { ${body} });
`;

/** What is said of a file whose test fails and leaves a timer: the failure. */
const failing = source(`setTimeout(() => {}, 60_000); throw new Error('the failure itself');`);

/** Members of Jest's JSON report. */
interface Report {
  readonly testResults: readonly {
    readonly name: string;
    readonly status: string;
    readonly message: string;
  }[];
}

const folder = mkdtempSync(join(tmpdir(), 'leak-check-'));
const results = new Map<string, { readonly status: string; readonly message: string }>();

beforeAll(async () => {
  for (const [name, [body]] of Object.entries(planted))
    writeFileSync(join(folder, fileOf(name)), source(body));
  writeFileSync(join(folder, 'failing.test.ts'), failing);
  const config = {
    rootDir: folder,
    testEnvironment: join(root, 'test/support/leak-check.mjs'),
    testEnvironmentOptions: { graceMs: 500 },
    extensionsToTreatAsEsm: ['.ts'],
    transform: { '\\.ts$': join(root, 'test/support/strip-types.mjs') },
    testMatch: ['<rootDir>/*.test.ts'],
  };
  const report = join(folder, 'report.json');
  const options = ['--config', JSON.stringify(config), '--json', '--outputFile', report, '--forceExit', '-i'];
  const jest = join(root, 'node_modules/jest/bin/jest.js');
  await new Promise((resolve) => {
    execFile(process.execPath, ['--experimental-vm-modules', jest, ...options], { cwd: folder }, resolve);
  });
  const { testResults } = JSON.parse(readFileSync(report, 'utf8')) as Report;
  for (const { name, status, message } of testResults) results.set(basename(name), { status, message });
});

afterAll(() => rmSync(folder, { recursive: true }));

describe('the leak check', () => {
  test.each(Object.entries(planted))(
    'reports what a test file left open, and nothing else: %s',
    (name, [, leak]) => {
      const { status, message } = results.get(fileOf(name)) ?? { status: 'missing', message: '' };
      if (leak === null) expect({ status, message }).toEqual({ status: 'passed', message: '' });
      else {
        expect(status).toBe('failed');
        expect(message).toContain(leak);
      }
    },
  );

  test('leaves the message of a failed test alone', () => {
    const { message } = results.get('failing.test.ts') ?? { message: '' };
    expect(message).toContain('the failure itself');
    expect(message).not.toContain('left open');
  });
});
