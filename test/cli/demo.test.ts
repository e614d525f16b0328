import { afterEach, describe, expect, test } from '@jest/globals';
import { execFile, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { createServer, type AddressInfo } from 'node:net';
import { promisify } from 'node:util';
import { endAll, found, start } from './started.ts';

afterEach(endAll);

const demo = (...args: readonly string[]) =>
  start(process.execPath, ['src/main.ts', 'demo', ...args, '--port', '0', '--admin-port', '0']);

/** How the word `curl` of a pasted line is run so that it prints the status alone. */
const curls = {
  'sh and curl': `curl() { command curl -sS -o /dev/null -w '%{http_code}' "$@"; }`,
  'sh and fetch': `curl() { "${process.execPath}" test/cli/curl.mjs "$@"; }`,
};
const hasCurl = spawnSync('curl', ['--version']).status === 0;

/** Lines that begin with `curl`, with those that a backslash continues. */
const printedCurls = (text: string): string[] =>
  text.match(/^ *curl .*(?<=\\)(?:\n.*(?<=\\))*\n.*$|^ *curl .*$/gm) ?? [];

describe('sluice demo --serve', () => {
  test('prints a key, pages and curl lines that get 200 when pasted, and ends with a signal', async () => {
    const { saying, signal, ended } = demo('--serve');
    const text = await saying('Ctrl-C ends this');
    const key = found(/API key +(slc_\S+)/, text);
    const lines = printedCurls(text);
    expect(lines).toHaveLength(4);
    for (const line of lines) {
      expect(line).toContain(key);
      for (const [name, curl] of Object.entries(curls)) {
        if (name === 'sh and curl' && !hasCurl) continue;
        const { stdout } = await promisify(execFile)('/bin/sh', ['-c', `${curl}\n${line}`]);
        expect({ name, line, status: stdout }).toEqual({ name, line, status: '200' });
      }
    }
    const models = await fetch(`${found(/base URL +(\S+)/, text)}/models`, {
      headers: { authorization: `Bearer ${key}` },
    });
    expect(models.status).toBe(200);
    const pages = [found(/live page +(\S+)/, text), found(/metrics +(\S+)/, text)];
    for (const page of pages) expect((await fetch(page)).status).toBe(200);
    signal('SIGTERM');
    expect(await ended).toBe(0);
    await expect(fetch(pages[0] ?? '')).rejects.toThrow();
  });
});

test('sluice demo --serve says that it took other ports, when a usual one is in use', async () => {
  // Whoever holds the port: this test, or somebody else.
  const taken = createServer().listen(8080, '127.0.0.1');
  try {
    await once(taken, 'listening').catch(() => {});
    const { saying, signal, ended } = start(process.execPath, ['src/main.ts', 'demo', '--serve']);
    expect(await saying('Ctrl-C ends this')).toContain('Port 8080 or 9090 is in use');
    signal('SIGTERM');
    expect(await ended).toBe(0);
  } finally {
    taken.close();
  }
});

describe('sluice demo', () => {
  test.each(['--port', '--admin-port'])(
    'says in one line that the %s port asked for is in use',
    async (option) => {
      const taken = createServer().listen(0, '127.0.0.1');
      try {
        await once(taken, 'listening');
        const port = String((taken.address() as AddressInfo).port);
        const { ended, printed } = start(process.execPath, ['src/main.ts', 'demo', '--serve', option, port]);
        expect(await ended).toBe(1);
        expect(printed()).toBe(
          `The demonstration could not start: listen EADDRINUSE: address already in use 127.0.0.1:${port}\n`,
        );
      } finally {
        taken.close();
      }
    },
  );

  test('shows that a burst fails without Sluice and succeeds through it, without a 429 at the upstreams', async () => {
    const { ended, printed } = demo('--calls', '360');
    const code = await ended;
    const row = (name: string): number[] =>
      found(new RegExp(`^ +${name} +(\\d.*)$`, 'm'), printed())
        .split(/\s{2,}/)
        .map(Number);
    expect(row('calls')).toEqual([360, 360]);
    // The upstreams take all 360 calls in five seconds: on a machine that takes nearly as long to send them they are no burst.
    const [, straightSeconds = 0] = /^ +time +([\d.]+) s/m.exec(printed()) ?? [];
    const isBurst = Number(straightSeconds) < 2;
    const [straight = 0, through] = row('failed for the client');
    if (isBurst) expect(straight).toBeGreaterThan(0);
    expect(through).toBe(0);
    const [throttles = 0, absorbed] = row('upstream 429s');
    if (isBurst) expect(throttles).toBeGreaterThan(0);
    expect(absorbed).toBe(0);
    expect(code).toBe(0);
  });
});
