/** `sluice learn` and `sluice check --against`: a recording of a simulated upstream, whose dialect the commands must find. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, test } from '@jest/globals';
import { parse, stringify } from 'yaml';
import { runCheck } from '../../src/cli/check.ts';
import { runLearn } from '../../tools/learn/learn.ts';
import type { SpokenParts } from '../../simulators/dialect.ts';
import { recordingOf } from '../learn/recorded.ts';
import { randomFrom } from '../limiter/bucket-history.ts';

const folder = mkdtempSync(join(tmpdir(), 'sluice-learn-'));
afterAll(() => rmSync(folder, { recursive: true }));

const spoken = {
  windows: [{ requests: 12, seconds: 10, kind: 'fixed' }],
  fields: {
    limit: 'x-acme-limit',
    remaining: 'x-acme-left',
    reset: { name: 'x-acme-reset', as: 'epoch-seconds' },
  },
  throttledBy: [{ status: 403, body: 'rate limit exceeded' }],
} as const satisfies SpokenParts;

function written(name: string, text: string): string {
  const path = join(folder, name);
  writeFileSync(path, text);
  return path;
}

function heard() {
  const out: string[] = [];
  const err: string[] = [];
  const io = {
    out: (text: string) => void out.push(text),
    err: (text: string) => void err.push(text),
    env: {},
    terminals: { out: null, err: false },
    readerGone: new AbortController().signal,
    clock: { now: () => 1_800_000_000_000 },
  };
  return { out, err, io };
}

const config = (speaks: unknown): string =>
  stringify({
    upstreams: { acme: { origins: ['https://api.acme.example'], speaks } },
    workspaces: { acme: { keys: [] } },
  });

const har = written('acme.har', recordingOf(spoken, randomFrom(7)));

function learned(): unknown {
  const { out, err, io } = heard();
  expect(runLearn({ file: har }, io)).toBe(0);
  expect(err).toEqual([]);
  return (parse(out.join('\n')) as { speaks: unknown }).speaks;
}

async function checked(speaks: unknown) {
  const { out, err, io } = heard();
  const path = written('sluice.yaml', config(speaks));
  const code = await runCheck({ config: path, connect: false, against: har }, io);
  return { code, lines: [...out, ...err].join('\n') };
}

describe('sluice learn', () => {
  test('proposes the windows, fields and refusals of a recording', () => {
    expect(learned()).toEqual({
      windows: [{ requests: 12, seconds: 10, kind: 'fixed' }],
      fields: [
        {
          limit: 'x-acme-limit',
          remaining: 'x-acme-left',
          reset: { name: 'x-acme-reset', as: 'epoch-seconds' },
        },
      ],
      throttledBy: [{ status: 403, body: 'rate limit' }],
    });
  });

  test.each([
    ['not JSON', 'is not JSON'],
    ['{"log":{}}', 'has no log.entries'],
    ['{"log":{"entries":[]}}', 'has no response'],
  ])('says what is wrong with a file that is no recording: %s', (text, reason) => {
    const { err, io } = heard();
    expect(runLearn({ file: written('broken.har', text) }, io)).toBe(1);
    expect(err.join('\n')).toContain(reason);
  });

  test('says that a file is not there', () => {
    const { err, io } = heard();
    expect(runLearn({ file: join(folder, 'none.har') }, io)).toBe(1);
    expect(err.join('\n')).toContain('cannot be read; give the path of a HAR file');
  });
});

describe('sluice check --against', () => {
  test('is content with what was learned from the same recording', async () => {
    const { code, lines } = await checked(learned());
    expect([code, lines.split('\n').at(-1)]).toEqual([0, 'acme: 200 of 200 responses explained']);
  });

  test('names each response that a description does not explain', async () => {
    // Where a description names refusals, a 403 with other words is none.
    const throttledBy = [{ status: 403, body: 'come back later' }];
    const wrong = { windows: [{ requests: 5, seconds: 10, kind: 'fixed' }], throttledBy };
    const { code, lines } = await checked(wrong);
    expect(code).toBe(1);
    expect(lines).toMatch(/entry \d+ \(GET \/v1\/things, 200\): was taken, though 5 calls were taken/);
    expect(lines).toMatch(/entry \d+ \(GET \/v1\/things, 403\): looks like a refusal for want of quota/);
  });

  test('says when no response is of an upstream of the configuration', async () => {
    const { io, err } = heard();
    const path = written('other.yaml', config(undefined).replace('acme.example', 'other.example'));
    expect(await runCheck({ config: path, connect: false, against: har }, io)).toBe(1);
    expect(err.join('\n')).toContain('no response is of an upstream of this configuration');
  });
});
