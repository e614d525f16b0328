/** Clients of Node that repeat calls or follow addresses in their own way, each a process of its own. */
import { execFile } from 'node:child_process';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { text } from 'node:stream/consumers';
import { promisify } from 'node:util';
import { afterEach, describe, expect } from '@jest/globals';
import { nodeWith } from '../support/clients.ts';
import { startGateway, type TestGateway } from '../support/gateway.ts';

let upstream: Server;
let gateway: TestGateway;
afterEach(async () => {
  await gateway.close();
  upstream.closeAllConnections();
  await new Promise((resolve) => upstream.close(resolve));
});

interface Received {
  readonly line: string;
  readonly fields: IncomingMessage['headers'];
  readonly body: string;
}
type Answer = readonly [status: number, body: unknown, fields?: Readonly<Record<string, string>>];

/** An upstream of this preset, whose answers `respond` makes of what has been received; behind a gateway. */
async function start(
  preset: string,
  respond: (received: Received, earlier: readonly Received[]) => Answer,
): Promise<readonly Received[]> {
  const log: Received[] = [];
  const handle = async (request: IncomingMessage, response: ServerResponse): Promise<void> => {
    const { method, url, headers: fields } = request;
    const received = { line: `${method} ${url}`, fields, body: await text(request) };
    const [status, body, more] = respond(received, log);
    log.push(received);
    response.writeHead(status, { 'content-type': 'application/json', ...more }).end(JSON.stringify(body));
  };
  upstream = createServer((request, response) => void handle(request, response));
  await new Promise<void>((resolve) => upstream.listen(0, '127.0.0.1', resolve));
  const origin = `http://127.0.0.1:${(upstream.address() as AddressInfo).port}`;
  gateway = await startGateway({
    upstreams: `  api: { origins: ["${origin}"], allowPrivateAddresses: true, speaks: ${preset}, credential: Bearer upstream_secret }`,
  });
  return log;
}

/** Runs a program that finds its client in `home`; what it prints as JSON. */
async function run(home: string, program: string): Promise<unknown> {
  const head = `
import { createRequire } from 'node:module';
const require = createRequire('${home}/program.js');
const { SLUICE_URL, SLUICE_KEY } = process.env;
`;
  const env = { ...process.env, SLUICE_URL: gateway.url, SLUICE_KEY: gateway.keys['acme'] };
  const args = ['--input-type=module', '--eval', head + program];
  return JSON.parse((await promisify(execFile)(process.execPath, args, { env })).stdout);
}

const stripe = nodeWith('stripe@23.1.0');
describe('the client of Stripe', () => {
  const client = `
const Stripe = require('stripe');
const { hostname: host, port } = new URL(SLUICE_URL);
const httpClient = Stripe.createFetchHttpClient((url, init) => {
  const via = new URL(url);
  via.pathname = '/via/api' + via.pathname;
  return fetch(via, init);
});
const stripe = new Stripe(SLUICE_KEY, { host, port, protocol: 'http', httpClient, maxNetworkRetries: 1 });
`;

  stripe.test(
    `sees no refusal of a rate, and its own repeat of a conflict is one with the same key${stripe.why}`,
    async () => {
      const conflict = { type: 'idempotency_error', code: 'idempotency_key_in_use', message: 'in progress' };
      const log = await start('stripe', (_received, { length }) => {
        if (length === 0)
          return [429, { error: { code: 'rate_limit' } }, { 'stripe-rate-limited-reason': 'global-rate' }];
        return length === 1
          ? [409, { error: conflict }, { 'stripe-should-retry': 'true' }]
          : [200, { id: 're_1', object: 'refund' }];
      });
      const program = `${client}
const refund = await stripe.refunds.create({ payment_intent: 'pi_1' });
console.log(JSON.stringify(refund.id));
`;
      expect(await run(stripe.home, program)).toBe('re_1');
      expect(log.map(({ line }) => line)).toEqual(Array(3).fill('POST /v1/refunds'));
      const keys = new Set(log.map(({ fields }) => fields['idempotency-key']));
      expect([keys.size, [...keys][0]]).toEqual([1, expect.stringMatching(/^.+$/)]);
      expect(new Set(log.map(({ fields }) => fields.authorization))).toEqual(
        new Set(['Bearer upstream_secret']),
      );
    },
  );

  stripe.test(`lists every page${stripe.why}`, async () => {
    const log = await start('stripe', ({ line }) => {
      const isLast = line.includes('starting_after=cus_2');
      const data = (isLast ? ['cus_3'] : ['cus_1', 'cus_2']).map((id) => ({ id, object: 'customer' }));
      return [200, { object: 'list', url: '/v1/customers', has_more: !isLast, data }];
    });
    const program = `${client}
const ids = [];
for await (const { id } of stripe.customers.list({ limit: 2 })) ids.push(id);
console.log(JSON.stringify(ids));
`;
    expect(await run(stripe.home, program)).toEqual(['cus_1', 'cus_2', 'cus_3']);
    expect(log).toHaveLength(2);
  });
});

const salesforce = nodeWith('jsforce@3.10.26');
salesforce.test(
  `jsforce follows the pages of a query, and sees nothing of too many calls at once${salesforce.why}`,
  async () => {
    const record = (Id: number): object => ({ Id, attributes: { type: 'Account', url: `/accounts/${Id}` } });
    const tooMany = 'ConcurrentRequests (Concurrent API Requests) Limit exceeded.';
    const log = await start('salesforce', ({ line }, { length }) => {
      if (length === 0) return [403, [{ errorCode: 'REQUEST_LIMIT_EXCEEDED', message: tooMany }]];
      if (line.startsWith('POST ')) return [201, { id: '3', success: true, errors: [] }];
      return line.includes('/query/01gD-1')
        ? [200, { totalSize: 2, done: true, records: [record(2)] }]
        : [
            200,
            {
              totalSize: 2,
              done: false,
              nextRecordsUrl: '/services/data/v60.0/query/01gD-1',
              records: [record(1)],
            },
          ];
    });
    const program = `
const { Connection } = require('jsforce');
const connection = new Connection({
  instanceUrl: SLUICE_URL + '/via/api',
  accessToken: SLUICE_KEY,
  version: '60.0',
});
const first = await connection.query('SELECT Id FROM Account');
const second = await connection.queryMore(first.nextRecordsUrl);
const made = await connection.sobject('Account').create({ Name: 'Acme' });
const ids = [...first.records, ...second.records].map(({ Id }) => Id);
console.log(JSON.stringify([ids, second.done, made.id]));
`;
    expect(await run(salesforce.home, program)).toEqual([[1, 2], true, '3']);
    expect(log.map(({ line }) => line.replace(/\?.*/, ''))).toEqual([
      'GET /services/data/v60.0/query',
      'GET /services/data/v60.0/query',
      'GET /services/data/v60.0/query/01gD-1',
      'POST /services/data/v60.0/sobjects/Account',
    ]);
    expect(log.every(({ fields }) => fields.authorization === 'Bearer upstream_secret')).toBe(true);
    expect(JSON.parse(log[3]?.body ?? '')).toEqual({ Name: 'Acme' });
  },
);
