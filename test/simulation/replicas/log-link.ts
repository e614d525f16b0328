/** The log of a simulated replica, and its way to the simulated Redis. */
import type { Clock } from '../../../src/clock.ts';
import type { ReplicaId } from '../../../src/ids.ts';
import type { Entry, Follower, Log } from '../../../src/log/log.ts';
import type { RedisConnection } from '../../../src/redis/connection.ts';
import type { Appended, Read } from '../log-server.ts';
import { SimulatedLog, type LogLink } from '../simulated-log.ts';
import { logChannel, ownCommand } from './server.ts';

interface Parts<Event> {
  readonly name: string;
  readonly connection: RedisConnection;
  readonly clock: Clock;
  readonly replica: ReplicaId;
  readonly follower: Follower<Event>;
}

export function openLog<Event>({ name, connection, follower, ...parts }: Parts<Event>): Log<Event> {
  let listening = 0;
  const log = new SimulatedLog<Event>({ ...parts, link: linkTo(name, connection, () => listening) });
  connection.client.on('ready', () => log.reconnected());
  connection.subscribe(logChannel(name), {
    onMessage: (text) => log.hear(JSON.parse(text) as Entry<Event>),
    onReady: () => (listening = 1),
    onError: () => {},
  });
  log.follow(follower);
  return log;
}

function linkTo(name: string, connection: RedisConnection, own: () => number): LogLink {
  const commands = connection.client as unknown as Record<string, (...words: string[]) => Promise<string>>;
  const ask = async (operation: string, request: unknown): Promise<unknown> =>
    JSON.parse((await commands[ownCommand('Log')]?.(name, operation, JSON.stringify(request))) ?? 'null');
  return {
    run: () => connection.info(),
    append: async (asked) => (await ask('append', asked)) as Appended,
    begin: async (asked) => (await ask('begin', asked)) as string,
    saved: (saved) => ask('saved', saved),
    read: async () => (await ask('read', null)) as Read,
    others: async () => ((await ask('listeners', null)) as number) - own(),
  };
}
