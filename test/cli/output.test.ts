/**
 * Outputs that break: a reader that is gone, a full disk, a pipe that is full and that nobody reads. Real processes, because
 * Node treats the standard streams unlike any other stream.
 */
import { afterEach, describe, expect, test } from '@jest/globals';
import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { openSync, closeSync } from 'node:fs';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { createServer, request, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { createKey } from '../../src/cli/keys.ts';
import { freePort } from '../support/free-port.ts';
import { until } from '../support/until.ts';

const enders: (() => unknown)[] = [];
afterEach(async () => {
  for (const end of enders.splice(0).toReversed()) await end();
});

/** Where an output leads: a pipe that the test reads, a pipe without a reader, a full disk. */
type Where = 'pipe' | 'gone' | 'full';

function start(
  args: readonly string[],
  out: Where,
  err: Where,
): ChildProcess & { readonly code: Promise<number | null> } {
  const full = openSync('/dev/full', 'w');
  const child = spawn(process.execPath, ['--max-semi-space-size=16', ...args], {
    stdio: ['ignore', out === 'full' ? full : 'pipe', err === 'full' ? full : 'pipe'],
  });
  closeSync(full);
  if (out === 'gone') child.stdout?.destroy();
  if (err === 'gone') child.stderr?.destroy();
  const code = once(child, 'exit').then(([status]: (number | null)[]) => status ?? null);
  enders.push(async () => {
    child.kill('SIGKILL');
    await code;
  });
  return Object.assign(child, { code });
}

async function file(name: string, content: string): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), 'sluice-output-'));
  enders.push(() => rm(folder, { recursive: true, force: true }));
  const path = join(folder, name);
  await writeFile(path, content);
  return path;
}

const { key, hash } = createKey();
const configuration = (origin: string, port = 0, adminPort = 0): string =>
  [
    `server: { host: 127.0.0.1, adminHost: 127.0.0.1, port: ${port}, adminPort: ${adminPort}, drainSeconds: 1, drainDelaySeconds: 0 }`,
    'privacy: { labelKey: "Tr0ub4dor&3-of-tests-only-8sWq" }',
    'log: { level: info, sampleSuccesses: 1 }',
    `upstreams: { api: { origins: ["${origin}"], allowPrivateAddresses: true, credential: "x", limits: { maxInFlight: 1 } } }`,
    `workspaces: { acme: { keys: ["${hash}"] } }`,
  ].join('\n');

/** An upstream that answers a call only when it is let. */
async function upstream() {
  const held: ServerResponse[] = [];
  const server = createServer((_, response) => void held.push(response));
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  enders.push(() => {
    server.closeAllConnections();
    server.close();
  });
  return { origin: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, held };
}

const call = (port: number, path: string, withKey = true): Promise<number> =>
  new Promise((resolve, reject) => {
    const headers = withKey ? { 'sluice-key': key } : {};
    request({ host: '127.0.0.1', port, path, headers }, (response) => {
      response.resume().on('end', () => resolve(response.statusCode ?? 0));
    })
      .on('error', reject)
      .end();
  });

async function ready(adminPort: number): Promise<void> {
  await until(
    () =>
      call(adminPort, '/readyz', false).then(
        (status) => status === 200,
        () => false,
      ),
    20,
  );
}

