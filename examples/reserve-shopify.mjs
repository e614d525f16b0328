/**
 * A batch of shopify-api-node that comes back with its tickets: `npm install shopify-api-node`, then
 * `SLUICE_KEY=slc_… node reserve-shopify.mjs 2026-01-01 2026-01-02 …` counts the orders since each of these days. The client repeats a call
 * after `Retry-After` by itself; its hooks carry the ticket from the refusal to the repeat.
 */
import Shopify from 'shopify-api-node';

const sluice = new URL(process.env.SLUICE_URL ?? 'http://localhost:8080');
const prefix = '/via/shop'; // with an upstream of many shops: /via/shop/acme.myshopify.com

const shopify = new Shopify({
  shopName: 'acme',
  accessToken: process.env.SLUICE_KEY,
  apiVersion: '2026-10',
  maxRetries: 10,
  timeout: 120_000,
  hooks: {
    beforeRequest: [
      ({ url, headers }) => {
        if (!url.pathname.startsWith(prefix)) url.pathname = prefix + url.pathname;
        headers.prefer = 'reserve, wait=5';
      },
    ],
    afterResponse: [
      (response) => {
        const { headers } = response.request.options; // also those of the repeat
        headers['sluice-ticket'] = response.headers['sluice-ticket'];
        return response;
      },
    ],
  },
});
shopify.baseUrl = { hostname: sluice.hostname, port: Number(sluice.port), protocol: sluice.protocol };

await Promise.all(
  process.argv.slice(2).map(async (day) => {
    const orders = await shopify.order.list({ created_at_min: day, limit: 250 });
    console.log(`${orders.length} orders since ${day}`);
  }),
);
