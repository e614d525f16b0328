/** The whole gateway between a client and an upstream that both speak bytes, and what every hostile case is held to. */
import { afterEach, expect } from '@jest/globals';
import { bucketsOf, metric } from '../journey/world.ts';
import { startGateway, type GatewayOptions } from '../support/gateway.ts';
import { connectRaw, readResponses } from '../support/raw-client.ts';
import { answering, rawUpstream, type Script } from '../support/raw-upstream.ts';
import { ok } from '../support/scripts.ts';

export type Stack = Awaited<ReturnType<typeof startStack>>;

export type Ended = Awaited<ReturnType<typeof exchangeOn>>;

export interface StackOptions extends Pick<GatewayOptions, 'server' | 'workspaces'> {
  readonly kind?: 'generic' | 'commerce' | 'language-model';
  /** Further keys of the upstream, each line indented by four blanks. */
  readonly more?: string;
  readonly timeouts?: string;
  /** Field and value injected; default `authorization: Bearer injected-credential`. `null` = the client brings its own. */
  readonly credential?: string | null;
}

/** Limits short enough for a test, long enough for a loaded machine. */
const shortTimeouts = '{ connectSeconds: 2, headSeconds: 1, idleSeconds: 1, totalSeconds: 4 }';

export const injected = 'Bearer injected-credential';

/** Starts both sides. The upstream's name is `up`. */
async function startStack(script: Script, options: StackOptions) {
  const upstream = await rawUpstream(script);
  const { kind = 'generic', timeouts = shortTimeouts, more = '', ...rest } = options;
  const { credential = `{ header: authorization, value: "${injected}" }`, ...parts } = rest;
  const gateway = await startGateway({
    upstreams: [
      `  up:\n    kind: ${kind}\n    origins: ["${upstream.origin}"]\n    allowPrivateAddresses: true`,
      `    timeouts: ${timeouts}`,
      ...(credential === null ? [] : [`    credential: ${credential}`]),
      more,
    ].join('\n'),
    ...parts,
  });
  const port = gateway.service.dataAddress.port;
  const key = gateway.keys['acme'] ?? '';
  return {
    gateway,
    upstream,
    port,
    key,
    proxy: (path: string) => `/proxy?target=${encodeURIComponent(upstream.origin + path)}`,
    /** Head of a request with Host and key; `more` are further field lines, each with its CRLF. */
    head: (method: string, path: string, more = '') =>
      `${method} ${path} HTTP/1.1\r\nHost: sluice.test\r\nAuthorization: Bearer ${key}\r\n${more}\r\n`,
    /** Sends one request on its own connection and waits until the connection is over or one response is whole. */
    exchange: (bytes: string, method = 'GET') => exchangeOn(port, bytes, method),
    metric: (name: string) => metric(gateway, name),
    async close() {
      await gateway.close();
      await upstream.close();
    },
  };
}

/** Opens stacks whose upstream responds with `ok`; after each test all that it opened must be clean, and are closed. */
export function stacks(usual: StackOptions = {}) {
  const opened: Stack[] = [];
  afterEach(async () => {
    const all = opened.splice(0);
    try {
      for (const stack of all) await expectClean(stack);
    } finally {
      for (const stack of all) await stack.close();
    }
  });
  return async (script: Script = answering(ok), options: StackOptions = {}): Promise<Stack> => {
    const stack = await startStack(script, { ...usual, ...options });
    opened.push(stack);
    return stack;
  };
}

/** It holds nothing, logged no fault, showed no key, and began no call for somebody who had gone. */
export async function expectClean(stack: Stack): Promise<void> {
  expect(await leftBehind(stack)).toEqual({});
  expect(stack.gateway.logs.filter((line) => line.includes('"level":"error"'))).toEqual([]);
  expect(receivedBy(stack)).not.toContain(stack.key.slice(-43));
  expect(await stack.metric('sluice_dispatched_after_client_gone_total')).toBe(0);
}

async function exchangeOn(port: number, bytes: string, method: string) {
  const client = await connectRaw(port);
  await client.send(Buffer.from(bytes, 'latin1'));
  const whole = (): boolean =>
    readResponses(client.received(), [method]).responses.some(({ status }) => status >= 200);
  await Promise.race([client.until(whole).catch(() => null), client.closed]);
  const { responses } = readResponses(client.received(), [method], client.socket.destroyed);
  client.socket.destroy();
  return { responses };
}

/** One turn of the event loop, so that the other side sees what was written so far. */
export const nextIteration = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

/** Everything that admission or memory still holds, by name; empty when nothing is left behind. */
async function held({ gateway, metric }: Stack): Promise<Record<string, number>> {
  const names = ['sluice_queue_depth', 'sluice_in_flight', 'sluice_queue_bytes', 'sluice_head_bytes'];
  const counts = await Promise.all(names.map(async (name) => [name, await metric(name)] as const));
  const inBuckets = bucketsOf(gateway).flatMap(({ waiting, inFlight }) => [
    ['bucket waiting', waiting] as const,
    ['leases', inFlight] as const,
  ]);
  return Object.fromEntries([...counts, ...inBuckets].filter(([, count]) => count !== 0));
}

/** What is still held after so many looks. Looks are counted, not time: a process that stands still ends nothing meanwhile. */
export async function leftBehind(stack: Stack, looks = 250): Promise<Record<string, number>> {
  for (let look = 1; ; look += 1) {
    const left = await held(stack);
    if (Object.keys(left).length === 0 || look >= looks) return left;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

export const receivedBy = ({ upstream }: Stack): string =>
  upstream.connections.map((connection) => connection.received()).join('\n');

/** How many requests an upstream saw, by request line. */
export const requestLines = (text: string): string[] => text.match(/[A-Z]+ \/\S* HTTP\/1\.1(?=\r?$)/gm) ?? [];
