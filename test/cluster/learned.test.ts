/** What one replica learns from the responses of an upstream, the others use for their next call. */
import { expect, test } from '@jest/globals';
import { until } from '../support/until.ts';
import { kinds, model, onRedis, type Reply } from './fleet.ts';

const { fleet, upstream, languageModel } = onRedis();

test('two keys of one project share one bucket over both replicas once their responses have named it', async () => {
  const { simulator, url } = await languageModel();
  const roomy = { requestsPerMinute: { openai: 100_000 }, requestsPerDay: { openai: 1_000_000 } };
  const all = await fleet({
    upstreams: model(url, {}),
    workspaces: { acme: roomy, beta: { ...roomy, credentials: { openai: 'Bearer sk-two' } } },
  });
  const leaving = new AbortController();
  const chat = (replica: number, workspace: string): Promise<Reply> => {
    const body = { model: 'gpt-4o', messages: [{ role: 'user', content: 'hello' }], max_tokens: 8 };
    return all.call(replica, 'openai/v1/chat/completions', { workspace, body, signal: leaving.signal });
  };
  const both = () => Promise.all([chat(0, 'acme'), chat(1, 'beta')]);
  const busy = (replica: number) => all.buckets(replica).filter(({ inFlight }) => inFlight > 0);
  const inOne = async (): Promise<boolean> => {
    simulator.fault({ kind: 'slow', ms: 300, times: 2 });
    const held = both();
    await until(() => [0, 1].every((replica) => busy(replica).length > 0));
    const buckets = new Set([0, 1].flatMap((replica) => busy(replica).map(({ bucket }) => bucket)));
    expect(kinds(await held)).toEqual(['200']);
    return buckets.size === 1;
  };
  expect(kinds(await both())).toEqual(['200']);
  // One replica hears of the join a moment after the other.
  await until(inOne);
  expect(new Set(simulator.log.map(({ key }) => key))).toEqual(new Set(['sk-sim', 'sk-two']));
});

test('a refusal that concerns the credential stops every bucket of it at every replica', async () => {
  const speaks = {
    bucketBy: ['credential', 'path:/v1/{*}'],
    throttledBy: [{ status: 429, field: 'x-all', scope: 'credential' }],
  };
  let [refused, openAt] = [0, Infinity];
  const { url } = await upstream((response) => {
    if (openAt === Infinity) openAt = performance.now() + 3_000;
    if (performance.now() >= openAt) return void response.end('ok');
    refused += 1;
    response.writeHead(429, { 'x-all': 'true', 'retry-after': '3' }).end();
  });
  const all = await fleet({ upstreams: { api: { origins: [url], speaks } }, replicas: 3 });
  const first = all.call(0, 'api/v1/a');
  await until(() => all.buckets(0).some(({ closedMs }) => closedMs > 0));
  const others = ['b', 'c', 'd', 'a'].map((name, n) => all.call(n + 1, `api/v1/${name}`));
  expect([kinds(await Promise.all([first, ...others])), refused]).toEqual([['200'], 1]);
});
