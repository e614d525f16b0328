/** Refresh tokens in files: what may stand there, and what becomes of a file on a real file system. */
import {
  chmodSync,
  lstatSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from '@jest/globals';
import {
  readTokenFile,
  refreshTokenIn,
  replaceTokenFile,
  type ReadFile,
} from '../../../src/credentials/token-file.ts';

describe('the text of a refresh token’s file', () => {
  test.each([
    ['what echo writes', 'shprt_1\n', 'shprt_1'],
    ['plain text of any visible characters', '  a/b+c=.~{}\r\n', 'a/b+c=.~{}'],
    ['a response of the endpoint', '{"access_token":"a","expires_in":3600,"refresh_token":"r"}', 'r'],
  ])('may be %s', (_, text, refreshToken) => expect(refreshTokenIn(text)).toBe(refreshToken));

  const none = '| \n|two\nlines|é|{"access_token":"a"}|{"refresh_token":7}|{'.split('|');
  test.each([...none, 'a'.repeat(16_385)])('%j holds no refresh token', (text) =>
    expect(refreshTokenIn(text)).toBeNull(),
  );
});

let folder: string;
let path: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'sluice-refresh-'));
  path = join(folder, 'token');
  writeFileSync(path, 'one\n', { mode: 0o600 });
});
afterEach(() => {
  chmodSync(folder, 0o700);
  rmSync(folder, { recursive: true });
});
async function seen(): Promise<ReadFile> {
  const reading = await readTokenFile(path);
  if (reading.kind === 'failed') throw new Error(reading.fault);
  return reading;
}
const files = () => readdirSync(folder).toSorted();
const text = () => readFileSync(join(folder, 'token'), 'utf8');

describe('a refresh token’s file', () => {
  test('is replaced in one step, so that no reader sees half of it, also when a process was killed while it replaced it', async () => {
    writeFileSync(`${path}.new`, 'ha');
    const before = statSync(path).ino;
    expect(await replaceTokenFile(await seen(), 'two\n')).toBe(true);
    expect(statSync(path).ino).not.toBe(before);
    expect([text(), files()]).toEqual(['two\n', ['token']]);
  });

  test.each([
    ['600', '600'],
    ['400', '600'],
    ['640', '640'],
    ['660', '660'],
    ['644', '640'],
    ['666', '660'],
  ])('of mode %s has mode %s when it was replaced', async (mode, then) => {
    chmodSync(path, parseInt(mode, 8));
    const reading = await seen();
    await replaceTokenFile(reading, 'two\n');
    expect((statSync(path).mode & 0o777).toString(8)).toBe(then);
  });

  test('behind a symbolic link is replaced where it is, and the link stays', async () => {
    path = join(folder, 'link');
    symlinkSync('token', path);
    expect(await replaceTokenFile(await seen(), 'two\n')).toBe(true);
    expect([lstatSync(path).isSymbolicLink(), text()]).toEqual([true, 'two\n']);
  });

  test('that somebody else has written meanwhile stays as it is', async () => {
    const reading = await seen();
    writeFileSync(path, 'by hand\n');
    expect(await replaceTokenFile(reading, 'two\n')).toBe(false);
    expect([text(), files()]).toEqual(['by hand\n', ['token']]);
  });

  test('in a folder that is gone, or where nobody may make a file, cannot be replaced', async () => {
    const reading = await seen();
    // A text of one line that everybody may read.
    path = '/proc/sys/kernel/ostype';
    for (const reads of [{ ...reading, realPath: join(folder, 'no', 'token') }, await seen()]) {
      expect(await replaceTokenFile(reads, 'two\n')).toBe(false);
    }
    expect(files()).toEqual(['token']);
  });

  test('that cannot be read, or holds no token, is no file of a token', async () => {
    writeFileSync(path, 'a'.repeat(70_000));
    expect(await readTokenFile(path)).toMatchObject({ kind: 'failed', fault: 'invalid' });
    for (const missing of [join(folder, 'none'), folder])
      expect(await readTokenFile(missing)).toMatchObject({ kind: 'failed', fault: 'missing' });
  });
});
