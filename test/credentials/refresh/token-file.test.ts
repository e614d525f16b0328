/** Refresh tokens on a real file system. */
import { execFileSync } from 'node:child_process';
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
import { FileLock, lockMs } from '../../../src/credentials/refresh/file-lock.ts';
import {
  canReplace,
  isExposed,
  readTokenFile,
  replaceTokenFile,
  type ReadFile,
} from '../../../src/credentials/refresh/token-file.ts';

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
const modeOf = (file: string): string => (statSync(file).mode & 0o777).toString(8);

describe('a refresh token’s file', () => {
  test('is replaced in one step, so that no reader sees half of it, and no temporary file is left', async () => {
    const before = statSync(path).ino;
    expect(await replaceTokenFile(await seen(), 'two\n')).toBe('replaced');
    expect(readFileSync(path, 'utf8')).toBe('two\n');
    expect(statSync(path).ino).not.toBe(before);
    expect(readdirSync(folder)).toEqual(['token']);
  });

  test('is replaced also when a process was killed while it replaced it', async () => {
    writeFileSync(`${path}.new`, 'ha');
    expect(await replaceTokenFile(await seen(), 'two\n')).toBe('replaced');
    expect(readdirSync(folder)).toEqual(['token']);
  });

  test.each([
    ['600', '600', false],
    ['400', '600', false],
    ['640', '640', false],
    ['660', '660', false],
    ['644', '640', true],
    ['666', '660', true],
  ])('of mode %s has mode %s when it was replaced, open to all: %s', async (mode, then, exposed) => {
    chmodSync(path, parseInt(mode, 8));
    const reading = await seen();
    expect(isExposed(reading)).toBe(exposed);
    await replaceTokenFile(reading, 'two\n');
    expect(modeOf(path)).toBe(then);
  });

  test('behind a symbolic link is replaced where it is, and the link stays', async () => {
    const link = join(folder, 'link');
    symlinkSync('token', link);
    path = link;
    expect(await replaceTokenFile(await seen(), 'two\n')).toBe('replaced');
    expect(lstatSync(link).isSymbolicLink()).toBe(true);
    expect(readFileSync(join(folder, 'token'), 'utf8')).toBe('two\n');
  });

  test('that somebody else has written meanwhile stays as it is', async () => {
    const reading = await seen();
    writeFileSync(path, 'by hand\n');
    expect(await replaceTokenFile(reading, 'two\n')).toBe('changed');
    expect(readFileSync(path, 'utf8')).toBe('by hand\n');
    expect(readdirSync(folder)).toEqual(['token']);
  });

  test('in a folder that is gone cannot be replaced', async () => {
    const reading = await seen();
    const gone = { ...reading, realPath: join(folder, 'no', 'token') };
    expect(await replaceTokenFile(gone, 'two\n')).toBe('failed');
    expect(await canReplace(gone, 'probe')).toBe(false);
    expect(await canReplace(reading, 'probe')).toBe(true);
    expect(readdirSync(folder)).toEqual(['token']);
  });

  test('on a file system that takes no files cannot be replaced', async () => {
    // A text of one line that everybody may read, in a folder where nobody may make a file.
    path = '/proc/sys/kernel/ostype';
    const reading = await seen();
    expect(await canReplace(reading, 'probe')).toBe(false);
    expect(await replaceTokenFile(reading, 'two\n')).toBe('failed');
  });

  test('that cannot be read, or holds no token, is no file of a token', async () => {
    writeFileSync(path, 'a'.repeat(70_000));
    expect(await readTokenFile(path)).toEqual({ kind: 'failed', fault: 'invalid' });
    expect(await readTokenFile(join(folder, 'none'))).toEqual({ kind: 'failed', fault: 'missing' });
    expect(await readTokenFile(folder)).toEqual({ kind: 'failed', fault: 'missing' });
  });
});

describe('the lock of a file', () => {
  const lock = (id: string): FileLock => new FileLock(`${path}.lock`, id);

  test('is held by one of many that ask at once, and free again when that one ends', async () => {
    const locks = Array.from({ length: 20 }, (_, n) => lock(`id${n}`));
    const taken = await Promise.all(locks.map((each) => each.take()));
    expect(taken.filter((each) => each === 'taken')).toHaveLength(1);
    expect(taken.filter((each) => each === 'held')).toHaveLength(19);
    const holder = locks[taken.indexOf('taken')];
    expect(await holder?.isOurs()).toBe(true);
    await holder?.release();
    expect(await lock('next').take()).toBe('taken');
  });

  test('of a process that was killed is taken over by one of many when it is old', async () => {
    await lock('dead').take();
    expect(await lock('early').take()).toBe('held');
    // `touch` sets the time of the folder's own clock.
    execFileSync('touch', ['-d', `${lockMs / 1_000 + 1} seconds ago`, `${path}.lock`]);
    const many = Array.from({ length: 10 }, (_, n) => lock(`id${n}`));
    let taken: string[] = [];
    for (let n = 0; n < 100 && !taken.includes('taken'); n += 1)
      taken = await Promise.all(many.map((each) => each.take()));
    expect(taken.filter((each) => each === 'taken')).toHaveLength(1);
    expect(await lock('dead').isOurs()).toBe(false);
    await lock('dead').release();
    expect(await lock('late').take()).toBe('held');
    expect(readdirSync(folder).sort()).toEqual(['token', 'token.lock']);
  });

  test('cannot be taken where nothing can be written', async () => {
    expect(await new FileLock(join(folder, 'no', 'lock'), 'id').take()).toBe('failed');
  });
});
