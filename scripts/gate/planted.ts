/**
 * `node scripts/gate/planted.ts [words of a row's name]`: for each row of the gate a fault is planted in a copy of the product, and the
 * row must find it. Fails when a row does not, or when the line to change is no longer there. A quarter of an hour.
 */
import { execFile } from 'node:child_process';
import { cp, mkdtemp, readFile, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';

interface Planted {
  /** Words of the row's name. */
  readonly row: string;
  /** What the fault does. */
  readonly fault: string;
  readonly file: string;
  readonly from: string;
  readonly to: string;
  /** A violation that the row must print. */
  readonly finds: RegExp;
}

const planted: readonly Planted[] = [
  {
    row: 'kill -9',
    fault: 'the lease of a killed replica hardly ever ends, so calls behind it are lost',
    file: 'src/limiter/policy/grant.policy.ts',
    from: 'now + ticket.leaseMs,',
    to: 'now + 100 * ticket.leaseMs,',
    finds: /lost: s-/,
  },
  {
    row: 'SIGSTOP',
    fault: 'two serialized calls in flight',
    file: 'src/admission/buckets.policy.ts',
    from: 'maxInFlight: upstream.limits.maxInFlight,',
    to: 'maxInFlight: null,',
    finds: /serialized calls sent beside one in flight/,
  },
  {
    row: 'FLUSHALL',
    fault: 'replicas do not put their sends back into a Redis that lost them',
    file: 'src/limiter/failover/ceilings.ts',
    from: 'if (!(await this.#parts.redis.restore(key, sends))) return false;',
    to: 'void [key, sends];',
    finds: /over the ceiling of 60/,
  },
  {
    row: 'restarted empty',
    fault: 'one call in twenty is never sent',
    file: 'src/pipeline.ts',
    from: 'const result = await this.#attempts.send(attempt);',
    to: 'if (Math.random() < 0.05) await new Promise(() => {});\nconst result = await this.#attempts.send(attempt);',
    finds: /lost: [os]-\d+ (unanswered|refused)/,
  },
  {
    row: 'hung',
    fault: 'every call is sent twice',
    file: 'src/pipeline.ts',
    from: 'const result = await this.#attempts.send(attempt);',
    to: 'await this.#attempts.send(attempt);\nconst result = await this.#attempts.send(attempt);',
    finds: /sent 2 times: s-/,
  },
  {
    row: 'whenDown: local',
    fault: 'without Redis each replica takes the whole ceiling',
    file: 'src/limiter/failover/ceilings.ts',
    from: 'quotaShare(limit, replicas)',
    to: 'limit',
    finds: /over the ceiling of/,
  },
  {
    row: 'Sentinel',
    fault: 'a later call of a serialized lane overtakes',
    file: 'src/limiter/policy/admit.policy.ts',
    from: 'return urgency * orderUnit + Math.floor(at * sequencePerMs);',
    to: 'return urgency * orderUnit + 2e14 - Math.floor(at * sequencePerMs);',
    finds: /out of order: s-/,
  },
  {
    row: 'Cluster',
    fault: 'a key stays in Redis for ever',
    file: 'src/log/lua/append.lua',
    from: "redis.call('PEXPIRE', key, hourMs)",
    to: "redis.call('PERSIST', key)",
    finds: /left behind: .*[1-9]\d* of them without expiry/,
  },
  {
    row: 'TLS',
    fault: 'the ceiling has room for one more',
    file: 'src/admission/buckets.policy.ts',
    from: 'ownLimit(workspace.requestsPerMinute, upstream.name, upstream.limits.requestsPerMinute)',
    to: '(ownLimit(workspace.requestsPerMinute, upstream.name, upstream.limits.requestsPerMinute) ?? 0) + 1',
    finds: /61 calls in .* over the ceiling of 60/,
  },
  {
    row: 'hang up',
    fault: 'a call stays in line when its client has left',
    file: 'src/limiter/over-log/shard.ts',
    from: "        return this.#say(bucket, { kind: 'cancel', ticket });",
    to: '        return Promise.resolve();',
    finds: /left behind: |lost: s-/,
  },
  {
    row: 'equal pairs',
    fault: 'repeats of a key are not recognized at another replica',
    file: 'src/journey/repeat-key.ts',
    from: "name('idempotency', common.upstream,",
    to: "name('idempotency', String(Math.random()), common.upstream,",
    finds: /sent 2 times: k-/,
  },
  {
    row: 'two windows',
    fault: 'a window of the ceiling ends ten seconds early',
    file: 'src/limiter/policy/ceiling.policy.ts',
    from: 'ceilingWindowMs = 60_000 + 150',
    to: 'ceilingWindowMs = 50_000',
    finds: /over the ceiling of 60/,
  },
];

const root = resolve(import.meta.dirname, '../..');
const copied = [
  'src',
  'presets',
  'simulators',
  'scripts',
  'test/support',
  'test/fixtures',
  'package.json',
  'tsconfig.json',
];

/** `null`: the row found the fault; otherwise what it printed. */
async function missed({ row, file, from, to, finds }: Planted): Promise<string | null> {
  const copy = await mkdtemp(join(tmpdir(), 'sluice-planted-'));
  try {
    for (const path of copied) await cp(join(root, path), join(copy, path), { recursive: true });
    await symlink(join(root, 'node_modules'), join(copy, 'node_modules'));
    const text = await readFile(join(copy, file), 'utf8');
    if (!text.includes(from)) return `${file} no longer has \`${from}\``;
    await writeFile(join(copy, file), text.replace(from, to));
    const printed = await new Promise<string>((done) => {
      execFile(
        process.execPath,
        ['scripts/verify-gate.ts', row],
        { cwd: copy, maxBuffer: 1 << 26 },
        (_, out, err) => done(out + err),
      );
    });
    return finds.test(printed) ? null : printed;
  } finally {
    await rm(copy, { recursive: true, force: true });
  }
}

const wanted = process.argv.slice(2).join(' ');
const left = planted.filter(({ row }) => row.includes(wanted));
let misses = 0;
async function work(): Promise<void> {
  for (let fault = left.shift(); fault !== undefined; fault = left.shift()) {
    const printed = await missed(fault);
    if (printed !== null) misses += 1;
    console.log(`${printed === null ? 'found ' : 'MISSED'}  ${fault.row}: ${fault.fault}`);
    if (printed !== null) console.log(printed);
  }
}
await Promise.all([work(), work(), work()]);
process.exit(misses === 0 ? 0 : 1);
