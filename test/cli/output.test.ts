/**
 * Outputs that break: a reader that is gone, a full disk, a pipe that is full and that nobody reads. Real processes, because
 * Node treats the standard streams unlike any other stream.
 */
import { afterEach, describe, expect, test } from '@jest/globals';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { openSync, closeSync, writeFileSync } from 'node:fs';
import type { ServerResponse } from 'node:http';
import { text } from 'node:stream/consumers';
import { freePort } from '../support/free-port.ts';
import { listening } from '../support/listening.ts';
import { until } from '../support/until.ts';
import { clean, fileOf, key, yamlOf } from './started.ts';

const enders: (() => unknown)[] = [];
afterEach(async () => {
  for (const end of enders.splice(0).toReversed()) await end();
  await clean();
});

/** Where an output leads: a pipe that the test reads, a pipe without a reader, a full disk. */
type Where = 'pipe' | 'gone' | 'full';

function start(args: readonly string[], out: Where, err: Where) {
  const full = openSync('/dev/full', 'w');
  const child = spawn(process.execPath, ['--max-semi-space-size=16', ...args], {
    stdio: ['ignore', out === 'full' ? full : 'pipe', err === 'full' ? full : 'pipe'],
  });
  closeSync(full);
  if (out === 'gone') child.stdout?.destroy();
  if (err === 'gone') child.stderr?.destroy();
  const code = once(child, 'exit').then(([status]: (number | null)[]) => status ?? null);
  enders.push(() => {
    child.kill('SIGKILL');
    return code;
  });
  let said = '';
  child.stderr?.on('data', (part: Buffer) => (said += part.toString()));
  return { child, code, said: () => said };
}

describe('serve goes on, and calls that it holds get their answers,', () => {
  test.each([
    ['when the reader of standard output leaves', 'gone', 'pipe'],
    ['when the readers of both outputs leave', 'gone', 'gone'],
    ['when the disk of both outputs is full', 'full', 'full'],
    ['when the reader of standard error leaves', 'pipe', 'gone'],
  ] as const)('%s', async (_, out, err) => {
    /** Calls that the upstream lets wait for their responses. */
    const held: ServerResponse[] = [];
    const { url: origin, close } = await listening((_request, response) => void held.push(response));
    enders.push(close);
    const [port, adminPort] = [await freePort(), await freePort()];
    const path = fileOf(
      yamlOf(', drainSeconds: 1', 'log: { level: info, sampleSuccesses: 1 }')
        .replace('port: 0, adminPort: 0', `port: ${port}, adminPort: ${adminPort}`)
        .replace(
          '"https://up.example"]',
          `"${origin}"], allowPrivateAddresses: true, limits: { maxInFlight: 1 }`,
        ),
    );
    const status = (at: string): Promise<number> =>
      fetch(`http://127.0.0.1:${at}`, { headers: { 'sluice-key': key } }).then(
        async (response) => (await response.arrayBuffer(), response.status),
        () => 0,
      );
    // A full disk is full from the beginning; readers leave while calls are held.
    const atFirst = (where: Where): Where => (where === 'gone' ? 'pipe' : where);
    const { child, code, said } = start(
      ['src/main.ts', 'serve', '--config', path],
      atFirst(out),
      atFirst(err),
    );
    child.stdout?.resume();
    await until(async () => (await status(`${adminPort}/readyz`)) === 200, 20);
    const answers = [status(`${port}/via/up/1`), status(`${port}/via/up/2`)];
    await until(() => held.length === 1);
    if (out === 'gone') child.stdout?.destroy();
    if (err === 'gone') child.stderr?.destroy();
    const saysLoss = out === 'gone' && err === 'pipe';
    // Lines for either output: refused calls, and a reload that is refused.
    for (let n = 0; n < 5; n += 1) expect(await status(`${port}/via/nobody/x`)).toBe(403);
    writeFileSync(path, 'nonsense');
    child.kill('SIGHUP');
    if (saysLoss) await until(() => said().includes('log cannot be written'));
    for (let n = 0; n < 5; n += 1) expect(await status(`${port}/via/nobody/x`)).toBe(403);
    held[0]?.end('{}');
    await until(() => held.length === 2);
    held[1]?.end('{}');
    expect(await Promise.all(answers)).toEqual([200, 200]);
    expect(await status(`${adminPort}/livez`)).toBe(200);
    expect(said().split('log cannot be written').length).toBe(saysLoss ? 2 : 1);
    child.kill('SIGTERM');
    expect(await code).toBe(0);
  });

  test('when nobody reads a pipe: it keeps a bounded part, and goes on when somebody reads again', async () => {
    const source = JSON.stringify(new URL('../../src/cli/io.ts', import.meta.url).href);
    const writer = `
      import { outputTo } from ${source};
      const output = outputTo(process.stdout, (why) => console.error(why));
      for (let n = 0; n < 6_000; n += 1) { output.write("x".repeat(999) + "\\n"); if (n % 100 === 0) await new Promise(setImmediate); }
      console.error("waiting", process.stdout.writableLength);
      const alive = setInterval(() => process.stdout.writableLength === 0 && (output.write("again\\n"), clearInterval(alive)), 20);`;
    const { child, code, said } = start(['--input-type=module', '--eval', writer], 'pipe', 'pipe');
    await until(() => said().includes('waiting'));
    expect(said()).toMatch(/^full\nwaiting /);
    expect(Number(/waiting (\d+)/.exec(said())?.[1])).toBeLessThan(1_100_000);
    if (child.stdout === null) throw new Error('no pipe');
    const lines = (await text(child.stdout)).split('\n');
    expect(await code).toBe(0);
    expect(lines.filter((line) => line.length === 999).length).toBeLessThan(6_000);
    expect(lines).toContain('again');
  });
});

describe.each([
  'help',
  '--version',
  'check --config FILE',
  'labels --config FILE',
  'keys create --workspace acme',
])('sluice %s', (line) => {
  test.each([
    ['ends quietly, as otherwise, when its reader leaves', 'gone', 0, ''],
    [
      'says that the disk is full, and fails',
      'full',
      1,
      'Not everything could be written to the standard output: ENOSPC.\n',
    ],
  ] as const)('%s', async (_, out, status, words) => {
    const args = line.split(' ').map((word) => (word === 'FILE' ? fileOf(yamlOf()) : word));
    const { child, code, said } = start(['src/main.ts', ...args], out, 'pipe');
    await once(child, 'close');
    expect([await code, said()]).toEqual([status, words]);
  });
});
