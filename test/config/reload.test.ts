/** When a changed configuration file is read again, checked in a thread and handed over, and what a mistake in it costs. */
import { createHash } from 'node:crypto';
import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, test } from '@jest/globals';
import { filePollMs, systemClock } from '../../src/clock.ts';
import { readSettings } from '../../src/config/load.ts';
import { watchSettings, type WatchOptions } from '../../src/config/reload.ts';
import type { Settings } from '../../src/config/settings.ts';
import { closers } from '../support/closers.ts';
import { manualClock } from '../support/manual-clock.ts';

const sha256 = (text: string): string => createHash('sha256').update(text).digest('hex');
const textWith = (...keys: string[]): string => `upstreams:
  api: { origins: ['https://api.example.com'] }
workspaces:
  acme:
    keys: [${keys.map((key) => `'sha256:${sha256(key)}'`).join(', ')}]
`;
const firstKey = (settings: Settings | undefined) => settings?.workspaces.get('acme')?.keys[0]?.sha256;

const nextIteration = (): Promise<void> => new Promise((resume) => setImmediate(resume));
/** Lets the thread that checks a text, and everything else, go on until something holds. */
async function until(holds: () => boolean): Promise<void> {
  while (!holds()) await nextIteration();
}

function folder(): string {
  const path = mkdtempSync(join(tmpdir(), 'sluice-reload-'));
  closers.push(() => rmSync(path, { recursive: true }));
  return path;
}

/** Watches the file at `path`, whose text is in use; `changes`: what a test does in its own way. */
function watched(path: string, changes: Partial<WatchOptions>) {
  const settings: Settings[] = [];
  const errors: string[] = [];
  const watch = watchSettings({
    path,
    env: {},
    clock: systemClock,
    loadedDigest: readSettings({ path, env: {} }).digest,
    onSettings: (next) => void settings.push(next),
    onError: ({ message }) => void errors.push(message),
    ...changes,
  });
  closers.push(() => watch.close());
  return { watch, settings, errors };
}

/** A file that is watched by polling alone. */
function polled(text: string, changes: Partial<WatchOptions> = {}) {
  const path = join(folder(), 'sluice.yaml');
  writeFileSync(path, text);
  const clock = manualClock();
  const watching = watched(path, { clock, ...changes });
  /** Half a minute and more, in which every check that begins comes to its end. */
  const advance = async (ms = 60_000): Promise<void> => {
    for (let passed = 0; passed < ms; passed += filePollMs) {
      clock.advance(filePollMs);
      await nextIteration();
    }
  };
  /** Another text, or none, and time enough to see it. */
  const write = async (next: string | null, ms?: number): Promise<void> => {
    if (next === null) rmSync(path);
    else writeFileSync(path, next);
    await advance(ms);
  };
  const seen = () => [watching.settings.length, watching.errors.length];
  return { ...watching, path, clock, write, advance, seen };
}

describe('of a file that is looked at from time to time,', () => {
  test('a removed API key is refused within ten seconds', async () => {
    const { settings, write } = polled(textWith('one', 'two'));
    await write(textWith('one'), 2 * filePollMs);
    expect(settings.map(({ workspaces }) => workspaces.get('acme')?.keys.length)).toEqual([1]);
    expect(2 * filePollMs).toBeLessThan(10_000);
  });

  test('an unchanged file is never applied, a changed one once', async () => {
    const { seen, write, advance } = polled(textWith('one'));
    await advance();
    expect(seen()).toEqual([0, 0]);
    await write(textWith('two'));
    expect(seen()).toEqual([1, 0]);
  });

  test('a text that has not changed is not read again and again', async () => {
    const { advance } = polled(`${textWith('one')}# ${'x'.repeat(1_000_000)}\n`);
    const bytesRead = (): number =>
      Number(/^rchar: (\d+)$/m.exec(readFileSync('/proc/self/io', 'latin1'))?.[1]);
    await advance();
    const before = bytesRead();
    await advance();
    expect(bytesRead() - before).toBeLessThan(1_000_000);
  });

  test('a change of the .env beside the file is a change: it cures a missing variable, and gives another value', async () => {
    const { path, settings, errors, seen, write, advance } = polled(textWith('one'));
    await write(textWith('one').replace('api.example.com', '${HOST}'));
    expect(errors).toEqual([expect.stringContaining('HOST, which is not set')]);
    for (const host of ['a.example.com', 'b.example.com']) {
      writeFileSync(join(path, '..', '.env'), `HOST=${host}`);
      await advance();
      expect(settings.at(-1)?.upstreams.get('api')?.origins[0]).toMatchObject({ host });
    }
    expect(seen()).toEqual([2, 1]);
  });
});

