/**
 * The rules of `.dependency-cruiser.cjs` bite. It reads TypeScript with swc, which it calls second best, so each rule
 * is held against planted violations, in a folder outside the project, by the very tool of `npm run imports`.
 */
import { afterAll, beforeAll, describe, expect, test } from '@jest/globals';
import { execFile } from 'node:child_process';
import { copyFileSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('../../', import.meta.url));
const config = join(root, '.dependency-cruiser.cjs');
const { forbidden } = createRequire(import.meta.url)(config) as { forbidden: { name: string }[] };

/** Files that others import; innocent themselves. */
const bystanders = [
  'clock',
  'gateway',
  'call',
  'errors',
  'auth/keyring',
  'limiter/limiter',
  'admission/ticket',
  'admission/wait-registry',
  'journey/forward',
  'page/page',
  'observation/pressure',
  'redis/connection',
  'redis/health',
  'limiter/redis/bucket-sessions',
  'limiter/embedded/limiter',
  'limiter/failover/limiter',
  'limiter/redis/protocol/keys',
];

/** By rule: a file and the lines that break it, in every form an import can have. */
const planted: Readonly<Record<string, readonly (readonly [file: string, line: string])[]>> = {
  'policy-is-pure': [
    ['limiter/a.policy.ts', `import { systemClock } from '../clock.ts'; export { systemClock };`],
    ['limiter/b.policy.ts', `import type { Clock } from '../clock.ts'; export type B = Clock;`],
    ['limiter/c.policy.ts', `import { readFileSync } from 'node:fs'; export { readFileSync };`],
    ['limiter/d.policy.ts', `export const clock = () => import('../clock.ts');`],
    ['limiter/e.policy.ts', `export * from '../clock.ts';`],
    ['limiter/f.policy.ts', `import '../clock.ts'; export {};`],
    ['limiter/g.policy.ts', `export type { Clock } from '../clock.ts';`],
    ['limiter/h.policy.ts', `import { type Clock } from '../clock.ts'; export type H = Clock;`],
  ],
  'stages-apart': [
    ['ingress/a.ts', `import { x } from '../auth/keyring.ts'; export { x };`],
    ['dispatch/a.ts', `import type { X } from '../auth/keyring.ts'; export type A = X;`],
  ],
  'the-journey-goes-one-way': [
    ['dispatch/c.ts', `import { x } from '../journey/forward.ts'; export { x };`],
    ['limiter/o.ts', `import type { X } from '../gateway.ts'; export type O = X;`],
  ],
  'limiter-knows-no-stage': [
    ['limiter/p.ts', `import type { X } from '../admission/ticket.ts'; export type P = X;`],
  ],
  'admission-has-one-face': [
    ['journey/d.ts', `import { x } from '../admission/wait-registry.ts'; export { x };`],
  ],
  'telemetry-hears-and-does-not-ask': [
    ['telemetry/b.ts', `import type { X } from '../limiter/limiter.ts'; export type B = X;`],
  ],
  'core-knows-no-page': [['journey/e.ts', `import { x } from '../page/page.ts'; export { x };`]],
  'observation-is-composed-once': [
    ['journey/f.ts', `import { x } from '../observation/pressure.ts'; export { x };`],
  ],
  'limiter-shows-its-ports-only': [
    ['admission/a.ts', `import { x } from '../limiter/redis/bucket-sessions.ts'; export { x };`],
    ['journey/h.ts', `import type { X } from '../limiter/e.policy.ts'; export type H = X;`],
    ['repeats/b.ts', `import { x } from '../limiter/redis/protocol/keys.ts'; export { x };`],
    ['redis/b.ts', `import { x } from '../limiter/redis/protocol/keys.ts'; export { x };`],
  ],
  'redis-has-few-users': [
    ['activity/b.ts', `import { x } from '../redis/connection.ts'; export { x };`],
    ['journey/i.ts', `import type { X } from '../redis/connection.ts'; export type I = X;`],
  ],
  'others-see-the-connection-only': [
    ['credentials/redis-tokens.ts', `import { x } from '../redis/health.ts'; export { x };`],
    ['activity/redis-activity.ts', `import { x } from '../redis/health.ts'; export { x };`],
  ],
  'policy-knows-no-store': [
    [
      'limiter/policy/a.policy.ts',
      `import type { X } from '../redis/bucket-sessions.ts'; export type A = X;`,
    ],
    ['limiter/policy/b.policy.ts', `import type { X } from '../../redis/health.ts'; export type B = X;`],
  ],
  'embedded-knows-no-redis': [
    ['limiter/embedded/a.ts', `import type { X } from '../redis/bucket-sessions.ts'; export type A = X;`],
    ['limiter/embedded/b.ts', `import { x } from '../failover/limiter.ts'; export { x };`],
  ],
  'redis-knows-no-failover': [
    ['limiter/redis/a.ts', `import { x } from '../failover/limiter.ts'; export { x };`],
    ['limiter/redis/b.ts', `import { x } from '../embedded/limiter.ts'; export { x };`],
  ],
  'redis-knows-no-user': [['redis/a.ts', `import { x } from '../admission/ticket.ts'; export { x };`]],
  'redis-protocol-knows-no-session': [
    ['limiter/redis/protocol/a.ts', `import type { X } from '../bucket-sessions.ts'; export type A = X;`],
  ],
  'no-circular': [['activity/a.ts', `import { x } from './a2.ts'; export const a = x;`]],
  'simulators-are-a-world-apart': [
    ['telemetry/a.ts', `import { x } from '../simulators/fine.ts'; export { x };`],
  ],
  'simulators-know-nothing-of-the-gateway': [
    ['simulators/a.ts', `import { x } from '../gateway.ts'; export { x };`],
  ],
  'one-home-express': [['page/a.ts', `import express from 'express'; export { express };`]],
  'one-home-hpm': [['dispatch/b.ts', `import * as hpm from 'http-proxy-middleware'; export { hpm };`]],
  'one-home-ioredis': [['limiter/a.ts', `import type { Redis } from 'ioredis'; export type R = Redis;`]],
  'one-home-rlf': [['admission/b.ts', `import * as rlf from 'rate-limiter-flexible'; export { rlf };`]],
  'one-home-telemetry': [
    ['journey/a.ts', `import { pino } from 'pino'; export { pino };`],
    ['journey/b.ts', `import client from 'prom-client'; export { client };`],
    ['journey/c.ts', `import type { Span } from '@opentelemetry/api'; export type S = Span;`],
  ],
  'one-home-config': [
    ['target/a.ts', `import { z } from 'zod'; export { z };`],
    ['target/b.ts', `import { parse } from 'yaml'; export { parse };`],
  ],
};