describe('serve goes on, and calls that it holds get their answers,', () => {
  test.each([
    ['when the reader of standard output leaves', 'gone', 'pipe'],
    ['when the readers of both outputs leave', 'gone', 'gone'],
    ['when the disk of both outputs is full', 'full', 'full'],
    ['when the reader of standard error leaves', 'pipe', 'gone'],
  ] as const)(
    '%s',
    async (_, out, err) => {
      const { origin, held } = await upstream();
      const [port, adminPort] = [await freePort(), await freePort()];
      const path = await file('sluice.yaml', configuration(origin, port, adminPort));
      // A full disk is full from the beginning; readers leave while calls are held.
      const atFirst = (where: Where): Where => (where === 'gone' ? 'pipe' : where);
      const child = start(['src/main.ts', 'serve', '--config', path], atFirst(out), atFirst(err));
      let printed = '';
      child.stderr?.on('data', (part: Buffer) => (printed += part.toString()));
      child.stdout?.resume();
      await ready(adminPort);
      const answers = [call(port, '/via/api/1'), call(port, '/via/api/2')];
      await until(() => held.length === 1);
      if (out === 'gone') child.stdout?.destroy();
      if (err === 'gone') child.stderr?.destroy();
      // Lines for either output: refused calls, and a reload that is refused.
      for (let n = 0; n < 5; n += 1) expect(await call(port, '/via/nobody/x')).toBe(403);
      await writeFile(path, 'nonsense');
      child.kill('SIGHUP');
      if (out === 'gone' && err === 'pipe') await until(() => printed.includes('log cannot be written'));
      for (let n = 0; n < 5; n += 1) expect(await call(port, '/via/nobody/x')).toBe(403);
      held[0]?.end('{}');
      await until(() => held.length === 2);
      held[1]?.end('{}');
      expect(await Promise.all(answers)).toEqual([200, 200]);
      expect(await call(adminPort, '/livez', false)).toBe(200);
      expect(printed.split('log cannot be written').length).toBe(out === 'gone' && err === 'pipe' ? 2 : 1);
      child.kill('SIGTERM');
      expect(await child.code).toBe(0);
    },
    60_000,
  );

  test('when nobody reads a pipe: it keeps a bounded part, and says how much is lost when somebody reads again', async () => {
    const writer = await file(
      'writer.ts',
      [
        `import { Output } from ${JSON.stringify(new URL('../../src/cli/output.ts', import.meta.url).href)};`,
        'const output = new Output(process.stdout, { onLoss: (why) => console.error(why), noticeOf: (lost) => `lost ${lost}\\n` });',
        'for (let n = 0; n < 6_000; n += 1) { output.write("x".repeat(999) + "\\n"); if (n % 100 === 0) await new Promise(setImmediate); }',
        'console.error("waiting", process.stdout.writableLength);',
        'process.once("SIGUSR2", () => output.write("end\\n"));',
        'const alive = setInterval(() => process.stdout.writableLength === 0 && (output.write("again\\n"), clearInterval(alive)), 20);',
      ].join('\n'),
    );
    const child = start([writer], 'pipe', 'pipe');
    let said = '';
    child.stderr?.on('data', (part: Buffer) => (said += part.toString()));
    await until(() => said.includes('waiting'));
    expect(said).toMatch(/^full\nwaiting /);
    expect(Number(/waiting (\d+)/.exec(said)?.[1])).toBeLessThan(1_100_000);
    if (child.stdout === null) throw new Error('no pipe');
    const lines = (await text(child.stdout)).split('\n');
    expect(await child.code).toBe(0);
    const whole = lines.filter((line) => line.length === 999).length;
    expect(lines).toContain(`lost ${6_000 - whole}`);
    expect(lines).toContain('again');
  });
});

describe('a command', () => {
  const commands: [name: string, args: readonly string[], code: number][] = [
    ['help', ['help'], 0],
    ['--version', ['--version'], 0],
    ['check', ['check', '--config', 'FILE'], 0],
    ['labels', ['labels', '--config', 'FILE'], 0],
    ['keys create', ['keys', 'create', '--workspace', 'acme'], 0],
  ];
  const withFile = async (args: readonly string[]): Promise<string[]> => {
    const path = await file('sluice.yaml', configuration('http://127.0.0.1:1'));
    return ['src/main.ts', ...args.map((word) => (word === 'FILE' ? path : word))];
  };

  test.each(commands)('%s ends quietly, as otherwise, when its reader leaves', async (_, args, code) => {
    const child = start(await withFile(args), 'gone', 'pipe');
    if (child.stderr === null) throw new Error('no pipe');
    expect(await text(child.stderr)).toBe('');
    expect(await child.code).toBe(code);
  });

  test.each(commands)('%s says that the disk is full, and fails', async (_, args) => {
    const child = start(await withFile(args), 'full', 'pipe');
    if (child.stderr === null) throw new Error('no pipe');
    expect(await text(child.stderr)).toBe(
      'Not everything could be written to the standard output: ENOSPC.\n',
    );
    expect(await child.code).toBe(1);
  });

  test.each([['gone'], ['full']] as const)(
    'keeps the exit code of its mistake when its complaint cannot be read (%s)',
    async (err) => {
      const child = start(['src/main.ts', 'nonsense'], 'pipe', err);
      child.stdout?.resume();
      expect(await child.code).toBe(2);
    },
  );
});
