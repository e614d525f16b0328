import { afterEach, describe, expect, test } from '@jest/globals';
import { createHash } from 'node:crypto';
import { mkdirSync, mkdtempSync, renameSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Keyring } from '../../src/auth/keyring.ts';
import type { Clock } from '../../src/clock.ts';
import { systemClock } from '../../src/clock.ts';
import { readSettings } from '../../src/config/load.ts';
import { pollMs, settleMs, watchSettings } from '../../src/config/reload.ts';
import type { SettingsWatch, WatchFolder } from '../../src/config/reload.ts';
import type { Settings } from '../../src/config/settings.ts';

const sha256 = (text: string): string => createHash('sha256').update(text).digest('hex');
const textWith = (...keys: string[]): string => `upstreams:
  api: { origins: ['https://api.example.com'] }
workspaces:
  acme:
    keys: [${keys.map((key) => `'sha256:${sha256(key)}'`).join(', ')}]
`;

/** A clock that moves only when told to. */
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

const closers: (() => void)[] = [];
afterEach(() => {
  for (const close of closers.splice(0)) close();
});

function folder(): string {
  const path = mkdtempSync(join(tmpdir(), 'sluice-reload-'));
  closers.push(() => rmSync(path, { recursive: true }));
  return path;
}

/** What a watch told, and a promise for its next message. */
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

/** A file watched by polling alone. */
function polled(text: string) {
  const path = join(folder(), 'sluice.yaml');
  writeFileSync(path, text);
  const clock = new ManualClock();
  const told = recorder();
  let event = (): void => {};
  const deaf: WatchFolder = (_folder, onEvent) => {
    event = onEvent;
    return () => {};
  };
  const { digest } = readSettings({ path, env: {} });
  const watch = watching(
    watchSettings({ path, env: {}, clock, loadedDigest: digest, watchFolder: deaf, ...told }),
  );
  return { path, clock, told, watch, event: () => event() };
}

describe('with a file system that tells of changes', () => {
  test('a rewritten file and a swapped ..data link hand over the new settings', async () => {
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
    const keyring = new Keyring(settings, systemClock);
    const told = recorder();
    // Polling is switched off: only the folder's events may lead to a reload here.
    const clock: Pick<Clock, 'after'> = {
      after: (ms, run) => (ms >= pollMs ? () => {} : systemClock.after(ms, run)),
    };
    watching(
      watchSettings({
        path,
        env: {},
        clock,
        loadedDigest: digest,
        onError: told.onError,
        onSettings: (value) => {
          keyring.replace(value);
          told.onSettings(value);
        },
      }),
    );
    expect(keyring.find('two')?.workspace.id).toBe('acme');

    const swapped = told.next();
    version('..2026_02', textWith('one'));
    symlinkSync('..2026_02', join(mount, '..data_tmp'));
    renameSync(join(mount, '..data_tmp'), join(mount, '..data'));
    await swapped;
    expect(told.errors).toEqual([]);
    expect(keyring.find('two')).toBeNull();
    expect(keyring.find('one')?.workspace.id).toBe('acme');

    const rewritten = told.next();
    rmSync(path);
    writeFileSync(path, textWith('three'));
    await rewritten;
    // Between the two steps the file was away: that may have been told, and kept the old settings.
    while (keyring.find('three') === null) await told.next();
    expect(keyring.find('one')).toBeNull();
  });
});

describe('with a file system that tells nothing', () => {
  test('a removed key is refused within ten seconds', () => {
    const { path, clock, told } = polled(textWith('one', 'two'));
    writeFileSync(path, textWith('one'));
    clock.advance(pollMs + settleMs);
    expect(told.settings.map(({ workspaces }) => workspaces.get('acme')?.keys.length)).toEqual([1]);
    expect(pollMs + settleMs).toBeLessThan(10_000);
  });

  test('an unchanged file is handed over never, a changed one once', () => {
    const { path, clock, told } = polled(textWith('one'));
    clock.advance(60_000);
    expect(told.settings).toHaveLength(0);
    writeFileSync(path, textWith('two'));
    clock.advance(60_000);
    expect(told.settings).toHaveLength(1);
  });
});

describe('a file that cannot be used', () => {
  test('leaves the old settings, is told once, and is tried again', () => {
    const { path, clock, told } = polled(textWith('one'));
    writeFileSync(path, 'upstreams: {}\n');
    clock.advance(60_000);
    expect(told.settings).toHaveLength(0);
    expect(told.errors.map(({ name }) => name)).toEqual(['ConfigError']);
    rmSync(path);
    clock.advance(60_000);
    expect(told.errors).toHaveLength(2);
    writeFileSync(path, textWith('two'));
    clock.advance(60_000);
    expect(told.settings).toHaveLength(1);
  });

  test('that reverts to the text in use is told again when it breaks again', () => {
    const { path, clock, told } = polled(textWith('one'));
    for (const text of ['x', textWith('one'), 'x']) {
      writeFileSync(path, text);
      clock.advance(60_000);
    }
    expect(told.errors).toHaveLength(2);
    expect(told.settings).toHaveLength(0);
  });
});

test('a half-written file is not used while it still grows', () => {
  const { path, clock, told, event } = polled(textWith('one'));
  const whole = textWith('one').replace(
    'workspaces:',
    "workspaces:\n  first: { keys: ['sha256:" + sha256('x') + "'] }",
  );
  writeFileSync(path, whole.slice(0, whole.indexOf('  acme:')));
  event();
  clock.advance(settleMs);
  writeFileSync(path, whole);
  clock.advance(1_000);
  expect(told.errors).toEqual([]);
  expect(told.settings.map(({ workspaces }) => workspaces.size)).toEqual([2]);
});

test('a reload on demand reads at once, changed or not, and tells every failure', () => {
  const { path, told, watch } = polled(textWith('one'));
  expect(watch.reloadNow()).toBe(true);
  writeFileSync(path, 'x');
  expect([watch.reloadNow(), watch.reloadNow()]).toEqual([false, false]);
  expect([told.settings.length, told.errors.length]).toEqual([1, 2]);
});

test('a folder that cannot be watched is told, and polling goes on', () => {
  const { path } = polled(textWith('one'));
  const clock = new ManualClock();
  const told = recorder();
  const watchFolder: WatchFolder = () => {
    throw new Error('too many watches');
  };
  const { digest } = readSettings({ path, env: {} });
  watching(watchSettings({ path, env: {}, clock, loadedDigest: digest, watchFolder, ...told }));
  expect(told.errors.map(({ message }) => message)).toEqual(['too many watches']);
  writeFileSync(path, textWith('two'));
  clock.advance(pollMs + settleMs);
  expect(told.settings).toHaveLength(1);
});

test('closing leaves no timer', () => {
  const { clock, watch } = polled(textWith('one'));
  watch.close();
  expect(clock.pending).toBe(0);
});
