/**
 * A serverless worker that ends between two attempts: `SLUICE_KEY=slc_… node reserve-worker.mjs`. It is invoked with a job as JSON, and
 * answers 200 when the job is done, or 202 with the job as it is to be delivered again, and when. A queue with delayed delivery
 * (SQS, Cloud Tasks, QStash) does that: the job carries the ticket, so that any instance may go on with it.
 */
import { createServer } from 'node:http';
import { json } from 'node:stream/consumers';

const orders = `${process.env.SLUICE_URL ?? 'http://localhost:8080'}/via/shop/admin/api/2026-10/orders.json`;

async function work(job) {
  const response = await fetch(orders, {
    headers: {
      authorization: `Bearer ${process.env.SLUICE_KEY}`,
      prefer: 'reserve, wait=2', // an invocation that waits is paid for
      ...(job.ticket === undefined ? {} : { 'sluice-ticket': job.ticket }),
    },
  });
  const ticket = response.headers.get('sluice-ticket');
  if (ticket === null) return { done: response.ok, orders: await response.json() };
  await response.body?.cancel();
  return { job: { ...job, ticket }, afterSeconds: Number(response.headers.get('retry-after')) };
}

const server = createServer(async (request, response) => {
  try {
    const result = await work(await json(request));
    response.writeHead(result.job === undefined ? (result.done ? 200 : 502) : 202);
    response.end(JSON.stringify(result));
  } catch (error) {
    console.error(error);
    response.writeHead(503).end();
  }
});
server.listen(Number(process.env.PORT ?? 3000), () => console.log(`listening on ${server.address().port}`));
