/** A gateway in front of an upstream that answers as the test says. `closeAll` of `world.ts` ends both. */
import type { IncomingHttpHeaders, ServerResponse } from 'node:http';
import { systemClock, type Clock } from '../../src/clock.ts';
import { serviceOf, startGateway, type GatewayOptions } from '../support/gateway.ts';
import { listening } from '../support/listening.ts';
import { until } from '../support/until.ts';
import { bucketsOf, keyOf, opened, sendTo, type Sending } from './world.ts';

/** One call as the upstream has it. */
export interface Arrival {
  /** From 1. */
  readonly n: number;
  readonly method: string;
  readonly path: string;
  readonly headers: IncomingHttpHeaders;
  readonly body: string;
  /** By the clock of the gateway. */
  readonly at: number;
  readonly response: ServerResponse;
  /** The status of the script's answer. */
  status: number;
  /** Ended before its whole response was written. */
  isCut: boolean;
}

export interface Answer {
  /** Default: 200. */
  readonly status?: number;
  readonly headers?: Readonly<Record<string, string>>;
  /** A text, or what is written as JSON. Default: `{}`. */
  readonly body?: unknown;
}

/** Says what a call is answered; with nothing, the test answers by `response`. */
export type Script = (arrival: Arrival) => Answer | void | Promise<void>;

export interface ScriptedOptions extends Pick<GatewayOptions, 'workspaces' | 'server'> {
  readonly clock?: Clock;
  /** Further settings of each upstream, YAML flow style without the braces. All are this one. Default: `api`. */
  readonly upstreams?: Readonly<Record<string, string>>;
  /** Further sections of the configuration. */
  readonly sections?: string;
}

export type Scripted = Awaited<ReturnType<typeof scripted>>;

export async function scripted(script: Script = () => ({}), options: ScriptedOptions = {}) {
  const { clock = systemClock, upstreams = { api: '' }, sections = '', ...more } = options;
  const arrivals: Arrival[] = [];
  const { url: origin, close } = await listening((request, response) => {
    const { method = '', url: path = '', headers } = request;
    const parts: Buffer[] = [];
    request.on('data', (part: Buffer) => parts.push(part));
    request.on('end', () => {
      const body = Buffer.concat(parts).toString();
      const n = arrivals.length + 1;
      const seen = { n, method, path, headers, body, at: clock.monotonic(), response };
      const arrival = { ...seen, status: 0, isCut: false };
      arrivals.push(arrival);
      response.on('close', () => (arrival.isCut = !response.writableFinished));
      const answer = script(arrival);
      if (answer === undefined || answer instanceof Promise) return;
      const { status = 200, headers: fields = {}, body: said = {} } = answer;
      arrival.status = status;
      response.writeHead(status, fields).end(typeof said === 'string' ? said : JSON.stringify(said));
    });
  });
  opened.push(close);
  const written = Object.entries(upstreams).map(
    ([name, flow]) => `  ${name}: { origins: ["${origin}"], allowPrivateAddresses: true, ${flow} }`,
  );
  const gateway = await startGateway({ ...more, clock, upstreams: `${written.join('\n')}\n${sections}` });
  opened.push(() => gateway.close());
  let { yaml } = gateway;
  /** Sends a call with the API key in `Sluice-Key`, and reads the whole response. */
  const asking =
    (url: string) =>
    (path: string, sending: Sending = {}) =>
      sendTo({ url }, clock, path, {
        ...sending,
        headers: { 'sluice-key': keyOf(gateway, sending), ...sending.headers },
      });
  return {
    gateway,
    clock,
    origin,
    arrivals,
    ask: asking(gateway.url),
    /** Resolves when so many calls have arrived. */
    arrived: (count: number) => until(() => arrivals.length >= count),
    /** Resolves when a bucket is closed. */
    closed: () => until(() => bucketsOf(gateway).some(({ closedMs }) => closedMs > 0)),
    /** Resolves when so many calls wait. */
    waiting: (count: number) =>
      until(() => bucketsOf(gateway).reduce((sum, { waiting }) => sum + waiting, 0) === count),
    /** Replaces a part of the configuration while calls go on. @throws Error when that part is not there. */
    async reload(from: string | RegExp, to: string) {
      const changed = yaml.replace(from, () => to);
      if (changed === yaml) throw new Error(`nothing to replace: ${String(from)}`);
      yaml = changed;
      await gateway.reload(yaml);
    },
    /** Another replica, which has the same configuration and keys. */
    async replica() {
      const service = await serviceOf(yaml, [], { clock });
      opened.push(() => service.close());
      const url = `http://127.0.0.1:${service.dataAddress.port}`;
      return { service, url, ask: asking(url) };
    },
  };
}
