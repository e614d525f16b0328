/** Clients of Node that repeat calls or follow addresses in their own way, each a process of its own. */
import { describe, expect } from '@jest/globals';
import { nodeWith } from '../support/clients.ts';
import { run as runProgram, upstreams, type Behind } from './upstream.ts';

const start = upstreams();
const speaking = (preset: string): string => `speaks: ${preset}, credential: Bearer upstream_secret`;
const credentials = ({ log }: Behind): unknown[] => [
  ...new Set(log.map(({ fields }) => fields.authorization)),
];

/** Runs a program that finds its client in `home`; what it prints as JSON. */
async function run(behind: Behind, home: string, program: string): Promise<unknown> {
  const head = `
import { createRequire } from 'node:module';
const require = createRequire('${home}/program.js');
const { SLUICE_URL, SLUICE_KEY } = process.env;
`;
  return JSON.parse(
    await runProgram(behind, process.execPath, ['--input-type=module', '--eval', head + program]),
  );
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
      const behind = await start(speaking('stripe'), (_received, n) => {
        if (n === 1)
          return [429, { error: { code: 'rate_limit' } }, { 'stripe-rate-limited-reason': 'global-rate' }];
        if (n === 2) return [409, { error: conflict }, { 'stripe-should-retry': 'true' }];
        return [200, { id: 're_1', object: 'refund' }];
      });
      const program = `${client}
const refund = await stripe.refunds.create({ payment_intent: 'pi_1' });
console.log(JSON.stringify(refund.id));
`;
      expect(await run(behind, stripe.home, program)).toBe('re_1');
      expect(behind.log.map(({ line }) => line)).toEqual(Array(3).fill('POST /v1/refunds'));
      const keys = new Set(behind.log.map(({ fields }) => fields['idempotency-key']));
      expect([...keys]).toEqual([expect.stringMatching(/^.+$/)]);
      expect(credentials(behind)).toEqual(['Bearer upstream_secret']);
    },
  );
});

const salesforce = nodeWith('jsforce@3.10.26');
salesforce.test(
  `jsforce follows the pages of a query, and sees nothing of too many calls at once${salesforce.why}`,
  async () => {
    const account = (Id: number): object => ({ Id, attributes: { type: 'Account', url: `/accounts/${Id}` } });
    const message = 'ConcurrentRequests (Concurrent API Requests) Limit exceeded.';
    const nextRecordsUrl = '/services/data/v60.0/query/01gD-1';
    const behind = await start(speaking('salesforce'), ({ line }, n) => {
      if (n === 1) return [403, [{ errorCode: 'REQUEST_LIMIT_EXCEEDED', message }]];
      if (line.startsWith('POST ')) return [201, { id: '3', success: true, errors: [] }];
      const isLast = line.includes(nextRecordsUrl);
      const page = isLast ? { records: [account(2)] } : { nextRecordsUrl, records: [account(1)] };
      return [200, { totalSize: 2, done: isLast, ...page }];
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
    expect(await run(behind, salesforce.home, program)).toEqual([[1, 2], true, '3']);
    expect(behind.log.map(({ line }) => line.replace(/\?.*/, ''))).toEqual([
      'GET /services/data/v60.0/query',
      'GET /services/data/v60.0/query',
      'GET /services/data/v60.0/query/01gD-1',
      'POST /services/data/v60.0/sobjects/Account',
    ]);
    expect(credentials(behind)).toEqual(['Bearer upstream_secret']);
    expect(JSON.parse(behind.log[3]?.body.toString() ?? '')).toEqual({ Name: 'Acme' });
  },
);
