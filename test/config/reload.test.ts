import { afterEach, describe, expect, test } from '@jest/globals';
import { createHash } from 'node:crypto';
import { EventEmitter } from 'node:events';
import { mkdirSync, mkdtempSync, renameSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Worker } from 'node:worker_threads';
import { Keyring } from '../../src/auth/keyring.ts';
import type { Clock } from '../../src/clock.ts';
import { systemClock } from '../../src/clock.ts';
import {
  checkResult,
  startCheckThread,
  type CheckTask,
  type StartThread,
} from '../../src/config/check-thread.ts';
import { readSettings } from '../../src/config/load.ts';
import { SettingsWatch } from '../../src/config/reload.ts';
import { pollMs, settleMs, type WatchFolder } from '../../src/file-watch.ts';
import type { Settings } from '../../src/config/settings.ts';
import { createSlices } from '../../src/slices.ts';
import { keyIndexOf } from '../support/keys.ts';

const sha256 = (text: string): string => createHash('sha256').update(text).digest('hex');
const textWith = (...keys: string[]): string => `upstreams:
  api: { origins: ['https://api.example.com'] }
workspaces:
  acme:
    keys: [${keys.map((key) => `'sha256:${sha256(key)}'`).join(', ')}]
`;

/** A clock that moves only when the test says so. */
class ManualClock implements Pick<Clock, 'after'> {
  #time = 0;
  #timers: { at: number; run: () => void }[] = [];

  after(delayMs: number, run: () => void): () => void {
    const timer = { at: this.#time + delayMs, run };
    this.#timers.push(timer);
    return () => {
      this.#timers = this.#timers.filter((other) => other !== timer);
    };
  }

  get pending(): number {
    return this.#timers.length;
  }

  advance(ms: number): void {
    const end = this.#time + ms;
    for (;;) {
      const next = this.#timers.filter(({ at }) => at <= end).toSorted((a, b) => a.at - b.at)[0];
      if (next === undefined) break;
      this.#timers = this.#timers.filter((other) => other !== next);
      this.#time = next.at;
      next.run();
    }
    this.#time = end;
  }
}

const slices = createSlices(systemClock);
const closers: (() => void | Promise<void>)[] = [];
afterEach(async () => {
  for (const close of closers.splice(0)) await close();
});

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

/** The messages of a watch, and a promise for its next one. */
function recorder() {
  const settings: Settings[] = [];
  const errors: Error[] = [];
  let wake = (): void => {};
  return {
    settings,
    errors,
    next: () => new Promise<void>((resolve) => (wake = resolve)),
    onSettings: (value: Settings) => {
      settings.push(value);
      wake();
    },
    onError: (error: Error) => {
      errors.push(error);
      wake();
    },
  };
}

function watching(watch: SettingsWatch): SettingsWatch {
  closers.unshift(() => watch.close());
  return watch;
}

/** Does in the test's own thread what the other one does, a turn later: starting a real one takes a while. */
class NearThread extends EventEmitter {
  #isOver = false;

