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
