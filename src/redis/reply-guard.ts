/**
 * What stands at Redis' address may answer anything. No reply of a wrong shape ends the process; a hostile server may still claim a
 * reply so large that the heap does not hold it. ioredis 6.0.0 reads replies
 * without looking at their shape (an integer in reply to SUBSCRIBE, a null that nobody asked for) and throws what goes
 * wrong then out of every handler, as an uncaught exception. It listens for one error of a socket only: a TLS peer that is not trusted
 * causes a second one, by the alert with which it answers the end of the handshake.
 *
 * Owns: that such bytes close the connection they came on, which is then opened again like any broken one. Does not
 * own: what well-formed replies mean. Reaches into three classes of ioredis, for it has no option for this and makes its
 * clients for Sentinels and Cluster nodes itself; refuses to load when they are not as expected.
 */
import { Duplex } from 'node:stream';
import { Command, SentinelConnector } from 'ioredis';
import StandaloneConnectors from 'ioredis/built/connectors/StandaloneConnector.js';
import { z } from 'zod';
import DataHandlers from 'ioredis/built/DataHandler.js';

/** Guards every connection of ioredis in this process. Doing so again changes nothing. */
export function guardReplies(): void {
  if (isGuarded) return;
  isGuarded = true;
  guardHandlers(DataHandlers.default.prototype);
  guardSockets(StandaloneConnectors.default.prototype);
  guardSockets(SentinelConnector.prototype);
  // ioredis walks through the reply to CLUSTER SLOTS in a callback: an error thrown there would be uncaught and end the process.
  Command.setReplyTransformer('cluster', (reply: unknown) => {
    if (typeof reply === 'string' || slots.safeParse(reply).success) return reply;
    throw new TypeError('a reply of Redis names no slots of a Cluster');
  });
}
let isGuarded = false;

type Method = (this: object, ...words: readonly unknown[]) => unknown;

function methodOf(prototype: object, name: string): Method {
  const method: unknown = Reflect.get(prototype, name);
  if (typeof method !== 'function') throw new TypeError(`ioredis has no ${name}: its replies are unguarded`);
  return function (...words) {
    return Reflect.apply(method, this, words);
  };
}

/** A failure to handle a reply is one of its connection, like bytes that cannot be decoded. */
function guardHandlers(prototype: object): void {
  const returnFatalError = methodOf(prototype, 'returnFatalError');
  methodOf(prototype, 'dispatch');
  const givenUp = new WeakSet();
  const giveUp = (handler: object, failure: unknown): void => {
    if (givenUp.has(handler)) return;
    givenUp.add(handler);
    const stream: unknown = Reflect.get(Object(Reflect.get(handler, 'redis')), 'stream');
    returnFatalError.call(handler, failure instanceof Error ? failure : new Error(String(failure)));
    // Ended only, it would be read from until its peer ends it too.
    if (stream instanceof Duplex) stream.destroy();
  };
  Reflect.set(prototype, 'returnFatalError', function (this: object, failure: unknown) {
    giveUp(this, failure);
  });
  Reflect.set(prototype, 'dispatch', function (this: object, handle: () => void) {
    if (givenUp.has(this)) return;
    try {
      handle();
    } catch (failure) {
      giveUp(this, failure);
    }
  });
}

/** The first error of a socket ends its connection, and ioredis reports it; those behind it have nothing to add. */
function guardSockets(prototype: object): void {
  const connect = methodOf(prototype, 'connect');
  Reflect.set(prototype, 'connect', async function (this: object, ...words: readonly unknown[]) {
    const stream: unknown = await connect.call(this, ...words);
    if (stream instanceof Duplex) stream.on('error', () => {});
    return stream;
  });
}

/** The reply to `CLUSTER SLOTS`: ranges of slots, each with its nodes (a host may be unknown). */
const slot = z.int().min(0).max(16_383);
const port = z.int().min(0).max(65_535);
const slots = z.array(z.tuple([slot, slot], z.tuple([z.string().nullable(), port], z.unknown())));
