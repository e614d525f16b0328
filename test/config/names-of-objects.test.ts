/** Names that objects of JavaScript have for themselves name upstreams and workspaces like any other, or are refused in words. */
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterAll, describe, expect, test } from '@jest/globals';
import { ConfigError, parseSettings } from '../../src/config/load.ts';
import { startGateway } from '../support/gateway.ts';

const names = [
  'constructor',
  'toString',
  'hasOwnProperty',
  'valueOf',
  'isPrototypeOf',
  '__defineGetter__',
  'prototype',
];
const hashOf = (digit: string): string => `sha256:${digit.repeat(64)}`;
const parse = (yaml: string) => parseSettings(yaml, { path: 'test.yaml', env: {} });
const upstreams =
  'upstreams:\n  constructor: { origins: ["https://a.example"] }\n  api: { origins: ["https://b.example"] }\n';

const ends: (() => Promise<unknown>)[] = [];
afterAll(async () => {
  for (const end of ends.toReversed()) await end();
});

describe('a workspace that is named as a member of objects', () => {
  test.each(names)('is there with all that it states: %s', (name) => {
    const settings = parse(
      `${upstreams}workspaces:\n  other: { keys: [] }\n  ${name}:\n    keys: ["${hashOf('a')}"]\n    upstreams: [constructor, api]\n    requestsPerMinute: { constructor: 5 }\n    credentials: { constructor: "Bearer a", api: "Bearer b" }\n    accounts: { api: ours }\n`,
    );
    const workspace = settings.workspaces.get(name);
    expect([...settings.workspaces.keys()]).toEqual(['other', name]);
    expect([...(workspace?.requestsPerMinute ?? [])]).toEqual([['constructor', 5]]);
    // Without an account the value is the quota's name; none is inherited.
    expect(workspace?.credentials.get('constructor')?.quota).toBe('Bearer a');
    expect(workspace?.credentials.get('api')?.quota).toBe('account\nours');
  });

  test('is refused with its line where it cannot be kept: __proto__', () => {
    for (const written of ['__proto__', '"__proto__"', "'__proto__'"]) {
      const text = `${upstreams}workspaces:\n  other: { keys: [] }\n  ${written}: { keys: ["${hashOf('a')}"] }\n`;
      try {
        parse(text);
      } catch (error) {
        if (!(error instanceof ConfigError)) throw error;
        expect(error.problems.map(({ line, path }) => [line, path])).toEqual([[6, 'workspaces.__proto__']]);
        expect(error.problems[0]?.reason).toContain('cannot name anything');
        continue;
      }
      throw new Error('not refused');
    }
  });

  test('is refused alone, before anything else of its section is read', () => {
    for (const section of [
      'upstreams: { __proto__: {}, api: {} }\nworkspaces: { a: { keys: [] } }',
      `${upstreams}workspaces: { __proto__: {}, other: {} }`,
    ])
      expect(() => parse(section)).toThrow(/^test\.yaml: 1 problem\n[^\n]*__proto__: .*cannot name anything/);
  });

  test.each([
    ['upstreams: { __proto__: { origins: ["https://a.example"] } }\nworkspaces: {}'],
    [`${upstreams}workspaces: { a: { keys: [], credentials: { __proto__: x } } }`],
    [`${upstreams}workspaces: { a: { keys: [], requestsPerDay: { __proto__: 1 } } }`],
    [`${upstreams}workspaces: { a: { keys: [], upstreams: [__proto__] } }`],
    [`${upstreams}workspaces: { a: { keys: [], __proto__: { weight: 2 } } }`],
    [`server: { __proto__: { port: 1 } }\n${upstreams}workspaces: {}`],
  ])('__proto__ is refused wherever it stands: %s', (text) => {
    expect(() => parse(text)).toThrow(/__proto__|names an upstream that is not configured/);
  });
});

test('calls of such a workspace to such an upstream are sent, counted and shown like any other', async () => {
  const upstream = createServer(
    (request, response) => void request.resume().on('end', () => response.end('ok')),
  );
  await new Promise<void>((resolve) => upstream.listen(0, '127.0.0.1', resolve));
  ends.push(() => new Promise((resolve) => upstream.close(resolve)));
  const { port } = upstream.address() as AddressInfo;
  const gateway = await startGateway({
    upstreams: `  constructor:\n    origins: ["http://127.0.0.1:${port}"]\n    allowPrivateAddresses: true\n    limits: { requestsPerMinute: 2 }\n`,
    workspaces: { toString: '', valueOf: '' },
  });
  ends.push(() => gateway.close());
  /** Only a call that is to be refused waits for nothing: a busy machine may be late with any other. */
  const call = async (workspace: string, seconds = 10): Promise<number> => {
    const headers = { authorization: `Bearer ${gateway.keys[workspace] ?? ''}`, prefer: `wait=${seconds}` };
    return (await fetch(`${gateway.url}/via/constructor/x`, { headers })).status;
  };
  expect([
    await call('toString'),
    await call('toString'),
    await call('toString', 0),
    await call('valueOf'),
  ]).toEqual([200, 200, 429, 200]);
  const activity = (await (await fetch(`${gateway.adminUrl}/activity`)).json()) as unknown;
  expect(JSON.stringify(activity)).toContain('"constructor"');
  const metrics = await (await fetch(`${gateway.adminUrl}/metrics`)).text();
  expect(metrics).toMatch(/sluice_requests_total\{[^}]*upstream="constructor"[^}]*outcome="ok"[^}]*\} \d/);
});
