/** Runs the programs of `examples/` as their readers do: processes of their own, with a key and an address. */
import { fileURLToPath } from 'node:url';
import { afterEach, beforeEach, describe, expect, test } from '@jest/globals';
import { closeAll, startWorld, type World } from '../journey/world.ts';
import { pythonWith } from '../support/clients.ts';
import { type Answer, run, upstreams, withWorker } from './upstream.ts';

const start = upstreams();
const example = (name: string): string => fileURLToPath(new URL(`../../examples/${name}`, import.meta.url));

describe('with simulated upstreams,', () => {
  let world: World;
  beforeEach(async () => (world = await startWorld()));
  afterEach(closeAll);

  /** The quota is used up for so many milliseconds. */
  const throttle = (ms: number): void => {
    const body = { error: { code: 'rate_limit_exceeded' } };
    world.model.fault({ kind: 'answer', status: 429, headers: { 'retry-after': String(ms / 1_000) }, body });
  };

  const python = pythonWith('openai==3.54.0');
  describe.each([
    ['node-openai.mjs', test, process.execPath],
    ['python_openai.py', python.test, python.program],
  ] as const)(`%s${python.why}`, (name, tested, program) => {
    const say = (): Promise<string> => run(world, program, [example(name)]);

    tested('streams a response, and sees nothing of a throttled one before it', async () => {
      throttle(200);
      expect(await say()).toContain('water finds its way');
      expect(world.model.log.map(({ status }) => status)).toEqual([429, 200]);
    });

    tested('says when to come again where its call cannot be sent in time', async () => {
      throttle(600_000);
      await expect(say()).rejects.toMatchObject({ code: 75 });
      const stderr = expect.stringMatching(/^wait_too_long: try again in (5\d\d|600) s\n$/);
      await expect(say()).rejects.toMatchObject({ code: 75, stderr });
      expect(world.model.log).toHaveLength(1);
    });
  });

  test('webhook-worker.mjs takes one unit for an order whose webhook is delivered five times', () =>
    withWorker(world, example('webhook-worker.mjs'), async (url) => {
      const deliver = async (order: number): Promise<number> => {
        const headers = { 'x-shopify-webhook-id': `hook-${order}` };
        const body = JSON.stringify({ id: order, inventory_item_id: 7, location_id: 1 });
        const response = await fetch(url, { method: 'POST', headers, body });
        await response.arrayBuffer();
        return response.status;
      };
      const atOnce = await Promise.all([1, 2, 3, 1, 2, 3].map(deliver));
      const later = await Promise.all([1, 2, 3, 1, 2, 3, 1, 2, 3].map(deliver));
      expect(new Set([...atOnce, ...later])).toEqual(new Set([200]));
      const sent = world.shop.log.map(({ method, status }) => `${method} ${status}`);
      expect(sent).toEqual(Array(3).fill('POST 200'));
    }));
});

test('agent-loop.mjs calls its tool, passes the result to the model, and does not notice a throttled turn', async () => {
  const stockOf = { name: 'stock_of', arguments: '{"product":"lamp"}' };
  const tool_calls = [{ id: 'call_1', type: 'function', function: stockOf }];
  const saying = (message: object) => ({ object: 'chat.completion', choices: [{ message }] });
  const respond = (_received: unknown, n: number): Answer => {
    if (n === 1) return [200, saying({ role: 'assistant', content: null, tool_calls })];
    if (n === 2) return [429, {}, { 'retry-after-ms': '100' }];
    return [200, saying({ role: 'assistant', content: 'Four lamps.' })];
  };
  const behind = await start('kind: language-model, credential: Bearer x', respond, { name: 'openai' });
  expect(await run(behind, process.execPath, [example('agent-loop.mjs')])).toBe('Four lamps.\n');
  const seen = behind.log.map(({ body }) => JSON.parse(body) as { messages: { content: string }[] });
  expect(seen.map(({ messages }) => messages.length)).toEqual([1, 3, 3]);
  expect(seen[2]?.messages[2]?.content).toBe('{"product":"lamp","units":4}');
});

const pyGithub = pythonWith('PyGithub==2.10.0');
/** It follows addresses that it finds in bodies. */
pyGithub.test(
  `PyGithub lists pages and loads what they name, all through Sluice${pyGithub.why}`,
  async () => {
    const isIssues = (line: string): boolean => line.includes('/issues');
    let isRefused = false;
    const behind = await start(
      'speaks: github, credential: Bearer ghp_secret',
      ({ line, origin }): Answer => {
        const user = { login: 'ann', url: `${origin}/users/ann` };
        const shop = `${origin}/repos/acme/shop`;
        const issue = (number: number) => ({
          number,
          title: `issue ${number}`,
          url: `${shop}/issues/${number}`,
          user,
        });
        if (line.includes('/users/')) return [200, { ...user, name: 'Ann' }];
        if (!isIssues(line)) return [200, { name: 'shop', url: shop }];
        if (!isRefused) {
          isRefused = true;
          return [403, { message: 'You have exceeded a secondary rate limit.' }, { 'retry-after': '1' }];
        }
        if (line.includes('page=2')) return [200, [issue(2)]];
        return [200, [issue(1)], { link: `<${shop}/issues?page=2>; rel="next"` }];
      },
    );
    const printed = await run(behind, pyGithub.program, [example('python_github.py'), 'acme/shop'], {
      GITHUB_API: behind.origin,
    });
    expect(printed).toBe('1 issue 1 (Ann)\n2 issue 2 (Ann)\n');
    expect(new Set(behind.log.map(({ fields }) => fields.authorization))).toEqual(
      new Set(['Bearer ghp_secret']),
    );
    expect(behind.log.filter(({ line }) => isIssues(line))).toHaveLength(3);
  },
);
