/** The twelve rows of the gate: one fault each. */
import { readFileSync } from 'node:fs';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { Redis } from 'ioredis';
import { pause } from '../../test/support/redis-fleet.ts';
import { startTokenEndpoint, type Manner } from '../../test/support/token-endpoint.ts';
import { newFolder } from '../fleet/processes.ts';
import {
  cli,
  clusterNodes,
  hang,
  restartEmpty,
  standStill,
  startServer,
  startWatched,
  stopServer,
} from '../fleet/redis.ts';
import { hasWaitingCall } from '../fleet/remains.ts';
import type { Upstream } from '../fleet/upstream.ts';
import type { Credential, Row, Scene, Stage, Struck } from './row.ts';

/** Longer than a replica believes in a Redis that does not answer, milliseconds. */
const outageMs = 5_000;
/** A serialized lane's lease is 15 s; a replica that stood still for longer has lost it. Milliseconds. */
const beyondLeaseMs = 17_000;

/**
 * One server, and what is done with it. With `deny` a replica that has lost Redis for a moment, as happens on a busy machine, sends nothing,
 * so that the ceiling can be judged to the last call.
 */
const single =
  (
    strike: (port: number, scene: Scene) => Promise<Struck | void> = () => Promise.resolve(),
    whenDown: 'local' | 'deny' = 'deny',
  ) =>
  async (): Promise<Stage> => {
    const server = await startServer();
    return {
      redis: `url: "${server.url}", whenDown: ${whenDown}`,
      servers: [server],
      ports: () => Promise.resolve([server.port]),
      strike: (scene) => strike(server.port, scene),
    };
  };

async function watched(): Promise<Stage> {
  const { url, primary, second } = await startWatched();
  return {
    redis: `url: "${url}", whenDown: deny`,
    servers: [primary, second],
    ports: () => Promise.resolve([second.port]),
    strike: () => stopServer(primary),
  };
}

async function cluster(): Promise<Stage> {
  const servers = await clusterNodes();
  const alive = new Set(servers.map(({ port }) => port));
  const primaries = servers.slice(0, 3).map(({ port }) => port);
  return {
    redis: `url: "redis+cluster://${primaries.map((port) => `127.0.0.1:${port}`).join(',')}", whenDown: deny`,
    servers,
    async ports() {
      const roles = await Promise.all(
        [...alive].map(async (port) => [port, await cli(port, 'role')] as const),
      );
      return roles.flatMap(([port, role]) => (role.startsWith('master') ? [port] : []));
    },
    async strike() {
      for (let tries = 0; tries < 100; tries += 1) {
        for (const port of primaries) {
          // Of the two upstreams, the one with the serialized lane.
          if (!(await hasWaitingCall(port))) continue;
          alive.delete(port);
          return stopServer({ port });
        }
        await pause(20);
      }
      throw new Error('no primary has a waiting call');
    },
  };
}

const fixture = (name: string): string =>
  fileURLToPath(new URL(`../../test/fixtures/tls/upstream.test.${name}`, import.meta.url));

async function encrypted(): Promise<Stage> {
  const server = await startServer({
    args: (port) =>
      [
        `--port 0 --tls-port ${port} --tls-auth-clients no`,
        `--tls-cert-file ${fixture('crt')} --tls-key-file ${fixture('key')} --tls-ca-cert-file ${fixture('crt')}`,
        // The user of docs/operate/redis.md.
        '--user sluice on >key-of-sluice ~sluice:* &sluice:* +@all -@admin -@dangerous +info',
        '--user default on >key-of-admin ~* &* +@all',
      ]
        .join(' ')
        .split(' '),
  });
  const access = { tls: { ca: readFileSync(fixture('crt')) }, password: 'key-of-admin' };
  return {
    redis: `url: "rediss://sluice:key-of-sluice@127.0.0.1:${server.port}", whenDown: deny, tls: { caFile: "${fixture('crt')}" }`,
    servers: [server],
    access,
    ports: () => Promise.resolve([server.port]),
    async strike() {
      const operator = new Redis(server.port, '127.0.0.1', access);
      await operator.call('CLIENT', 'KILL', 'USER', 'sluice');
      await pause(1_000);
      await operator.call('CLIENT', 'KILL', 'USER', 'sluice');
      operator.disconnect();
    },
  };
}

