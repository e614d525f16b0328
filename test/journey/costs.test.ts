/** What a call reserves of tokens, points and places in flight, what it is charged in the end, and whom that delays. */
import { afterEach, describe, expect, test } from '@jest/globals';
import type { ServerResponse } from 'node:http';
import { fastClock } from '../support/fast-clock.ts';
import { scripted, type Scripted } from './scripted.ts';
import { bucketsOf, closeAll, highCeilings, many, maxInFlight, startWorld, tally } from './world.ts';

afterEach(closeAll);

const chatPath = '/via/model/v1/chat/completions';
const messages = [{ role: 'user', content: 'hello' }];
const tokens = (limits: string) => ({ upstreams: { model: `kind: language-model, limits: { ${limits} }` } });

describe('a call whose response states no levels is charged what its usage says:', () => {
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
  /** Longer than what is read at once. */
  const inPieces: Answering = (response, total) => {
    type(response, 'application/json; charset=utf-8').write(`{"more":"${'x'.repeat(100_000)}",`);
    setImmediate(() => response.end(`"usage":${JSON.stringify(usageOf(total))}}`));
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
  /** A model's own form: frames with documents in base64. The head states the input alone. */
  const ofBedrock: Answering = (response, total) => {
    const metrics = { inputTokenCount: 3, outputTokenCount: total - 3 };
    type(response, 'application/vnd.amazon.eventstream').setHeader('x-amzn-bedrock-input-token-count', '3');
    for (const part of [
      { type: 'message_start', message: { usage: { input_tokens: 3, output_tokens: 1 } } },
      { type: 'message_stop', 'amazon-bedrock-invocationMetrics': metrics },
    ]) {
      const bytes = Buffer.from(JSON.stringify(part)).toString('base64');
      response.write(`\u0000\u0000:event-type{"bytes":"${bytes}","p":"abc"}`);
    }
    response.end();
  };

  test.each([
    ['a response in one piece', whole],
    ['a response in pieces', inPieces],
    ['a stream', streamed],
    ['a stream of long events', longEvents],
    ['a stream of Bedrock', ofBedrock],
  ])('%s', async (_name, answering) => {
    const statusesFor = async (total: number, calls: number, more: object): Promise<number[]> => {
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

test('calls with cached prompts wait only for the tokens that the upstream counts', async () => {
  const { call, model, gateway } = await startWorld({
    model: { dialect: 'anthropic', models: { claude: { rpm: 1_000, itpm: 50_000, otpm: 100_000 } } },
    workspaces: {
      acme: `${highCeilings}    credentials: { openai: { header: x-api-key, value: sk-sim } }\n`,
    },
  });
  const ask = (agent: number, n: number) => {
    const cached = {
      type: 'text',
      text: `${agent}${'x'.repeat(80_000)}`,
      cache_control: { type: 'ephemeral' },
    };
    const asked = [{ role: 'user', content: `ask ${n} ${'y'.repeat(400)}` }];
    const json = { model: 'claude', max_tokens: 4_000, system: [cached], messages: asked };
    return call('/via/openai/v1/messages', { json, headers: { prefer: 'wait=5' } });
  };
  // The first turn of an agent fills the cache: 20,000 tokens each are counted, and both fit.
  const first = await Promise.all([ask(0, 0), ask(1, 0)]);
  const later = await Promise.all(many(20, (n) => ask(n % 2, n + 1)));
  expect(tally([...first, ...later])).toEqual({ 200: 22 });
  expect(tally(model.log)[429] ?? 0).toBeLessThanOrEqual(1);
  const meters = bucketsOf(gateway)[0]?.meters ?? [];
  const input = meters.find(({ meter }) => meter === 'input_tokens');
  expect(input?.limit).toBe(50_000);
  expect(input?.level).toBeLessThanOrEqual(60_000);
  expect(meters.map(({ meter }) => meter)).toContain('output_tokens');
});

test.each([
  ['one in flight at a time', '', 500],
  ['several in flight', '    maxInFlight: none\n', 20],
])(
  'expensive GraphQL queries of an unknown document are never throttled, with %s',
  async (_words, shopMore, actual) => {
    // A document that asks for 500 of the 2,000 points; 100 come back each second.
    const { graphql, shop } = await startWorld({ clock: fastClock(8), shopMore });
    const query = `# sim: requested=500 actual=${actual} ms=200\nquery($nonce: String) { shop { name } }`;
    const headers = { prefer: 'wait=120' };
    const replies = await Promise.all(
      many(10, (at) => graphql(query, { variables: { nonce: `${at}` }, headers })),
    );
    expect(tally(replies)).toEqual({ 200: 10 });
    expect(replies.filter(({ text }) => text.includes('THROTTLED'))).toEqual([]);
    expect(shop.log.map(({ decision }) => decision)).toEqual(Array(10).fill('admitted'));
  },
);

describe('an account that takes three calls at once, shared by three workspaces', () => {
  const names = ['one', 'two', 'three'];
  const workspaces = Object.fromEntries(names.map((name) => [name, highCeilings]));
  /** Calls of all workspaces at once. */
  const burst = ({ ask }: Pick<Scripted, 'ask'>, path: string, isStream: (at: number) => boolean) =>
    Promise.all(
      many(24, (at) => {
        const json = {
          model: 'gpt-4o',
          stream: isStream(at),
          messages: [{ role: 'user', content: `call ${at}` }],
        };
        return ask(path, { workspace: names[at % 3] ?? '', json, headers: { prefer: 'wait=600' } });
      }),
    );

  test('has no more in flight, and whoever finds no place within its wait is told why', async () => {
    const latency = { baseMs: 20, perTokenMs: 1, jitter: 0 };
    const { call, model, chat, settled } = await startWorld({
      model: { latency },
      modelLimits: 'maxInFlightTotal: 3',
      workspaces,
    });
    const replies = await burst({ ask: call }, '/via/openai/v1/chat/completions', (at) => at % 2 === 0);
    expect(tally(replies)).toEqual({ 200: 24 });
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

  test('is known by its refusals, for streams as well', async () => {
    let [inFlight, refused, hasRefused] = [0, 0, false];
    const message = 'request reached organization max concurrency: 3, please try again after 1 seconds';
    const narrow = await scripted(
      ({ body, response }) => {
        if (inFlight >= 3) {
          refused += 1;
          hasRefused = true;
          return { status: 429, body: { error: { message, type: 'rate_limit_reached_error' } } };
        }
        inFlight += 1;
        const isStream = body.includes('"stream":true');
        response.writeHead(200, { 'content-type': isStream ? 'text/event-stream' : 'application/json' });
        if (isStream) response.write('data: {}\n\n');
        // Calls of the first wave stay until there is one too many.
        const answering = setInterval(() => {
          if (!hasRefused) return;
          clearInterval(answering);
          inFlight -= 1;
          response.end(isStream ? 'data: [DONE]\n\n' : '{}');
        }, 20);
        return undefined;
      },
      { upstreams: { narrow: 'credential: "Bearer x"' }, workspaces: { one: '', two: '', three: '' } },
    );
    expect(tally(await burst(narrow, '/via/narrow/v1/chat/completions', () => false))).toEqual({ 200: 24 });
    expect(refused).toBeGreaterThan(0);
    refused = 0;
    expect(tally(await burst(narrow, '/via/narrow/v1/chat/completions', () => true))).toEqual({ 200: 24 });
    expect(refused).toBe(0);
  });
});
