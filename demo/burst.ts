/**
 * The burst of the demonstration: three loops with the real OpenAI SDK and one sync worker with a real Shopify client,
 * all with their default retry settings. Owns the traffic and its count; where it goes is an argument.
 */
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

/** Runs a burst of `calls`; `upstreamLog` is what reached the upstreams. @throws Error when the SDKs are not installed. */
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

async function senders(targets: BurstTargets): Promise<{
  chat(at: number): Promise<unknown>;
  orders(): Promise<unknown>;
}> {
  const { default: OpenAI } = await import('openai').catch(() => {
    throw new Error('The demonstration uses the real SDKs: run `npm ci` with development dependencies.');
  });
  const { createAdminRestApiClient } = await import('@shopify/admin-api-client');
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
    chat: (at) =>
      model.chat.completions.create({
        model: 'gpt-4o',
        messages: [{ role: 'user', content: `Summarise order ${at} in one line.` }],
      }),
    async orders() {
      const response = await shop.get('orders', { searchParams: { limit: 5 } });
      await response.text();
      if (!response.ok) throw new Error(`status ${response.status}`);
    },
  };
}