/** By rule of the linter: what the import rules cannot see in a policy, globals and a form of import that swc passes over. */
const linted: Readonly<Record<string, readonly [file: string, line: string]>> = {
  'typescript(consistent-type-imports)': [
    'limiter/l.policy.ts',
    `export type L = import('../clock.ts').Clock;`,
  ],
  'eslint(no-restricted-globals)': ['limiter/m.policy.ts', `export const m = () => Date.now();`],
  'eslint(no-restricted-properties)': ['limiter/n.policy.ts', `export const n = () => Math.random();`],
};

/** What the same rules allow. */
const fine: Readonly<Record<string, string>> = {
  'activity/a2.ts': `import { a } from './a.ts'; export const x = 1; export { a };`,
  'limiter/fine.policy.ts': `import type { X } from '../call.ts'; import { x } from './e.policy.ts'; export { x }; export type Y = X;`,
  'auth/fine.ts': `import { x } from './keyring.ts'; import { RateLimiterMemory } from 'rate-limiter-flexible'; export { x, RateLimiterMemory };`,
  'limiter/failover/fine.ts': `import { x } from '../redis/bucket-sessions.ts'; export { x };`,
  'limiter/redis/protocol/fine.ts': `import { x } from '../../../redis/health.ts'; export { x };`,
  'repeats/redis-repeats.ts': `import { x } from '../redis/connection.ts'; export { x };`,
  'admission/fine.ts': `import { x } from '../limiter/limiter.ts'; export { x };`,
  'journey/fine.ts': `import { x } from '../admission/ticket.ts'; export { x };`,
  'observation/fine.ts': `import { x } from '../page/page.ts'; export { x };`,
  'simulators/fine.ts': `import { systemClock } from '../clock.ts'; export const x = systemClock;`,
  'cli/demo.ts': `import { x } from '../simulators/fine.ts'; export { x };`,
  'config/fine.ts': `import { z } from 'zod'; import { parse } from 'yaml'; export { z, parse };`,
  'dispatch/transport.ts': `import * as hpm from 'http-proxy-middleware'; export { hpm };`,
};

