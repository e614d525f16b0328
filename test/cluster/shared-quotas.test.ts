/** Two keys of one project, each at its own replica: one quota, and one bucket over both replicas. */
import { afterAll, afterEach, beforeAll, expect, test } from '@jest/globals';
import { AdmissionQueue } from '../../src/admission/admission.ts';
import { createLanguageModelSimulator } from '../../simulators/language-model.ts';
import type { Service } from '../../src/service.ts';
import { serviceOf } from '../support/gateway.ts';
import { chatBody, chatPath, count, fleetConfig, pause } from '../support/redis-fleet.ts';
import { startRedis, type RedisServer } from '../support/redis.ts';

let redis: RedisServer;
beforeAll(async () => {
  redis = await startRedis();
});
const open: (() => Promise<void>)[] = [];
afterEach(async () => {
  for (const close of open.splice(0).toReversed()) await close();
});
afterAll(() => redis.stop());

interface Left {
  readonly bucket: string;
  /** Its replica had heard of the joined buckets when the call got its lease. */
  readonly isJoinKnown: boolean;
}

interface Watched {
  /** Every lease from now on, of both replicas. */
  readonly left: readonly Left[];
  /** Replicas that have heard of the joined buckets. */
  readonly knowing: ReadonlySet<AdmissionQueue>;
}

function watchLeases(): Watched {
  const left: Left[] = [];
  const knowing = new Set<AdmissionQueue>();
  const { enter, moveToJoinedBuckets } = AdmissionQueue.prototype;
  AdmissionQueue.prototype.moveToJoinedBuckets = function noteJoin() {
    knowing.add(this);
    moveToJoinedBuckets.call(this);
  };
  AdmissionQueue.prototype.enter = async function noteLeases(...entering) {
    const ticket = await enter.apply(this, entering);
    const granted = ticket.whenGranted.bind(ticket);
    ticket.whenGranted = async () => {
      const lease = await granted();
      left.push({ bucket: lease.grant.bucket, isJoinKnown: knowing.has(this) });
      return lease;
    };
    return ticket;
  };
  open.push(async () => {
    Object.assign(AdmissionQueue.prototype, { enter, moveToJoinedBuckets });
  });
  return { left, knowing };
}

test('calls that wait at both replicas go on in one bucket, in turn, and only what left before the join was known is refused', async () => {
  const model = createLanguageModelSimulator({
    latency: { baseMs: 5, perTokenMs: 0, jitter: 0 },
    orgs: { 'org-sim': { projects: { proj_sim: { keys: ['sk-sim', 'sk-two'] } } } },
    models: { 'gpt-4o': { rpm: 120, tpm: 1e9 } },
  });
  const { left, knowing } = watchLeases();
  const { url } = await model.listen();
  open.push(() => model.close());
  const config = fleetConfig({
    redis: `url: "redis://127.0.0.1:${redis.port}", commandTimeoutMs: 2000`,
    modelUrl: url,
    workspaces: ['acme', 'beta'],
    workspace: '    requestsPerMinute: { openai: 100000 }\n    requestsPerDay: { openai: 1000000 }',
  });
  // The second workspace has the other key of the project.
  const yaml = `${config.yaml()}\n    credentials: { openai: "Bearer sk-two" }`;
  const services: Service[] = [];
  for (let n = 0; n < 2; n += 1) {
    const service = await serviceOf(yaml);
    open.push(() => service.close());
    services.push(service);
  }
  const send = async (workspace: string, at: number): Promise<number> => {
    const port = services[at]?.dataAddress.port;
    const response = await fetch(`http://127.0.0.1:${port}${chatPath}`, {
      method: 'POST',
      headers: { authorization: `Bearer ${config.keys[workspace]}`, 'content-type': 'application/json' },
      body: JSON.stringify(chatBody),
    });
    await response.arrayBuffer();
    return response.status;
  };
  // All but 20 of the upstream's minute are used already: the other calls wait for two a second, however slowly all are sent.
  model.consume(100, { dimension: 'rpm' });
  const burst = Array.from({ length: 16 }, () => [send('acme', 0), send('beta', 1)]).flat();
  const statuses = await Promise.all(burst);
  // A machine so slow that nothing had to wait has sent all of them too early: these two come when the project is known for certain.
  while (knowing.size < 2) await pause(20);
  statuses.push(...(await Promise.all([send('acme', 0), send('beta', 1)])));
  expect(statuses.filter((status) => status !== 200)).toEqual([]);
  const keys = model.log.map(({ key }) => key);
  expect(new Set(keys)).toEqual(new Set(['sk-sim', 'sk-two']));
  const joined = new Set(left.filter(({ isJoinKnown }) => isJoinKnown).map(({ bucket }) => bucket));
  expect(joined.size).toBe(1);
  const former = left.filter(({ bucket }) => !joined.has(bucket));
  // The bucket that stays granted what its own responses showed to be left. Whatever the other bucket let go meanwhile, which is
  // its probes, is not in these responses: each such call leaves no room for one that has been granted.
  expect(former.length).toBeGreaterThan(0);
  expect(count(model.log, 'throttled')).toBeLessThanOrEqual(former.length);
});