describe('an invalid configuration file', () => {
  /** Texts one after the other, and how often each time settings were applied and errors reported. */
  const [one, two] = [textWith('one'), textWith('two')];
  test.each<[string, (string | null)[], string]>([
    [
      'leaves the old settings in use, is reported once, and tried again when it changes',
      ['upstreams: {}\n', null, two],
      '0,1 0,2 1,2',
    ],
    [
      'that returns to the text in use is taken over, and reported again when it is invalid again',
      ['x', one, 'x'],
      '0,1 1,1 1,2',
    ],
    [
      'that was missing and returns unchanged is taken over again: it counts as accepted',
      [null, one],
      '0,1 1,1',
    ],
  ])('%s', async (_, texts, expected) => {
    const { seen, write } = polled(one);
    const after: unknown[] = [];
    for (const text of texts) {
      await write(text);
      after.push(seen());
    }
    expect(after.join(' ')).toBe(expected);
  });
});

test('a file that is half-written is not used while it still grows', async () => {
  const { path, clock, settings, errors, write } = polled(textWith('one'));
  const first = `workspaces:\n  first: { keys: ['sha256:${sha256('x')}'] }`;
  const whole = textWith('one').replace('workspaces:', first);
  writeFileSync(path, whole.slice(0, whole.indexOf('  acme:')));
  clock.advance(filePollMs);
  await write(whole, 2 * filePollMs);
  expect([errors, settings.map(({ workspaces }) => workspaces.size)]).toEqual([[], [2]]);
});

test('a reload on demand reads the file at once, changed or not, and reports every failure', async () => {
  const { path, seen, watch } = polled(textWith('one'));
  expect(await watch.reloadNow()).toBe(true);
  writeFileSync(path, 'x');
  expect([await watch.reloadNow(), await watch.reloadNow()]).toEqual([false, false]);
  expect(seen()).toEqual([1, 2]);
});

test('reloads follow each other: what changes during one is applied after it', async () => {
  const taken: (string | undefined)[] = [];
  const open: (() => void)[] = [];
  const { path, watch, advance } = polled(textWith('zero'), {
    onSettings: (settings) => {
      taken.push(firstKey(settings));
      return new Promise((resolve) => void open.push(resolve));
    },
  });
  writeFileSync(path, textWith('one'));
  const reloads = [watch.reloadNow(), watch.reloadNow()];
  await until(() => open.length === 1);
  writeFileSync(path, textWith('two'));
  await advance();
  expect(taken).toEqual([sha256('one')]);
  open.shift()?.();
  await until(() => open.length === 1);
  writeFileSync(path, textWith('zero'));
  open.shift()?.();
  expect(await Promise.all(reloads)).toEqual([true, true]);
  await advance(2 * filePollMs);
  expect(taken).toEqual(['one', 'two', 'zero'].map(sha256));
  open.shift()?.();
});

test('a text of two hundred workspaces is checked in a thread, with the result and the words of the start', async () => {
  const one = (n: number): string => `  w${n}: { keys: ['sha256:${String(n).padStart(64, 'a')}'] }\n`;
  const many = Array.from({ length: 200 }, (_, n) => one(n)).join('');
  const long = (weight: string): string => `${textWith('one')}${many}  w: { weight: ${weight}, keys: [] }\n`;
  let threads = 0;
  const counts = (): void => void (threads += 1);
  subscribe('worker_threads', counts);
  closers.push(() => void unsubscribe('worker_threads', counts));
  const { path, watch, settings, errors } = polled(textWith('one'));
  expect([await watch.reloadNow(), threads]).toEqual([true, 0]);
  writeFileSync(path, long('2'));
  expect([await watch.reloadNow(), threads]).toEqual([true, 1]);
  expect(settings.at(-1)).toEqual(readSettings({ path, env: {} }).settings);
  writeFileSync(path, long('-1'));
  expect(await watch.reloadNow()).toBe(false);
  expect(() => readSettings({ path, env: {} })).toThrow(errors[0]);
});
