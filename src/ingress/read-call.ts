/**
 * Makes a {@link Call} of a request whose head has passed the guard.
 *
 * Owns: the call's identity and how its body is read. Refuses to own: what the call asks for.
 * Invariant: fields and request target are passed on as received; nothing is decoded or joined here.
 */
import type { Call, KnownSoFar } from '../call.ts';
import type { Clock, Random } from '../clock.ts';
import type { ArrivalTimes } from './arrival-times.ts';
import { BodyReader } from './body.ts';
import type { BodyBounds } from './body.ts';
import type { OpenCall } from './connections.ts';

/** A call, and what the ingress stage keeps of it until it ends. */
export interface ReadCall {
  readonly call: Call;
  readonly body: BodyReader;
  /** What the journey reported so far, for a refusal's fields. */
  readonly known: () => KnownSoFar;
}

export interface ReadCallDeps {
  readonly clock: Clock;
  readonly random: Random;
  readonly arrivals: Pick<ArrivalTimes, 'arrived'>;
  readonly bounds: BodyBounds;
  /** True when the client sent `Expect: 100-continue` and waits for our word. */
  readonly awaitsContinue: (open: OpenCall) => boolean;
}

/** 16 bytes = 32 hex digits. */
const requestIdBytes = 16;

export const newRequestId = (random: Random): string => random.hex(requestIdBytes);

export const readCall = (open: OpenCall, form: Call['form'], deps: ReadCallDeps): ReadCall => {
  const { request, response, gone } = open;
  let known: KnownSoFar = {};
  const sendContinue = (): void => {
    if (!deps.awaitsContinue(open)) return;
    response.writeContinue();
    open.connection.resume();
  };
  const body = new BodyReader({
    request,
    bounds: deps.bounds,
    clientGone: gone.signal,
    clock: deps.clock,
    sendContinue,
  });
  const call: Call = {
    id: newRequestId(deps.random),
    receivedAt: deps.clock.monotonic(),
    arrivedAt: deps.arrivals.arrived(),
    method: request.method ?? 'GET',
    form,
    rawUrl: request.url ?? '/',
    rawFields: request.rawHeaders,
    source: request.socket.remoteAddress ?? '',
    clientGone: gone.signal,
    readBody: (owner) => body.read(owner),
    report: (more) => {
      known = { ...known, ...more };
    },
  };
  return { call, body, known: () => known };
};