const good: Manner = { kind: 'issue' };
const rough: readonly Manner[] = [
  good,
  { kind: 'answer', status: 500, body: 'oops' },
  good,
  { kind: 'issue', afterMs: 900 },
  { kind: 'cut' },
  good,
];

/** A token that lives 2 s and ends the one before, for a refresh token that works once. */
async function renewedToken(upstream: Upstream): Promise<Credential> {
  const endpoint = await startTokenEndpoint({ lifeSeconds: 2, isRotating: true, refresh: 'single_use' });
  endpoint.respond(...Array.from({ length: 200 }, () => rough).flat());
  upstream.isValid = (token) => token === 'of-the-gate' || endpoint.isValid(token);
  const file = join(await newFolder(), 'refresh-token');
  await writeFile(file, endpoint.refreshTokens[0] ?? '', { mode: 0o600 });
  return {
    yaml: `{ header: authorization, prefix: "Bearer ", oauth: { tokenUrl: "${endpoint.url}", clientId: client-sim, clientSecret: secret-of-the-client, refreshTokenFile: "${file}" } }`,
    problems: () => [
      ...(endpoint.refusedGrants === 0 ? [] : [`${endpoint.refusedGrants} refresh tokens were used twice`]),
      ...(endpoint.maxAtOnce === 1 ? [] : [`${endpoint.maxAtOnce} replicas renewed at once`]),
      ...(endpoint.issued.length > 2 ? [] : [`only ${endpoint.issued.length} tokens were issued`]),
    ],
    stop: () => endpoint.close(),
  };
}

const renewals: Row = {
  name: 'tokens of two seconds, over two windows of the ceiling',
  stage: single(),
  credential: renewedToken,
  openWaitSeconds: 120,
};
const killed: Row = {
  name: 'kill -9 of the replica that holds a serialized lane',
  stage: single(async (_, { holder }) => {
    const victim = await holder();
    victim.signal('SIGKILL');
    return { killed: victim };
  }),
};
const stopped: Row = {
  name: 'SIGSTOP of the replica that holds a serialized lane, for longer than its lease',
  stage: single(async (_, { holder }) => {
    const victim = await holder();
    await standStill(victim.pid, beyondLeaseMs);
    return { stopped: victim };
  }),
};
const tlsCut: Row = { name: 'TLS and an ACL user: every connection is cut, twice', stage: encrypted };
const sentinel: Row = { name: 'Sentinel: the primary is killed', stage: watched, order: 'before' };
const nodes: Row = {
  name: 'Cluster: the primary of the serialized lane is killed',
  stage: cluster,
  order: 'before',
};
const flushed: Row = { name: 'FLUSHALL', stage: single(async (port) => void (await cli(port, 'flushall'))) };
const restarted: Row = {
  name: 'Redis restarted empty',
  stage: single((port) => restartEmpty(port, 100)),
};
const hungDeny: Row = {
  name: 'Redis hung, whenDown: deny',
  stage: single((port) => hang(port, outageMs)),
  order: 'before',
};
const awayLocal: Row = {
  name: 'Redis stopped, whenDown: local',
  stage: single((port) => restartEmpty(port, outageMs), 'local'),
  order: 'each replica',
  // The ceiling has room when Redis goes, and more calls come meanwhile than all shares of it together have.
  openCalls: 270,
  openForMs: 9_000,
};
const leaving: Row = { name: 'two of three clients hang up', stage: single(), leaving: true };
const pairs: Row = { name: 'equal pairs at two replicas', stage: single(), pairs: true };

/** Rows of one track run one after the other, tracks side by side: what takes longest comes first in its own. */
export const tracks: readonly (readonly Row[])[] = [
  [renewals],
  [killed, tlsCut],
  [sentinel, leaving],
  [stopped, pairs],
  [awayLocal, hungDeny],
  [nodes, flushed, restarted],
];
