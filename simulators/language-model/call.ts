/**
 * One call that reached a known model with a known key: what the later steps need to know of it.
 */
import type { ArrivalNote } from '../recorder.ts';
import type { LogEntry } from '../log.ts';
import type { Exchange } from '../exchange.ts';
import type { Json } from '../json.ts';
import type { Account } from './accounts.ts';
import type { Cost, Endpoint } from './cost.ts';
import type { Meter } from './meters.ts';

export interface Call {
  readonly exchange: Exchange;
  readonly note: ArrivalNote;
  readonly endpoint: Endpoint;
  readonly body: Json;
  readonly account: Account;
  readonly model: string;
  readonly family: string;
  readonly cost: Cost;
  readonly meters: readonly Meter[];
  readonly requestId: string;
}

/** A call that was admitted, with the response's head as it was at that instant. */
export interface Admitted extends Call {
  readonly entry: LogEntry;
  readonly headers: Record<string, string>;
}
