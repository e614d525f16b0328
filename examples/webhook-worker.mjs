/**
 * Takes a unit from stock for every order that a webhook reports, once, however often the webhook is delivered:
 * `SLUICE_KEY=slc_… node webhook-worker.mjs`. Verify `X-Shopify-Hmac-Sha256` before you trust a real one.
 */
import { createServer } from 'node:http';
import { json } from 'node:stream/consumers';

const stock = `${process.env.SLUICE_URL ?? 'http://localhost:8080'}/via/shop/admin/api/2026-10/inventory_levels/adjust.json`;

const server = createServer(async (request, response) => {
  try {
    const order = await json(request);
    const stockResponse = await fetch(stock, {
      method: 'POST',
      headers: {
        authorization: `Bearer ${process.env.SLUICE_KEY}`,
        'content-type': 'application/json',
        // The same for every delivery. A second write for one webhook needs another: add what it does to the id.
        'idempotency-key': `${request.headers['x-shopify-webhook-id']}-stock`,
        prefer: 'wait=4', // senders of webhooks wait five seconds for a response
      },
      body: JSON.stringify({
        inventory_item_id: order.inventory_item_id,
        location_id: order.location_id,
        available_adjustment: -1,
      }),
    });
    await stockResponse.arrayBuffer();
    // What is refused comes again later: the sender repeats whatever is not answered with 200.
    response.writeHead(stockResponse.ok ? 200 : 503).end();
  } catch (error) {
    console.error(error);
    response.writeHead(503).end();
  }
});
server.listen(Number(process.env.PORT ?? 3000), () => console.log(`listening on ${server.address().port}`));