let folder = '';
let found: { readonly rule: string; readonly from: string }[] = [];

function write(file: string, text: string): void {
  const path = join(folder, 'src', file);
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(path, `${text}\n`);
}

interface ImportReport {
  readonly summary: {
    readonly violations: readonly { readonly from: string; readonly rule: { readonly name: string } }[];
  };
}
interface LintReport {
  readonly diagnostics: readonly { readonly code: string; readonly filename: string }[];
}

/** What a tool of the project reports about the files, with the project's own rules. */
function report(tool: string, ...args: readonly string[]): Promise<unknown> {
  const path = join(root, 'node_modules/.bin', tool);
  return new Promise((resolve, reject) => {
    // Exit codes tell of violations, which are what is wanted.
    execFile(process.execPath, [path, ...args], { cwd: folder, maxBuffer: 64 << 20 }, (_, stdout, stderr) => {
      try {
        resolve(JSON.parse(stdout));
      } catch {
        reject(new Error(`no report: ${stderr}`));
      }
    });
  });
}

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'sluice-imports-'));
  symlinkSync(join(root, 'node_modules'), join(folder, 'node_modules'));
  for (const name of bystanders) {
    write(
      `${name}.ts`,
      'export const x = 1; export type X = number; export const systemClock = 1; export type Clock = 1;',
    );
  }
  for (const [file, text] of [
    ...Object.values(planted).flat(),
    ...Object.values(linted),
    ...Object.entries(fine),
  ]) {
    write(file, text);
  }
  const { summary } = (await report(
    'depcruise',
    '--config',
    config,
    '--output-type',
    'json',
    'src',
  )) as ImportReport;
  found = summary.violations.map(({ rule, from }) => ({ rule: rule.name, from: from.replace(/^src\//, '') }));
});
afterAll(() => rmSync(folder, { recursive: true }));

describe('the rules of imports', () => {
  test('each have a planted violation in this test', () => {
    expect(Object.keys(planted).toSorted()).toEqual(forbidden.map(({ name }) => name).toSorted());
  });

  test.each(
    Object.entries(planted).flatMap(([rule, rows]) => rows.map(([file, line]) => ({ rule, file, line }))),
  )('report for $rule: $line', ({ rule, file }) => {
    expect(found).toContainEqual({ rule, from: file });
  });

  test('report nothing in allowed imports', () => {
    const files = new Set(Object.values(planted).flatMap((rows) => rows.map(([file]) => file)));
    expect(found.filter(({ rule, from }) => !files.has(from) && rule !== 'no-circular')).toEqual([]);
  });
});

const lintedCases = Object.entries(linted).map(([rule, [file, line]]) => ({ rule, file, line }));
test.each(lintedCases)('the linter’s $rule reports in a policy: $line', async ({ rule, file }) => {
  copyFileSync(join(root, '.oxlintrc.json'), join(folder, '.oxlintrc.json'));
  const { diagnostics } = (await report('oxlint', '--format', 'json', `src/${file}`)) as LintReport;
  expect(diagnostics.map(({ code, filename }) => ({ code, filename }))).toEqual([
    { code: rule, filename: `src/${file}` },
  ]);
});
