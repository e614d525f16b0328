/**
 * Bursts over three replicas: 800 chats in five seconds on a bucket of 600 per minute, undisturbed, and with a replica that is
 * stopped again and again; and orders of a lane with one call in flight.
 */
import { systemClock } from '../../src/clock.ts';
import { chatBody, chatPath, ordersPath, overtaken, pause } from '../../test/support/redis-fleet.ts';
import { standStill } from '../fleet/redis.ts';
import { perMinute, type Row, type Seen } from './row.ts';

const calls = 800;
/** Calls that find room as they come: the bucket's 600 and what drains meanwhile. Nothing of them waits, nothing is ordered. */
const direct = 650;
/** Calls sent this far apart have an order; closer ones may cross on the wire. Milliseconds. */
const apartMs = 50;

/** Calls that left behind others that had come clearly later; a call has come when its replica reads it, and a stopped one reads nothing. */
function orderOf({ responses, entries, stalledMs }: Seen, unreadMs = 0) {
  const inOrder = entries.toSorted((a, b) => a.arrivedT - b.arrivedT).slice(direct + 20);
  const spacingMs = apartMs + 2 * stalledMs + unreadMs;
  const crossed = overtaken(responses, inOrder, spacingMs);
  return {
    holdsWhenQuiet: crossed === 0,
    words: `overtaken ${crossed} (by more than ${spacingMs.toFixed(0)} ms)`,
    measured: [{ name: 'queued calls behind later ones', value: crossed, unit: 'calls' }],
  };
}

const chats: Row = {
  name: `chat burst: ${calls} calls in 5 s, bucket ${perMinute}/min`,
  upstream: 'language-model',
  load: { calls, everyMs: 5_000 / calls, path: chatPath, body: () => chatBody },
  bestMs: 20_000,
  also: (seen) => orderOf(seen),
};

/** The longest stop of the replica of the row that runs, milliseconds. */
let longestStopMs = 0;

const stoppedChats: Row = {
  ...chats,
  name: `${chats.name}, one of three replicas stopped again and again`,
  beside({ gateways }) {
    let isOver = false;
    longestStopMs = 0;
    const stopping = (async () => {
      for (; !isOver; await pause(420)) {
        const from = systemClock.monotonic();
        await standStill(gateways[0]?.pid ?? 0, 80);
        longestStopMs = Math.max(longestStopMs, systemClock.monotonic() - from);
      }
    })();
    return {
      end() {
        isOver = true;
        return stopping;
      },
    };
  },
  also: (seen) => orderOf(seen, longestStopMs),
};

const orders: Row = {
  name: 'commerce: 60 calls of one workspace, bucket 40 at 2/s',
  upstream: 'commerce',
  load: { calls: 60, everyMs: 20, path: ordersPath },
  bestMs: 10_000,
  also({ entries }) {
    const most = Math.max(...entries.map(({ inFlight }) => inFlight.scope));
    return { holds: most === 1, words: `in flight at most ${most}` };
  },
};

export const bursts: readonly Row[] = [orders, chats, stoppedChats];
