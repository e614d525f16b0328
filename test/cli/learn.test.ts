/** `sluice learn` and `sluice check --against`: a recording of a simulated upstream, whose dialect the commands must find. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, test } from '@jest/globals';
import { parse, stringify } from 'yaml';
import type { SpokenParts } from '../../simulators/dialect.ts';
import { Quota } from '../../simulators/dialect/quota.ts';
import { refusalBy, reportedFields } from '../../simulators/dialect/response-fields.ts';
import { randomFrom } from '../limiter/bucket-history.ts';
import { ran } from '../support/command.ts';

const folder = mkdtempSync(join(tmpdir(), 'sluice-learn-'));
afterAll(() => rmSync(folder, { recursive: true }));
function written(name: string, text: string): string {
  writeFileSync(join(folder, name), text);
  return join(folder, name);
}

const startAt = 1_800_000_000_000;

/** A HAR file with 200 responses of a simulated upstream, whose calls come a little too fast; `draw` gives numbers of 0 to 1. */
function recordingOf(speaks: SpokenParts, draw: () => number): string {
  const { windows = [], throttledBy: [refusal = { status: 429 }] = [] } = speaks;
  const paceMs = Math.max(...windows.map(({ requests, seconds }) => (seconds * 1000) / requests));
  const quota = new Quota(speaks);
  let at = startAt;
  const entries = Array.from({ length: 200 }, (_, index) => {
    at += Math.max(1, Math.round(paceMs * (0.2 + 0.6 * draw())));
    const isTaken = quota.ask(at).kind === 'admitted';
    if (isTaken) quota.done();
    const { status, body } = isTaken ? { status: 200, body: '{}' } : refusalBy(refusal);
    const fields = Object.entries(reportedFields(speaks, quota.windows(at), at));
    return {
      startedDateTime: new Date(at).toISOString(),
      request: { method: 'GET', url: `https://api.acme.example/v1/things?page=${index}`, headers: [] },
      response: {
        status,
        headers: fields.map(([name, value]) => ({ name, value })),
        content: { text: body },
      },
    };
  });
  return JSON.stringify({ log: { version: '1.2', entries } });
}

const windows = [{ requests: 12, seconds: 10, kind: 'fixed' }] as const;
const fields = {
  limit: 'x-acme-limit',
  remaining: 'x-acme-left',
  reset: { name: 'x-acme-reset', as: 'epoch-seconds' },
} as const;
const throttledBy = [{ status: 403, body: 'rate limit exceeded' }];
const har = written('acme.har', recordingOf({ windows, fields, throttledBy }, randomFrom(7)));

async function learned(): Promise<unknown> {
  const { code, out, err } = await ran(['learn', har]);
  expect([code, err]).toEqual([0, '']);
  return (parse(out) as { speaks: unknown }).speaks;
}

async function checked(speaks: unknown, host = 'api.acme.example') {
  const upstreams = { acme: { origins: [`https://${host}`], speaks } };
  const config = written('sluice.yaml', stringify({ upstreams, workspaces: { acme: { keys: [] } } }));
  const { code, out, err } = await ran(['check', '--config', config, '--against', har]);
  return { code, lines: [out, err].join('\n').trim() };
}

test('sluice learn proposes the windows, fields and refusals of a recording', async () =>
  expect(await learned()).toEqual({
    windows,
    fields: [fields],
    throttledBy: [{ status: 403, body: 'rate limit' }],
  }));

test.each([
  ['not JSON', 'is not JSON'],
  ['{"log":{}}', 'has no log.entries'],
  ['{"log":{"entries":[]}}', 'has no response'],
  [null, 'cannot be read; give the path of a HAR file'],
])('sluice learn says what is wrong with a file that is no recording: %s', async (text, reason) => {
  const file = text === null ? join(folder, 'none.har') : written('broken.har', text);
  expect(await ran(['learn', file])).toMatchObject({ code: 1, err: expect.stringContaining(reason) });
});

describe('sluice check --against', () => {
  test('is content with what was learned from the same recording', async () => {
    const { code, lines } = await checked(await learned());
    expect([code, lines.split('\n').at(-1)]).toEqual([0, 'acme: 200 of 200 responses explained']);
  });

  test('names each response that a description does not explain', async () => {
    // Where a description names refusals, a 403 with other words is none.
    const refusals = [{ status: 403, body: 'come back later' }];
    const { code, lines } = await checked({
      windows: [{ ...windows[0], requests: 5 }],
      throttledBy: refusals,
    });
    expect(code).toBe(1);
    expect(lines).toMatch(/entry \d+ \(GET \/v1\/things, 200\): was taken, though 5 calls were taken/);
    expect(lines).toMatch(/entry \d+ \(GET \/v1\/things, 403\): looks like a refusal for want of quota/);
  });

  test('says when no response is of an upstream of the configuration', async () =>
    expect(await checked(undefined, 'api.other.example')).toMatchObject({
      code: 1,
      lines: expect.stringContaining('no response is of an upstream of this configuration'),
    }));
});
