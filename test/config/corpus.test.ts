import { describe, expect, test } from '@jest/globals';
import { readFileSync, readdirSync } from 'node:fs';
import { z } from 'zod';
import { parse } from 'yaml';
import { systemClock } from '../../src/clock.ts';
import { checkResult } from '../../src/config/check-thread.ts';
import { ConfigError, loadSettings, parseSettings, settingsOf } from '../../src/config/load.ts';
import type { Settings } from '../../src/config/settings.ts';
import { createSlices } from '../../src/slices.ts';

const folder = (name: string): URL => new URL(`${name}/`, import.meta.url);
const files = (name: string): string[] => readdirSync(folder(name)).filter((file) => file.endsWith('.yaml'));
const pathOf = (name: string, file: string): string => new URL(file, folder(name)).pathname;

const env = {
  PORT: '8123',
  REDIS_URL: 'redis://127.0.0.1:6379',
  SLUICE_LABEL_KEY: 'a label key of the tests',
  OPENAI_API_KEY: 'sk-tests',
  SHOP_TOKEN: 'shop-token',
  ACME_SHOP_TOKEN: 'acme-shop-token',
};

/** Each problem of the file as the first line of its message says it, or `usable`. */
function verdict(path: string): string[] {
  try {
    loadSettings({ path, env });
    return ['usable'];
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error;
    for (const { fix } of error.problems) expect(fix).not.toBe('');
    return error.problems.map(
      ({ line, path: at, reason }) => `line ${String(line)}${at === '' ? '' : `, ${at}`}: ${reason}`,
    );
  }
}

/** What a reload makes of a file: its text is checked in a thread, whose result is copied. */
async function reloaded(path: string): Promise<Settings | string> {
  try {
    const result = structuredClone(checkResult({ text: readFileSync(path, 'utf8'), path, env }));
    if (result.kind === 'refused') return new ConfigError(path, result.problems).message;
    return await settingsOf(result.input, { path, env }, createSlices(systemClock));
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error;
    return error.message;
  }
}

function loaded(path: string): Settings | string {
  try {
    return loadSettings({ path, env });
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error;
    return error.message;
  }
}

test.each(['bad', 'good'].flatMap((kind) => files(kind).map((file) => [kind, file] as const)))(
  'a reload of %s/%s gives the same result as a start',
  async (kind, file) => {
    const path = pathOf(kind, file);
    const settings = await reloaded(path);
    expect(settings).toEqual(loaded(path));
    expect(typeof settings).toBe(kind === 'bad' ? 'string' : 'object');
    if (typeof settings === 'string') return;
    for (const each of [...settings.workspaces.values(), ...settings.upstreams.values()]) {
      expect(Object.isFrozen(each)).toBe(true);
    }
  },
);

describe('a configuration file with one mistake', () => {
  test.each(files('bad'))(
    'stops the start with the line, the key and the reason, and nothing else: %s',
    (file) => {
      const path = pathOf('bad', file);
      const expected = readFileSync(path, 'utf8').split('\n')[0]?.slice(2);
      expect(verdict(path)).toEqual([expected]);
    },
  );

  test('exists for at least 80 mistakes', () => {
    expect(files('bad').length).toBeGreaterThanOrEqual(80);
  });
});

test('durations mean the same with a unit and as a number of seconds', () => {
  const settings = loaded(pathOf('good', 'durations.yaml'));
  if (typeof settings === 'string') throw new Error(settings);
  const { server, upstreams } = settings;
  const reports = upstreams.get('reports');
  expect(server).toMatchObject({ drainSeconds: 30, keepAliveSeconds: 90 });
  expect(reports?.limits.maxWaitSeconds).toBe(120);
  expect(reports?.timeouts.totalMs).toBe(7_200_000);
  expect(reports?.commentMs).toBe(15_000);
});

test('advice about YAML that cannot be read fits the mistake, and is given once a line', () => {
  const adviceOn = (text: string) => {
    try {
      parseSettings(text, { path: 'a.yaml', env });
      return [];
    } catch (error) {
      return error instanceof ConfigError ? error.problems.map(({ line, fix }) => [line, fix]) : [error];
    }
  };
  expect(adviceOn('a: 1\na: 2\n')).toEqual([[2, expect.stringContaining('remove one')]]);
  expect(adviceOn('a:\n  b: 1\n c: 2\n')).toEqual([[3, expect.stringContaining('same number of blanks')]]);
  expect(adviceOn('a:\n\tb: 1\n')).toEqual([[2, expect.stringContaining('blanks')]]);
  expect(adviceOn('server: { port: ${PORT}, adminPort: 0 }\n')).toEqual([
    [1, expect.stringContaining('${NAME} within { }')],
  ]);
});

describe('a valid configuration file', () => {
  test.each(files('good'))('loads: %s', (file) => {
    expect(verdict(pathOf('good', file))).toEqual(['usable']);
  });

  test.each(files('good'))('fits the published JSON Schema as it is written: %s', (file) => {
    const text = readFileSync(new URL('../../schema/sluice.schema.json', import.meta.url), 'utf8');
    const schema = z.fromJSONSchema(JSON.parse(text));
    expect(schema.safeParse(parse(readFileSync(pathOf('good', file), 'utf8'))).error?.issues ?? []).toEqual(
      [],
    );
  });
});
