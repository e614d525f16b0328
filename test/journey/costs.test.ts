/** What a call reserves of tokens, what it is charged in the end, and whom that delays. */
import { afterEach, expect, test } from '@jest/globals';
import { scripted } from './scripted.ts';
import { closeAll } from './world.ts';

afterEach(closeAll);

const chatPath = '/via/model/v1/chat/completions';
const messages = [{ role: 'user', content: 'hello' }];
const tokens = (limits: string) => ({ upstreams: { model: `kind: language-model, limits: { ${limits} }` } });

test('a call whose response states no levels is charged what the usage in its stream says', async () => {
  const statusesFor = async (total: number, calls: number, more: object) => {
    const usage = { prompt_tokens: 3, completion_tokens: total - 3, total_tokens: total };
    const chunks = [
      { choices: [{ delta: { content: 'hi' } }], usage: null },
      { choices: [], usage },
    ];
    const body = chunks.map((chunk) => `data: ${JSON.stringify(chunk)}\n\n`).join('');
    const headers = { 'content-type': 'text/event-stream' };
    const { ask } = await scripted(() => ({ headers, body }), tokens('tokensPerMinute: 30000'));
    const statuses: number[] = [];
    for (let sent = 0; sent < calls; sent += 1) {
      const json = { model: 'm', messages, ...more };
      const { status, headers: told } = await ask(chatPath, { json, headers: { prefer: 'wait=2' } });
      statuses.push(status);
      // 20,000 tokens are used, of which 500 drain in a second, and the next call is expected to use at least as many.
      if (status === 429) expect(Math.abs(Number(told.get('retry-after')) - 26)).toBeLessThanOrEqual(16);
    }
    return statuses;
  };
  // What max_tokens reserved too much is given back, so that the sixth call of a minute leaves at once.
  expect(await statusesFor(10, 8, { max_tokens: 5_000 })).toEqual(Array(8).fill(200));
  expect(await statusesFor(20_000, 4, {})).toEqual([200, 429, 429, 429]);
});

test.each(['tokensPerMinute: 30000', 'tokensPerDay: 30000'])(
  'a refused call that asked for a billion tokens delays no other call: %s',
  async (limits) => {
    const { ask } = await scripted(
      ({ body }) => ({ status: body.includes('max_tokens') ? 400 : 200 }),
      tokens(limits),
    );
    const statusOf = async (more: object): Promise<number> =>
      (await ask(chatPath, { json: { model: 'm', messages, ...more }, headers: { prefer: 'wait=2' } }))
        .status;
    expect([await statusOf({ max_tokens: 1e9 }), await statusOf({})]).toEqual([400, 200]);
  },
);
