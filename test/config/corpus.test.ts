/** The rows of `mistakes.txt` and the files of `good/`: what a start makes of them, and a reload. */
import { mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, test } from '@jest/globals';
import { z } from 'zod';
import { parse } from 'yaml';
import { ConfigError, loadSettings, readFiles, settingsApart } from '../../src/config/load.ts';
import type { Settings } from '../../src/config/settings.ts';

const urlOf = (name: string): URL => new URL(name, import.meta.url);
const read = (name: string): string => readFileSync(urlOf(name), 'utf8');
const folder = mkdtempSync(join(tmpdir(), 'sluice-corpus-'));
afterAll(() => rmSync(folder, { recursive: true }));
const env = {
  PORT: '8123',
  REDIS_URL: 'redis://127.0.0.1:6379',
  SLUICE_LABEL_KEY: 'a label key of the tests',
  OPENAI_API_KEY: 'sk-tests',
  SHOP_TOKEN: 'shop-token',
  ACME_SHOP_TOKEN: 'acme-shop-token',
};

async function settingsOf(path: string): Promise<{ started: Settings | Error; reloaded: Settings | Error }> {
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

/** A configuration file with the lines of a row of `mistakes.txt`. */
function textOf(written: readonly string[]): string {
  const of = (place: string): string[] =>
    written.filter((line) => line.startsWith(place)).map((line) => line.slice(6));
  const section = (place: string, otherwise: string): string[] => {
    const [key = ''] = otherwise.split(' ');
    const lines = of(place);
    return (lines.some((line) => line.startsWith(key)) ? lines : [...lines, otherwise]).map(
      (line) => `    ${line}`,
    );
  };
  const whole = of('text');
  const lines = [
    'upstreams:',
    '  api:',
    ...section('api ', "origins: ['https://api.example.com']"),
    'workspaces:',
    '  acme:',
    // The key is `a`.
    ...section('acme', "keys: ['sha256:ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb']"),
    ...of('file'),
    ...(written.some((line) => line.startsWith('file  privacy:'))
      ? []
      : ['privacy: { labelKey: 0123456789abcdef-x }']),
  ];
  return `${(whole.length > 0 ? whole : lines).join('\n')}\n`;
}

const rows = read('mistakes.txt')
  .split(/^(?=line )/m)
  .slice(1)
  .map((row) => row.trim().split('\n'));
test.each([['line 1: must be a section with keys, not empty', 'text  '], ...rows])(
  'a start and a reload are stopped by a mistake alone: %s: %s',
  async (expected, ...written) => {
    const path = join(folder, 'sluice.yaml');
    writeFileSync(path, textOf(written));
    const { started, reloaded } = await settingsOf(path);
    if (!(started instanceof ConfigError)) throw new Error('no problem is found');
    const said = started.problems.map(({ line, path: at, reason, fix }) => {
      expect(fix).not.toBe('');
      return `line ${String(line)}${at === '' ? '' : `, ${at}`}: ${reason}`;
    });
    expect(said).toEqual([expected]);
    expect(reloaded).toEqual(started);
    expect(reloaded).toBeInstanceOf(ConfigError);
  },
);

const schema = z.fromJSONSchema(JSON.parse(read('../../schema/sluice.schema.json')));
test.each(readdirSync(urlOf('good/')))(
  'a good file gives a start and a reload the same, and fits the published JSON Schema: %s',
  async (name) => {
    const { started, reloaded } = await settingsOf(urlOf(`good/${name}`).pathname);
    expect(reloaded).toEqual(started);
    if (started instanceof Error || reloaded instanceof Error) throw started;
    expect(schema.safeParse(parse(read(`good/${name}`))).error?.issues ?? []).toEqual([]);
  },
);

test('durations mean the same with a unit and as a number of seconds', () => {
  const path = urlOf('good/durations.yaml').pathname;
  const { server, upstreams } = loadSettings({ path, env });
  const reports = upstreams.get('reports');
  expect(server).toMatchObject({ drainSeconds: 30, keepAliveSeconds: 90 });
  expect(reports).toMatchObject({
    commentMs: 15_000,
    limits: { maxWaitSeconds: 120 },
    timeouts: { totalMs: 7_200_000 },
  });
});
