/**
 * Keys, commands and reply formats of activity in Redis. Owns names, expiry and layout; does not own connections.
 * Keeps: names are digests, labels and opaque replica ids, values are numbers and labels; every key expires 70 minutes
 * after it was last written, at the latest.
 */
import { cellText } from './cell-text.ts';
import type { ActivityKey, LaneCell } from './shared.ts';

/** Name and arguments of a command. */
export type RedisCommandWords = readonly (string | number)[];

/**
 * Minutes in one key of a lane. The {@link hourMinutes} that end now always lie in seven keys; {@link cellsCommands} reads
 * one key more.
 */
const blockMinutes = 10;
/** The running minute and the sixty full ones before it. */
export const hourMinutes = 61;
const expirySeconds = 70 * 60;
/** A replica that has not published for this long, which is four publications, is not counted any more. Milliseconds. */
const aliveMs = 20_000;
/** Lanes read of one replica: as many as a recorder remembers. */
const maxLanes = 1_000;

/**
 * `{activity}` puts all keys into one hash slot of a Redis Cluster, so that one pipeline may use any of them. `2` is the
 * layout version.
 */
const prefix = 'sluice:{activity}:2:';
const replicasKey = `${prefix}replicas`;
const aliveKey = (replica: string): string => `${prefix}alive:${replica}`;
const callsKey = (replica: string): string => `${prefix}calls:${replica}`;
const busiestKey = (replica: string): string => `${prefix}busiest:${replica}`;
const lanesKey = (replica: string): string => `${prefix}lanes:${replica}`;
const cellsKey = (lane: ActivityKey, block: number): string => `${prefix}cells:${lane}:${block}`;
const blockOf = (minute: number): number => Math.floor(minute / blockMinutes);

/** Announces that a replica is running, with its live calls and its busiest workspaces. */
export const announceCommands = (
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
export function storeCommands(replica: string, { lane, cell }: LaneCell): RedisCommandWords[] {
  const key = cellsKey(lane, blockOf(cell.minute));
  return [
    ['hset', key, `${replica}:${cell.minute}`, cellText(cell)],
    ['expire', key, expirySeconds],
  ];
}

/** Lists a lane as one that the replica remembers. */
export const listCommands = (replica: string, { lane, cell }: LaneCell): RedisCommandWords[] => [
  ['zadd', lanesKey(replica), 'gt', cell.minute, lane],
  ['expire', lanesKey(replica), expirySeconds],
];

/** Takes lanes off the list of those that the replica remembers. Their cells are left to expire. */
export const unlistCommands = (replica: string, lanes: readonly ActivityKey[]): RedisCommandWords[] =>
  lanes.length === 0 ? [] : [['zrem', lanesKey(replica), ...lanes]];

/** Replicas that published within the hour. */
export const replicasCommand = (): RedisCommandWords => ['zrange', replicasKey, 0, -1];
/** How many of these replicas have published within {@link aliveMs}. */
export const aliveCountCommand = (replicas: readonly string[]): RedisCommandWords => [
  'exists',
  ...replicas.map(aliveKey),
];
export const callsCommand = (replica: string): RedisCommandWords => ['get', callsKey(replica)];
export const busiestCommand = (replica: string): RedisCommandWords => ['get', busiestKey(replica)];
/** Lanes of a replica with anything recorded since `fromMinute`. */
export const lanesCommand = (replica: string, fromMinute: number): RedisCommandWords => [
  'zrangebyscore',
  lanesKey(replica),
  fromMinute,
  '+inf',
  'limit',
  0,
  maxLanes,
];

/**
 * Reads all cells of a lane in the hour that ends with `minute`, and in the ten minutes before: a replay asks for the hour
 * that ended up to 15 s ago (`headrooms.ts`), which may have begun in an earlier key.
 */
export function cellsCommands(lane: ActivityKey, minute: number): RedisCommandWords[] {
  const last = blockOf(minute);
  const blocks = Math.ceil(hourMinutes / blockMinutes) + 1;
  return Array.from({ length: blocks }, (_, i) => ['hgetall', cellsKey(lane, last - i)]);
}

/** The replica and the minute of a field that {@link storeCommands} wrote. */
export function ownerOf(field: string): { readonly replica: string; readonly minute: number } {
  const [replica = '', minute = ''] = field.split(':');
  return { replica, minute: Number(minute) };
}

/** The elements of a list reply as text; none when the reply is no list. */
export const texts = (reply: unknown): readonly string[] => (Array.isArray(reply) ? reply.map(String) : []);

/** Fields of a hash: the driver replies with an object, or with a list of names and values in turn. */
export function fieldsOf(reply: unknown): readonly (readonly [string, string])[] {
  if (!Array.isArray(reply)) {
    return typeof reply === 'object' && reply !== null
      ? Object.entries(reply).map(([field, value]) => [field, String(value)] as const)
      : [];
  }
  const words = texts(reply);
  return words.flatMap((word, i) => (i % 2 === 0 ? [[word, words[i + 1] ?? ''] as const] : []));
}
