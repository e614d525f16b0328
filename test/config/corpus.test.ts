/** The files of `bad/`, with one mistake each, and of `good/`: what a start makes of them, and a reload. */
import { readFileSync, readdirSync } from 'node:fs';
import { expect, test } from '@jest/globals';
import { z } from 'zod';
import { parse } from 'yaml';
import { ConfigError, loadSettings, readFiles, settingsApart } from '../../src/config/load.ts';
import type { Settings } from '../../src/config/settings.ts';

const filesOf = (kind: string): string[] => {
  const folder = new URL(`${kind}/`, import.meta.url);
  const names = readdirSync(folder).filter((name) => name.endsWith('.yaml'));
  return names.map((name) => new URL(name, folder).pathname);
};
const textOf = (path: string): string => readFileSync(path, 'utf8');
const env = {
  PORT: '8123',
  REDIS_URL: 'redis://127.0.0.1:6379',
  SLUICE_LABEL_KEY: 'a label key of the tests',
  OPENAI_API_KEY: 'sk-tests',
  SHOP_TOKEN: 'shop-token',
  ACME_SHOP_TOKEN: 'acme-shop-token',
};

/** What a start makes of a file, and a reload. */
async function read(path: string): Promise<{ started: Settings | Error; reloaded: Settings | Error }> {
  const settled = async (run: () => Settings | Promise<Settings>): Promise<Settings | Error> => {
    try {
      return await run();
    } catch (error) {
      if (error instanceof ConfigError) return error;
      throw error;
    }
  };
  return {
    started: await settled(() => loadSettings({ path, env })),
    reloaded: await settled(() => settingsApart(readFiles({ path, env }), new AbortController().signal)),
  };
}

test.each(filesOf('bad'))(
  'a mistake stops a start and a reload with the line, the key and the reason, and nothing else: %s',
  async (path) => {
    const { started, reloaded } = await read(path);
    if (!(started instanceof ConfigError)) throw new Error('no problem is found');
    const [first = '', ...others] = started.problems.map(({ line, path: at, reason, fix }) => {
      expect(fix).not.toBe('');
      return `line ${String(line)}${at === '' ? '' : `, ${at}`}: ${reason}`;
    });
    expect([`# ${first}`, others]).toEqual([textOf(path).split('\n')[0], []]);
    expect(reloaded).toEqual(started);
    expect(reloaded).toBeInstanceOf(ConfigError);
  },
);

const schema = z.fromJSONSchema(
  JSON.parse(readFileSync(new URL('../../schema/sluice.schema.json', import.meta.url), 'utf8')),
);
test.each(filesOf('good'))(
  'a good file gives a start and a reload the same, frozen, and fits the published JSON Schema: %s',
  async (path) => {
    const { started, reloaded } = await read(path);
    expect(reloaded).toEqual(started);
    if (started instanceof Error || reloaded instanceof Error) throw started;
    for (const each of [...reloaded.workspaces.values(), ...reloaded.upstreams.values()])
      expect(Object.isFrozen(each)).toBe(true);
    expect(schema.safeParse(parse(textOf(path))).error?.issues ?? []).toEqual([]);
  },
);

test('durations mean the same with a unit and as a number of seconds', () => {
  const path = new URL('good/durations.yaml', import.meta.url).pathname;
  const { server, upstreams } = loadSettings({ path, env });
  const reports = upstreams.get('reports');
  expect(server).toMatchObject({ drainSeconds: 30, keepAliveSeconds: 90 });
  expect(reports).toMatchObject({
    commentMs: 15_000,
    limits: { maxWaitSeconds: 120 },
    timeouts: { totalMs: 7_200_000 },
  });
});
