/**
 * A batch that waits as long as it takes, without an open connection meanwhile: `npm install openai`, then
 * `SLUICE_KEY=slc_… node reserve-openai.mjs 'a prompt' 'another prompt' …`. Each call keeps the position that it had when it was refused.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import OpenAI from 'openai';

/** The SDK's `fetch`: comes back with the ticket at the time that it was told. The SDK's own retries end after a minute. */
async function fetchWithTicket(url, init) {
  for (let ticket = null; ;) {
    const headers = new Headers(init.headers);
    if (ticket !== null) headers.set('sluice-ticket', ticket);
    const response = await fetch(url, { ...init, headers });
    const { headers: said } = response;
    ticket = said.get('sluice-ticket');
    const seconds = Number(said.get('retry-after'));
    // A call that was sent, and that the API then refused for longer than the call may wait, has a time but no ticket.
    const isRefusedThere = response.status === 429 && !said.has('sluice-error') && seconds > 0;
    if (ticket === null && !isRefusedThere) return response;
    await response.body?.cancel();
    const waitMs = Number(said.get('retry-after-ms') ?? seconds * 1_000);
    await sleep(waitMs, undefined, { signal: init.signal });
  }
}

const client = new OpenAI({
  apiKey: process.env.SLUICE_KEY,
  baseURL: `${process.env.SLUICE_URL ?? 'http://localhost:8080'}/via/openai/v1`,
  maxRetries: 0,
  timeout: 6 * 3_600_000, // the batch has six hours
  defaultHeaders: { prefer: 'reserve, wait=5' },
  fetch: fetchWithTicket,
});

await Promise.all(
  process.argv.slice(2).map(async (content) => {
    const messages = [{ role: 'user', content }];
    const { choices } = await client.chat.completions.create({ model: 'gpt-4o', messages });
    console.log(choices[0].message.content);
  }),
);
