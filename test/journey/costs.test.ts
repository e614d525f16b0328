/** What a call reserves of tokens, points and places in flight, what it is charged in the end, and whom that delays. */
import { afterEach, expect, test } from '@jest/globals';
import type { ServerResponse } from 'node:http';
import { scripted } from './scripted.ts';
import { closeAll, highCeilings, many, maxInFlight, startWorld, tally } from './world.ts';

afterEach(closeAll);

const chatPath = '/via/model/v1/chat/completions';
const messages = [{ role: 'user', content: 'hello' }];
const tokens = (limits: string) => ({ upstreams: { model: `kind: language-model, limits: { ${limits} }` } });

type Answering = (response: ServerResponse, tokens: number) => void;
const usageOf = (total: number) => ({
  prompt_tokens: 3,
  completion_tokens: total - 3,
  total_tokens: total,
});
const type = (response: ServerResponse, text: string) => response.setHeader('content-type', text);

const whole: Answering = (response, total) => {
  const body = JSON.stringify({ choices: [{ message: { content: 'hi' } }], usage: usageOf(total) });
  type(response, 'application/json').setHeader('content-length', body.length).end(body);
};
const streamed: Answering = (response, total) => {
  type(response, 'text/event-stream').write(
    'data: {"choices":[{"delta":{"content":"hi"}}],"usage":null}\n\n',
  );
  response.end(`data: ${JSON.stringify({ choices: [], usage: usageOf(total) })}\n\ndata: [DONE]\n\n`);
};
/** Too long to be read one by one; the end of the stream still states the usage. */
const longEvents: Answering = (response, total) => {
  const instructions = 'x'.repeat(200_000);
  const usage = { input_tokens: 3, output_tokens: total - 3, total_tokens: total };
  type(response, 'text/event-stream').write(
    `event: response.created\ndata: {"instructions":"${instructions}"}\n\n`,
  );
  const completed = { type: 'response.completed', response: { instructions, usage } };
  response.end(`event: response.completed\ndata: ${JSON.stringify(completed)}\n\n`);
};
test.each([
  ['a response in one piece', whole],
  ['a stream', streamed],
  ['a stream of long events', longEvents],
])('a call whose response states no levels is charged what its usage says: %s', async (_name, answering) => {
  const statusesFor = async (total: number, calls: number, more: object) => {
    const { ask } = await scripted(
      ({ response }) => answering(response, total),
      tokens('tokensPerMinute: 30000'),
    );
    const statuses: number[] = [];
    for (let sent = 0; sent < calls; sent += 1) {
      const json = { model: 'm', messages, ...more };
      const { status, headers } = await ask(chatPath, { json, headers: { prefer: 'wait=2' } });
      statuses.push(status);
      // 20,000 tokens are used, of which 500 drain in a second, and the next call is expected to use at least as many.
      if (status === 429) expect(Math.abs(Number(headers.get('retry-after')) - 26)).toBeLessThanOrEqual(16);
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

test('an account that takes three calls at once, shared by three workspaces, has no more in flight, and whoever finds no place within its wait is told why', async () => {
  const names = ['one', 'two', 'three'];
  const { call, model, chat, settled } = await startWorld({
    model: { latency: { baseMs: 20, perTokenMs: 1, jitter: 0 } },
    modelLimits: 'maxInFlightTotal: 3',
    workspaces: Object.fromEntries(names.map((name) => [name, highCeilings])),
  });
  const replies = many(24, (at) =>
    call('/via/openai/v1/chat/completions', {
      workspace: names[at % 3] ?? '',
      json: { model: 'gpt-4o', stream: at % 2 === 0, messages: [{ role: 'user', content: `call ${at}` }] },
      headers: { prefer: 'wait=600' },
    }),
  );
  expect(tally(await Promise.all(replies))).toEqual({ 200: 24 });
  expect(maxInFlight(model.log)).toBeLessThanOrEqual(3);
  const leaving = new AbortController();
  const occupying = names.map((workspace) => {
    model.fault({ kind: 'hang' });
    return chat('occupying', { workspace, signal: leaving.signal }).catch(() => null);
  });
  await settled(0, 3);
  const late = await chat('late', { workspace: 'two', headers: { prefer: 'wait=1' } });
  expect([late.status, late.text]).toEqual([429, expect.stringContaining('maxInFlightTotal')]);
  leaving.abort();
  await Promise.all(occupying);
});
