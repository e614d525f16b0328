/** The demonstration: what it prints can be pasted, what it claims is true, and a signal ends all of it. */
import { execFileSync } from 'node:child_process';
import { once } from 'node:events';
import { createServer } from 'node:net';
import { afterEach, expect, test } from '@jest/globals';
import { clean, found, start } from './started.ts';

afterEach(clean);

const demo = (...args: readonly string[]) => start(process.execPath, ['src/main.ts', 'demo', ...args]);
const anyPorts = ['--port', '0', '--admin-port', '0'];

/** Status of what a line that begins with `curl` asks for, once a shell has read it: `-H` and `-d` are what such lines have. */
async function statusOf(line: string): Promise<number> {
  const script = `curl() { printf '%s\\0' "$@"; }\n${line}`;
  const words = execFileSync('/bin/sh', ['-c', script], { encoding: 'utf8' }).split('\0').slice(0, -1);
  const after = (option: string) => words.filter((_, at) => words[at - 1] === option);
  const [url = '', ...others] = words.filter((word) => word.startsWith('http'));
  const headers = after('-H').map((field) => field.split(/: */, 2) as [string, string]);
  const [body = null] = after('-d');
  expect([others, words.length]).toEqual([
    [],
    1 + 2 * headers.length + (body === null ? 0 : 2) + words.filter((word) => word === '-i').length,
  ]);
  const response = await fetch(url, { headers, body, method: body === null ? 'GET' : 'POST' });
  await response.arrayBuffer();
  return response.status;
}

test('demo --serve prints a key, pages and curl lines that get 200 when pasted, and ends with a signal', async () => {
  const { saying, signal, ended } = demo('--serve', ...anyPorts);
  const text = await saying('Ctrl-C ends this');
  const key = found(/API key +(slc_\S+)/, text);
  // With those that a backslash continues.
  const lines = text.match(/^ *curl .*(?<=\\)(?:\n.*(?<=\\))*\n.*$|^ *curl .*$/gm) ?? [];
  expect(lines).toHaveLength(4);
  for (const line of lines) expect([line, await statusOf(line)]).toEqual([expect.stringContaining(key), 200]);
  const [base, page, metrics] = ['base URL', 'live page', 'metrics'].map((name) =>
    found(new RegExp(`${name} +(\\S+)`), text),
  );
  const models = await fetch(`${base}/models`, { headers: { authorization: `Bearer ${key}` } });
  expect(models.status).toBe(200);
  for (const url of [page, metrics]) expect((await fetch(url ?? '')).status).toBe(200);
  signal('SIGTERM');
  expect(await ended).toBe(0);
  await expect(fetch(page ?? '')).rejects.toThrow();
});

test('npm start ends everything and frees the ports on a signal to the npm process, or to its group as Ctrl-C sends it', async () => {
  const ended = async (name: NodeJS.Signals, to: 'process' | 'group'): Promise<void> => {
    const { saying, signal, ended: end } = start('npm', ['start', '--', ...anyPorts]);
    const text = await saying('Ctrl-C ends this');
    const pages = [found(/data port +(\S+)/, text), found(/live page +(\S+)/, text)];
    for (const page of pages) expect((await fetch(page)).status).toBeLessThan(500);
    signal(name, to);
    await end;
    for (const page of pages) await expect(fetch(page)).rejects.toThrow();
  };
  await Promise.all([ended('SIGTERM', 'process'), ended('SIGINT', 'group')]);
});

test('demo --serve says that it took other ports, when a usual one is in use', async () => {
  // Whoever holds the port: this test, or somebody else.
  const taken = createServer().listen(8080, '127.0.0.1');
  await once(taken, 'listening').catch(() => {});
  const { saying, signal, ended } = demo('--serve');
  expect(await saying('Ctrl-C ends this')).toContain('Port 8080 or 9090 is in use');
  signal('SIGTERM');
  expect(await ended).toBe(0);
  taken.close();
});

test('demo shows that a burst fails without Sluice and succeeds through it, without a 429 at the upstreams', async () => {
  const { ended, printed } = demo('--calls', '360', ...anyPorts);
  expect(await ended).toBe(0);
  const row = (name: string): number[] =>
    found(new RegExp(`^ +${name} +(\\d.*)$`, 'm'), printed())
      .split(/\s{2,}/)
      .map(Number);
  expect(row('calls')).toEqual([360, 360]);
  // The upstreams take all 360 calls in five seconds: on a machine that takes nearly as long to send them they are no burst.
  const isBurst = Number(found(/^ +time +([\d.]+) s/m, printed())) < 2;
  for (const name of ['failed for the client', 'upstream 429s']) {
    const [straight = 0, through] = row(name);
    expect([name, isBurst && straight === 0, through]).toEqual([name, false, 0]);
  }
});
