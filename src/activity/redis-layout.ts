/**
 * What of activity is in Redis under which name, the commands that put it there and read it, and the form of their replies. Owns names, expiry and layout; does
 * not own connections. Keeps: names are digests, labels and opaque replica ids, values are numbers and labels; every key
 * expires within 70 minutes.
 */
import { cellText } from './cell-text.ts';
import type { ActivityKey, LaneCell } from './shared.ts';

/** Name and arguments of a command. */
export type RedisCommandWords = readonly (string | number)[];

/** Minutes in one key of a lane: an hour is seven reads, and no key is read for longer than it is good for. */
const blockMinutes = 10;
export const hourMinutes = 61;
const expirySeconds = 70 * 60;
/** A replica that has not published for this long is not counted any more. Four publications. */
const aliveMs = 20_000;
/** Lanes read of one replica: as many as a recorder remembers. */
const maxLanes = 1_000;

/** One slot of a Cluster holds all of it, so that a pipeline may touch any of it. The number is the layout. */
const prefix = 'sluice:{activity}:2:';
const replicasKey = `${prefix}replicas`;
const aliveKey = (replica: string): string => `${prefix}alive:${replica}`;
const callsKey = (replica: string): string => `${prefix}calls:${replica}`;
const busiestKey = (replica: string): string => `${prefix}busiest:${replica}`;
const lanesKey = (replica: string): string => `${prefix}lanes:${replica}`;
const cellsKey = (lane: ActivityKey, block: number): string => `${prefix}cells:${lane}:${block}`;
const blockOf = (minute: number): number => Math.floor(minute / blockMinutes);

/** Says that a replica is there, and what it publishes. */
export const announcing = (
  replica: string,
  minute: number,
  announced: { calls: string; busiest: string },
): RedisCommandWords[] => [
  ['set', aliveKey(replica), 1, 'px', aliveMs],
  ['zadd', replicasKey, minute, replica],
  ['zremrangebyscore', replicasKey, '-inf', `(${minute - hourMinutes}`],
  ['expire', replicasKey, expirySeconds],
  ['zremrangebyscore', lanesKey(replica), '-inf', `(${minute - hourMinutes}`],
  ['set', callsKey(replica), announced.calls, 'px', aliveMs],
  ['set', busiestKey(replica), announced.busiest, 'px', aliveMs],
];

/** Replaces a replica's cell of a minute. */
export function storing(replica: string, { lane, cell }: LaneCell): RedisCommandWords[] {
  const key = cellsKey(lane, blockOf(cell.minute));
  return [
    ['hset', key, `${replica}:${cell.minute}`, cellText(cell)],
    ['expire', key, expirySeconds],
  ];
}

/** Lists a lane as one that the replica remembers. */
export const listing = (replica: string, { lane, cell }: LaneCell): RedisCommandWords[] => [
  ['zadd', lanesKey(replica), 'gt', cell.minute, lane],
  ['expire', lanesKey(replica), expirySeconds],
];

/** Takes lanes off the list. Their cells expire. */
export const unlisting = (replica: string, lanes: readonly ActivityKey[]): RedisCommandWords[] =>
  lanes.length === 0 ? [] : [['zrem', lanesKey(replica), ...lanes]];

export const readingReplicas = (): RedisCommandWords => ['zrange', replicasKey, 0, -1];
export const readingAlive = (replicas: readonly string[]): RedisCommandWords => [
  'exists',
  ...replicas.map(aliveKey),
];
export const readingCalls = (replica: string): RedisCommandWords => ['get', callsKey(replica)];
export const readingBusiest = (replica: string): RedisCommandWords => ['get', busiestKey(replica)];
export const readingLanes = (replica: string, fromMinute: number): RedisCommandWords => [
  'zrangebyscore',
  lanesKey(replica),
  fromMinute,
  '+inf',
  'limit',
  0,
  maxLanes,
];

/** All cells of a lane in the hour that ends with `minute`. */
export function readingCells(lane: ActivityKey, minute: number): RedisCommandWords[] {
  const last = blockOf(minute);
  const blocks = Math.ceil(hourMinutes / blockMinutes) + 1;
  return Array.from({ length: blocks }, (_, i) => ['hgetall', cellsKey(lane, last - i)]);
}

/** The replica and the minute of a field that {@link storing} wrote. */
export function ownerOf(field: string): { readonly replica: string; readonly minute: number } {
  const [replica = '', minute = ''] = field.split(':');
  return { replica, minute: Number(minute) };
}

/** Texts of a list. */
export const texts = (reply: unknown): readonly string[] => (Array.isArray(reply) ? reply.map(String) : []);

/** Fields of a hash, whichever of the driver's two forms it comes in. */
export function fieldsOf(reply: unknown): readonly (readonly [string, string])[] {
  if (!Array.isArray(reply)) {
    return typeof reply === 'object' && reply !== null
      ? Object.entries(reply).map(([field, value]) => [field, String(value)] as const)
      : [];
  }
  const words = texts(reply);
  return words.flatMap((word, i) => (i % 2 === 0 ? [[word, words[i + 1] ?? ''] as const] : []));
}
