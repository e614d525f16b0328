/**
 * `/__sim/{state,log,reset,config,faults}`: how tests in other processes look at and steer a simulator.
 *
 * Owns: these five routes. Invariant: no other path steers anything.
 *
 * - `GET state`, `GET log?since=<seq>` (entries that arrived after it), `POST reset`, `POST config` (a part of the
 *   options; a member `consume: {units, ...}` lets an outside consumer take units now, a member `close: {forMs, ...}` leaves
 *   nobody room for so long), `GET|POST|DELETE faults`.
 */
import { listOf, objectOf, parseJson, type Json } from './json.ts';
import type { Fault } from './faults.ts';
import type { LogEntry } from './log.ts';
import type { Exchange } from './exchange.ts';
import type { Handler } from './server.ts';

export interface Controlled {
  state(): unknown;
  entries(): readonly LogEntry[];
  reset(): void;
  configure(options: Json): void;
  consume(request: Json): void;
  close(request: Json): void;
  fault(fault: Fault): void;
  faults(): readonly Fault[];
  clearFaults(): void;
}

export const controlPrefix = '/__sim/';

export function createControl(simulator: Controlled): Handler {
  return {
    arrive: () => undefined,
    failed: () => {},
    handle: async (exchange) => {
      try {
        respond(exchange, act(exchange, simulator));
      } catch (error) {
        exchange.reply(400, json, JSON.stringify({ error: String(error) }));
      }
      await Promise.resolve();
    },
  };
}

const json = { 'content-type': 'application/json' };

function respond(exchange: Exchange, value: unknown): void {
  if (value === undefined) exchange.reply(404, json, '{"error":"no such control"}');
  else exchange.reply(200, json, JSON.stringify(value));
}

function act(exchange: Exchange, simulator: Controlled): unknown {
  const body = parseJson(exchange.body.toString('utf8'));
  switch (`${exchange.method} ${exchange.path.slice(controlPrefix.length)}`) {
    case 'GET state':
      return simulator.state();
    case 'GET log': {
      const since = Number(exchange.query.get('since') ?? 0);
      return simulator.entries().filter((entry) => entry.seq > since);
    }
    case 'POST reset':
      simulator.reset();
      return {};
    case 'POST config':
      configure(simulator, objectOf(body));
      return simulator.state();
    case 'GET faults':
      return simulator.faults();
    case 'POST faults':
      // Untyped data enters here; the queue refuses kinds it does not know.
      for (const fault of Array.isArray(body) ? listOf(body) : [body]) simulator.fault(fault as Fault);
      return simulator.faults();
    case 'DELETE faults':
      simulator.clearFaults();
      return [];
    default:
      return undefined;
  }
}

function configure(simulator: Controlled, body: Json | undefined): void {
  if (body === undefined) throw new Error('a JSON object is needed');
  const { consume, close, ...options } = body;
  if (Object.keys(options).length > 0) simulator.configure(options);
  if (objectOf(consume) !== undefined) simulator.consume(objectOf(consume) ?? {});
  if (objectOf(close) !== undefined) simulator.close(objectOf(close) ?? {});
}
