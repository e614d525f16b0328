/** Runs the programs of `examples/` as their readers do: processes of their own, with a key and an address. */
import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { json } from 'node:stream/consumers';
import { fileURLToPath } from 'node:url';
import { afterEach, beforeEach, describe, expect, test } from '@jest/globals';
import { startWorld, type World } from '../journey/world.ts';
import { startGateway } from '../support/gateway.ts';
import { pythonWith } from '../support/clients.ts';

const root = fileURLToPath(new URL('../../', import.meta.url));
const example = (name: string): string => `${root}examples/${name}`;

interface Ended {
  readonly code: number;
  readonly stdout: string;
  readonly stderr: string;
}

/** Runs a program to its end. */
const run = (program: string, args: readonly string[], env: Record<string, string>): Promise<Ended> =>
  new Promise((resolve) => {
    execFile(program, args, { env: { ...process.env, ...env } }, (failure, stdout, stderr) => {
      resolve({ code: failure === null ? 0 : Number(failure.code), stdout, stderr });
    });
  });

/** The quota is used up for half a minute. */
const throttled = {
  kind: 'answer',
  status: 429,
  headers: { 'retry-after': '30' },
  body: { error: { code: 'rate_limit_exceeded' } },
} as const;

let world: World;
const envOf = ({ gateway }: World, workspace = 'acme'): Record<string, string> => ({
  SLUICE_URL: gateway.url,
  SLUICE_KEY: gateway.keys[workspace] ?? '',
});

const python = pythonWith('openai==3.54.0');
type Tested = typeof python.test;
const clients: [string, Tested, () => [string, string[]]][] = [
  ['node-openai.mjs', test, () => [process.execPath, [example('node-openai.mjs')]]],
  [`python_openai.py${python.why}`, python.test, () => [python.program, [example('python_openai.py')]]],
];

describe.each(clients)('%s', (_, tested, command) => {
  beforeEach(async () => (world = await startWorld()));
  afterEach(() => world.close());

  tested('streams a response, and sees nothing of a throttled one before it', async () => {
    world.model.fault({ ...throttled, headers: { 'retry-after-ms': '200' } });
    const [program, args] = command();
    expect(await run(program, args, envOf(world))).toEqual({
      code: 0,
      stdout: expect.stringContaining('water finds its way'),
      stderr: '',
    });
    expect(world.model.log.map(({ status }) => status)).toEqual([429, 200]);
  });

  tested('says when to come again where its call cannot be sent in time', async () => {
    world.model.fault({ ...throttled, headers: { 'retry-after': '600' } });
    const [program, args] = command();
    const first = await run(program, args, envOf(world));
    const second = await run(program, args, envOf(world));
    expect([first.code, second.code]).toEqual([75, 75]);
    expect(second.stderr).toMatch(/^wait_too_long: try again in (5\d\d|600) s\n$/);
    expect(world.model.log).toHaveLength(1);
  });
});

test('webhook-worker.mjs takes one unit for an order whose webhook is delivered five times', async () => {
  world = await startWorld();
  const worker = spawn(process.execPath, [example('webhook-worker.mjs')], {
    env: { ...process.env, ...envOf(world), PORT: '0' },
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  try {
    const [said] = (await once(worker.stdout, 'data')) as [Buffer];
    const port = /\d+/.exec(said.toString())?.[0] ?? '';
    const deliver = async (order: number): Promise<number> => {
      const response = await fetch(`http://127.0.0.1:${port}/`, {
        method: 'POST',
        headers: { 'x-shopify-webhook-id': `hook-${order}` },
        body: JSON.stringify({ id: order, inventory_item_id: 7, location_id: 1 }),
      });
      await response.arrayBuffer();
      return response.status;
    };
    const orders = [1, 2, 3];
    const atOnce = await Promise.all(orders.flatMap((order) => [deliver(order), deliver(order)]));
    const later = await Promise.all(
      orders.flatMap((order) => [deliver(order), deliver(order), deliver(order)]),
    );
    expect(new Set([...atOnce, ...later])).toEqual(new Set([200]));
    expect(world.shop.log.map(({ method, status }) => `${method} ${status}`)).toEqual(
      Array(3).fill('POST 200'),
    );
  } finally {
    worker.kill();
    await once(worker, 'exit');
    await world.close();
  }
});

test('agent-loop.mjs calls its tool, passes the result to the model, and does not notice a throttled turn', async () => {
  const seen: { messages: { role: string; content: string }[] }[] = [];
  const call = {
    id: 'call_1',
    type: 'function',
    function: { name: 'stock_of', arguments: '{"product":"lamp"}' },
  };
  const responses = [
    { status: 200, message: { role: 'assistant', content: null, tool_calls: [call] } },
    { status: 429, message: null },
    { status: 200, message: { role: 'assistant', content: 'Four lamps.' } },
  ];
  const model: Server = createServer((request, response) => {
    void json(request).then((body) => {
      seen.push(body as (typeof seen)[number]);
      const { status, message } = responses[seen.length - 1] ?? { status: 500, message: null };
      const fields = { 'content-type': 'application/json', 'retry-after-ms': '100' };
      response
        .writeHead(status, fields)
        .end(JSON.stringify({ object: 'chat.completion', choices: [{ message }] }));
    });
  });
  await new Promise<void>((resolve) => model.listen(0, '127.0.0.1', resolve));
  const origin = `http://127.0.0.1:${(model.address() as AddressInfo).port}`;
  const gateway = await startGateway({
    upstreams: `  openai:\n    kind: language-model\n    origins: ["${origin}"]\n    allowPrivateAddresses: true\n    credential: Bearer x\n`,
  });
  try {
    const env = { SLUICE_URL: gateway.url, SLUICE_KEY: gateway.keys['acme'] ?? '' };
    const ended = await run(process.execPath, [example('agent-loop.mjs')], env);
    expect(ended).toEqual({ code: 0, stdout: 'Four lamps.\n', stderr: '' });
    expect(seen.map(({ messages }) => messages.length)).toEqual([1, 3, 3]);
    expect(seen[2]?.messages[2]?.content).toBe('{"product":"lamp","units":4}');
  } finally {
    await gateway.close();
    model.close();
    model.closeAllConnections();
  }
});
