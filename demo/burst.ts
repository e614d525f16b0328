/**
 * The burst of the demonstration: chat calls of the real OpenAI SDK and a shop's orders by a real Shopify client, with their default
 * retry settings. The package does not install them: there plain `fetch` calls retry as the OpenAI SDK does. Owns the traffic and its
 * count; where it goes is an argument.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { systemClock } from '../src/clock.ts';
import type { CliIo } from '../src/cli/io.ts';

export interface BurstTargets {
  readonly modelBase: string;
  readonly modelKey: string;
  readonly shopBase: string;
  /** Path before the shop's own. */
  readonly shopPath: string;
  readonly shopKey: string;
}

export interface BurstResult {
  readonly calls: number;
  readonly failed: number;
  readonly upstreamThrottles: number;
  readonly upstreamCalls: number;
  readonly tookMs: number;
}

/** Part of the calls that goes to the shop: of 460, both upstreams get a third to a half more than they take at once. */
const shopShare = 60 / 460;

/** Runs a burst of `calls`; `upstreamLog` is what reached the upstreams. */
export async function burst(
  { name, calls }: { readonly name: string; readonly calls: number },
  targets: BurstTargets,
  upstreamLog: () => readonly { readonly status: number }[],
  io: CliIo,
): Promise<BurstResult> {
  const send = await senders(targets);
  const startedAt = systemClock.monotonic();
  let done = 0;
  let failed = 0;
  const counted = async (call: Promise<unknown>): Promise<void> => {
    try {
      await call;
    } catch {
      // An SDK's error after its own retries is what this demonstration counts.
      failed += 1;
    }
    done += 1;
  };
  const orderCalls = Math.round(calls * shopShare);
  const chatCalls = calls - orderCalls;
  let cancel = (): void => {};
  const report = (): void => {
    const seconds = ((systemClock.monotonic() - startedAt) / 1000).toFixed(0).padStart(3);
    io.out(`  ${name}: ${seconds} s, ${String(done).padStart(3)} of ${calls} done, ${failed} failed`);
    cancel = systemClock.after(2_000, report);
  };
  report();
  const work: Promise<void>[] = [];
  for (let at = 0; at < chatCalls; at += 1) work.push(counted(send.chat(at)));
  for (let at = 0; at < orderCalls; at += 1) work.push(counted(send.orders()));
  await Promise.all(work);
  cancel();
  const log = upstreamLog();
  return {
    calls,
    failed,
    upstreamThrottles: log.filter(({ status }) => status === 429).length,
    upstreamCalls: log.length,
    tookMs: systemClock.monotonic() - startedAt,
  };
}

interface Senders {
  chat(at: number): Promise<unknown>;
  orders(): Promise<unknown>;
}

const chatBody = (at: number) => ({
  model: 'gpt-4o',
  messages: [{ role: 'user' as const, content: `Summarise order ${at} in one line.` }],
});

async function senders(targets: BurstTargets): Promise<Senders> {
  const sdks = await Promise.all([import('openai'), import('@shopify/admin-api-client')]).catch(() => null);
  if (sdks === null) return plainSenders(targets);
  const [{ default: OpenAI }, { createAdminRestApiClient }] = sdks;
  const model = new OpenAI({ baseURL: targets.modelBase, apiKey: targets.modelKey });
  const { protocol, host } = new URL(targets.shopBase);
  const shop = createAdminRestApiClient({
    storeDomain: 'acme.myshopify.com',
    apiVersion: '2026-10',
    accessToken: targets.shopKey,
    isTesting: true,
    customFetchApi: (url, init) => {
      const asked = new URL(String(url));
      return fetch(`${protocol}//${host}${targets.shopPath}${asked.pathname}${asked.search}`, init);
    },
  });
  return {
    chat: (at) => model.chat.completions.create(chatBody(at)),
    async orders() {
      const response = await shop.get('orders', { searchParams: { limit: 5 } });
      await response.text();
      if (!response.ok) throw new Error(`status ${response.status}`);
    },
  };
}

function plainSenders({ modelBase, modelKey, shopBase, shopPath, shopKey }: BurstTargets): Senders {
  const asJson = { 'content-type': 'application/json', authorization: `Bearer ${modelKey}` };
  const orders = `${shopBase}${shopPath}/admin/api/2026-10/orders.json?limit=5`;
  return {
    chat: (at) =>
      fetchWithRetries(`${modelBase}/chat/completions`, {
        method: 'POST',
        headers: asJson,
        body: JSON.stringify(chatBody(at)),
      }),
    orders: () => fetchWithRetries(orders, { headers: { 'x-shopify-access-token': shopKey } }),
  };
}

/** Retries twice, after the stated time or after 0.5 and 1 s. @throws Error with the status of the last response */
async function fetchWithRetries(url: string, init: RequestInit, failures = 0): Promise<void> {
  const response = await fetch(url, init);
  await response.text();
  if (response.ok) return;
  if (failures === 2) throw new Error(`status ${response.status}`);
  await sleep(Number(response.headers.get('retry-after') ?? 0) * 1000 || 500 * 2 ** failures);
  await fetchWithRetries(url, init, failures + 1);
}