  constructor(task: CheckTask) {
    super();
    setImmediate(() => {
      if (!this.#isOver) this.emit('message', structuredClone(checkResult(task)));
      setImmediate(() => this.#end(0));
    });
  }

  terminate(): Promise<number> {
    this.#end(1);
    return Promise.resolve(1);
  }

  #end(code: number): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.emit('exit', code);
  }
}

/** A thread that does something else. */
const threadOf = (code: string): Worker => new Worker(code, { eval: true });

/** Counts threads that were started, and those that have not ended. */
function threads(start: StartThread) {
  let [started, ended] = [0, 0];
  const startThread: StartThread = (task) => {
    const thread = start(task);
    started += 1;
    thread.on('exit', () => (ended += 1));
    return thread;
  };
  return { startThread, started: () => started, running: () => started - ended };
}

/** A file watched by polling alone. `changes`: what a test does in its own way. */
function polled(
  text: string,
  changes: { onSettings?: (settings: Settings) => Promise<void>; startThread?: StartThread } = {},
) {
  const path = join(folder(), 'sluice.yaml');
  writeFileSync(path, text);
  const clock = new ManualClock();
  const seen = recorder();
  const checks = threads(changes.startThread ?? ((task) => new NearThread(task)));
  let event = (): void => {};
  const silentWatch: WatchFolder = (_folder, onEvent) => {
    event = onEvent;
    return () => {};
  };
  const { digest } = readSettings({ path, env: {} });
  const watch = watching(
    new SettingsWatch({
      path,
      env: {},
      clock,
      slices,
      loadedDigest: digest,
      watchFolder: silentWatch,
      ...seen,
      ...changes,
      startThread: checks.startThread,
    }),
  );
  /** Half a minute and more, in which every check that begins comes to its end. */
  const advance = async (ms = 60_000): Promise<void> => {
    for (let passed = 0; passed < ms; passed += settleMs) {
      clock.advance(settleMs);
      await nextIteration();
      await until(() => checks.running() === 0);
      await nextIteration();
    }
  };
  return { path, clock, seen, watch, checks, advance, event: () => event() };
}

describe('with a file system that reports changes,', () => {
  test('a rewritten file and a swapped ..data link are applied', async () => {
    const mount = folder();
    const version = (name: string, text: string): void => {
      mkdirSync(join(mount, name));
      writeFileSync(join(mount, name, 'sluice.yaml'), text);
    };
    // As the kubelet mounts a ConfigMap: sluice.yaml → ..data/sluice.yaml, ..data → a dated folder.
    version('..2026_01', textWith('one', 'two'));
    symlinkSync('..2026_01', join(mount, '..data'));
    symlinkSync('..data/sluice.yaml', join(mount, 'sluice.yaml'));
    const path = join(mount, 'sluice.yaml');
    const { settings, digest } = readSettings({ path, env: {} });
    let keys = keyIndexOf(settings);
    const keyring = new Keyring(() => keys, systemClock);
    const seen = recorder();
    // Polling is switched off: only the folder's events may lead to a reload here.
    const clock: Pick<Clock, 'after'> = {
      after: (ms, run) => (ms >= pollMs ? () => {} : systemClock.after(ms, run)),
    };
    watching(
      new SettingsWatch({
        path,
        env: {},
        clock,
        slices,
        loadedDigest: digest,
        onError: seen.onError,
        onSettings: (value) => {
          keys = keyIndexOf(value);
          seen.onSettings(value);
        },
      }),
    );
    expect(keyring.find('two')?.workspace.id).toBe('acme');

    const swapped = seen.next();
    version('..2026_02', textWith('one'));
    symlinkSync('..2026_02', join(mount, '..data_tmp'));
    renameSync(join(mount, '..data_tmp'), join(mount, '..data'));
    await swapped;
    expect(seen.errors).toEqual([]);
    expect(keyring.find('two')).toBeNull();
    expect(keyring.find('one')?.workspace.id).toBe('acme');

    const rewritten = seen.next();
    rmSync(path);
    writeFileSync(path, textWith('three'));
    await rewritten;
    // Between the two steps the file did not exist: a reload may have seen that, and kept the old settings.
    while (keyring.find('three') === null) await seen.next();
    expect(keyring.find('one')).toBeNull();
  });
});

describe('with a file system that reports no changes,', () => {
  test('a removed API key is refused within ten seconds', async () => {
    const { path, seen, advance } = polled(textWith('one', 'two'), { startThread: startCheckThread });
    writeFileSync(path, textWith('one'));
    await advance(pollMs + settleMs);
    expect(seen.settings.map(({ workspaces }) => workspaces.get('acme')?.keys.length)).toEqual([1]);
    expect(pollMs + settleMs).toBeLessThan(10_000);
  });

  test('an unchanged file is never applied, a changed one once', async () => {
    const { path, seen, checks, advance } = polled(textWith('one'));
    await advance();
    expect([seen.settings.length, checks.started()]).toEqual([0, 0]);
    writeFileSync(path, textWith('two'));
    await advance();
    expect([seen.settings.length, checks.started()]).toEqual([1, 1]);
  });

  test('a change of the .env beside the file is a change: it cures a missing variable, and gives another value', async () => {
    const { path, seen, advance } = polled(textWith('one'));
    const origins = (): unknown => seen.settings.at(-1)?.upstreams.get('api')?.origins[0];
    writeFileSync(path, textWith('one').replace('api.example.com', '${HOST}'));
    await advance();
    expect(seen.errors.map(({ message }) => message)).toEqual([
      expect.stringContaining('HOST, which is not set'),
    ]);
    for (const host of ['a.example.com', 'b.example.com']) {
      writeFileSync(join(path, '..', '.env'), `HOST=${host}`);
      await advance();
      expect(origins()).toMatchObject({ host });
    }
    expect([seen.settings.length, seen.errors.length]).toEqual([2, 1]);
  });
});

describe('an invalid configuration file', () => {
  test('leaves the old settings in use, is reported once, and is tried again when it changes', async () => {
    const { path, seen, checks, advance } = polled(textWith('one'));
    writeFileSync(path, 'upstreams: {}\n');
    await advance();
    expect(seen.settings).toHaveLength(0);
    expect(seen.errors.map(({ name }) => name)).toEqual(['ConfigError']);
    // The same text would be refused again: seconds of a core at each look, for ten thousand workspaces.
    expect(checks.started()).toBe(1);
    rmSync(path);
    await advance();
    expect(seen.errors).toHaveLength(2);
    writeFileSync(path, textWith('two'));
    await advance();
    expect(seen.settings).toHaveLength(1);
  });

  test('that lacks another file is applied when that file exists, without a change of its own', async () => {
    const { path, seen, advance } = polled(textWith('one'));
    writeFileSync(path, textWith('one').replace("com'] }", "com'], caFile: ca.pem }"));
    await advance();
    expect(seen.errors.map(({ message }) => message)).toEqual([
      expect.stringContaining('upstreams.api.caFile'),
    ]);
    writeFileSync(join(path, '..', 'ca.pem'), '');
    await advance();
    expect(seen.settings.map(({ upstreams }) => upstreams.get('api')?.caFile)).toEqual([
      join(path, '..', 'ca.pem'),
    ]);
  });

  test('is reported in the words of the start', async () => {
    const { path, seen, advance } = polled(textWith('one'), { startThread: startCheckThread });
    writeFileSync(path, `${textWith('one', 'one')}    weight: -1\n`);
    await advance();
    expect(seen.errors.map(({ message }) => message)).toEqual([expect.stringContaining('2 problems')]);
    expect(() => readSettings({ path, env: {} })).toThrow(seen.errors[0]?.message);
  });

  test('that returns to the text in use is taken over again, and reported again when it becomes invalid again', async () => {
    const { path, seen, advance } = polled(textWith('one'));
    for (const text of ['x', textWith('one'), 'x']) {
      writeFileSync(path, text);
      await advance();
    }
    expect(seen.errors).toHaveLength(2);
    expect(seen.settings).toHaveLength(1);
  });

  test('that was missing for a while and returns unchanged is taken over again, so that it counts as accepted', async () => {
    const { path, seen, advance } = polled(textWith('one'));
    rmSync(path);
    await advance();
    expect([seen.errors, seen.settings].map(({ length }) => length)).toEqual([1, 0]);
    writeFileSync(path, textWith('one'));
    await advance();
    expect([seen.errors, seen.settings].map(({ length }) => length)).toEqual([1, 1]);
  });
});

test('that is half-written is not used while it still grows', async () => {
  const { path, clock, seen, event, advance } = polled(textWith('one'));
  const whole = textWith('one').replace(
    'workspaces:',
    "workspaces:\n  first: { keys: ['sha256:" + sha256('x') + "'] }",
  );
  writeFileSync(path, whole.slice(0, whole.indexOf('  acme:')));
  event();
  clock.advance(settleMs);
  writeFileSync(path, whole);
  await advance(1_000);
  expect(seen.errors).toEqual([]);
  expect(seen.settings.map(({ workspaces }) => workspaces.size)).toEqual([2]);
});

test('a reload on demand reads the file at once, changed or not, and reports every failure', async () => {
  const { path, seen, watch } = polled(textWith('one'));
  expect(await watch.reloadNow()).toBe(true);
  writeFileSync(path, 'x');
  expect([await watch.reloadNow(), await watch.reloadNow()]).toEqual([false, false]);
  expect([seen.settings.length, seen.errors.length]).toEqual([1, 2]);
});

describe('while a reload goes on', () => {
  /** A watch whose settings are taken over only when the test lets them, one after the other. */
  function slow(startThread: StartThread = (task) => new NearThread(task)) {
    const taken: (string | undefined)[] = [];
    const open: (() => void)[] = [];
    const watched = polled(textWith('zero'), {
      startThread,
      onSettings: (settings) =>
        new Promise((resolve) => {
          open.push(() => {
            taken.push(settings.workspaces.get('acme')?.keys[0]?.sha256);
            resolve();
          });
        }),
    });
    const letGo = async (): Promise<void> => {
      await until(() => open.length > 0);
      open.shift()?.();
    };
    const write = (key: string): void => writeFileSync(watched.path, textWith(key));
    return { ...watched, taken, open, letGo, write };
  }

  test('the newest of several changes is applied afterwards, and the others are skipped', async () => {
    const { write, watch, taken, open, letGo } = slow();
    write('one');
    const first = watch.reloadNow();
    await until(() => open.length === 1);
    write('two');
    const second = watch.reloadNow();
    write('three');
    const third = watch.reloadNow();
    await letGo();
    await letGo();
    expect(await Promise.all([first, second, third])).toEqual([true, true, true]);
    expect(taken).toEqual([sha256('one'), sha256('three')]);
  });

  test('a file that returns to the text in use is applied as well', async () => {
    const { write, watch, clock, checks, taken, open, letGo } = slow();
    write('one');
    const first = watch.reloadNow();
    await until(() => open.length === 1);
    write('zero');
    for (let looks = 0; looks < 3; looks++) clock.advance(pollMs);
    await letGo();
    await letGo();
    expect(await first).toBe(true);
    expect(taken).toEqual([sha256('one'), sha256('zero')]);
    expect(checks.started()).toBe(2);
  });

  test.each([
    ['as it is', startCheckThread],
    ['that would never end', () => threadOf('setInterval(() => {}, 1000)')],
  ])('closing ends the thread %s, and nothing more is applied', async (_, startThread: StartThread) => {
    const { write, watch, checks, open } = slow(startThread);
    write('one');
    const reloaded = watch.reloadNow();
    expect(checks.running()).toBe(1);
    await watch.close();
    expect(await reloaded).toBe(false);
    expect([checks.running(), open.length]).toEqual([0, 0]);
  });

  test('settings that cannot be applied are reported and tried again', async () => {
    let failures = 1;
    const { path, seen, advance } = polled(textWith('one'), {
      onSettings: () =>
        failures-- > 0 ? Promise.reject(new Error('a pool is in the way')) : Promise.resolve(),
    });
    writeFileSync(path, textWith('two'));
    await advance();
    expect(seen.errors.map(({ message }) => message)).toEqual(['a pool is in the way']);
    expect(failures).toBe(-1);
  });
});

describe('a checking thread that gives no result leaves the old settings, names the reason and is started again', () => {
  test.each([
    [
      'cannot start',
      (): Worker => {
        throw new Error('no more threads');
      },
      'the thread that checks the configuration could not start: no more threads',
    ],
    [
      'throws',
      () => threadOf('throw new Error("out of order")'),
      'the thread that checks the configuration failed: out of order',
    ],
    [
      'ends early',
      () => threadOf('process.exit(3)'),
      'the thread that checks the configuration ended without a result (exit code 3)',
    ],
  ])('when it %s', async (_, broken, message) => {
    let isBroken = true;
    const { path, seen, advance } = polled(textWith('one'), {
      startThread: (task) => (isBroken ? broken() : new NearThread(task)),
    });
    writeFileSync(path, textWith('two'));
    await advance(2 * pollMs);
    await until(() => seen.errors.length > 0);
    expect([seen.settings.length, seen.errors.map((error) => error.message)]).toEqual([0, [message]]);
    isBroken = false;
    await advance(2 * pollMs);
    await until(() => seen.settings.length > 0);
    expect(seen.settings[0]?.workspaces.get('acme')?.keys[0]?.sha256).toBe(sha256('two'));
  });
});

test('a folder that cannot be watched is reported, and the file is polled instead', async () => {
  const { path } = polled(textWith('one'));
  const clock = new ManualClock();
  const seen = recorder();
  const watchFolder: WatchFolder = () => {
    throw new Error('too many watches');
  };
  const { digest } = readSettings({ path, env: {} });
  watching(new SettingsWatch({ path, env: {}, clock, slices, loadedDigest: digest, watchFolder, ...seen }));
  expect(seen.errors.map(({ message }) => message)).toEqual(['too many watches']);
  writeFileSync(path, textWith('two'));
  clock.advance(pollMs + settleMs);
  await until(() => seen.settings.length === 1);
});

test('closing a reload leaves no timer', async () => {
  const { clock, watch } = polled(textWith('one'));
  await watch.close();
  expect(clock.pending).toBe(0);
});
