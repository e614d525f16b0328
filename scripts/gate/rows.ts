/** The twelve rows of the gate: one fault each. */
import { readFileSync } from 'node:fs';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { Redis } from 'ioredis';
import { pause } from '../../test/support/redis-fleet.ts';
import type { RedisServer } from '../../test/support/redis.ts';
import { startTokenEndpoint, type Manner } from '../../test/support/token-endpoint.ts';
import { cli, newFolder, startServer, stopServer } from '../cluster/processes.ts';
import { hasWaitingCall } from '../cluster/remains.ts';
import { clusterNodes, startWatched } from '../cluster/topologies.ts';
import type { Credential, Row, Store, Struck } from './row.ts';
import type { GateUpstream } from './upstream.ts';

/** Longer than a replica believes in a Redis that does not answer, milliseconds. */
const outageMs = 5_000;
/** A serialized lane's lease is 15 s; a replica that stood still for longer has lost it. Milliseconds. */
const beyondLeaseMs = 17_000;

const nothing: Struck = {};

/**
 * One server on one port. With `deny` a replica that has lost Redis for a moment, as happens on a busy machine, sends nothing, so that
 * the ceiling can be judged to the last call.
 */
const single =
  (whenDown: 'local' | 'deny' = 'deny') =>
  async (): Promise<Store> => {
    const { port, url } = await startServer();
    return {
      yaml: `url: "${url}", whenDown: ${whenDown}`,
      ports: () => Promise.resolve([port]),
      // A server that a row has ended and started again is another process: it ends with the gate.
      stop: () => Promise.resolve(),
    };
  };

const portOf = async (store: Store): Promise<number> => (await store.ports())[0] ?? 0;

/** The server on this port ends, and after a while an empty one is there. */
async function restartEmpty(port: number, awayMs: number): Promise<void> {
  await cli(port, 'shutdown', 'nosave').catch(() => '');
  await pause(awayMs);
  await startServer({ port });
}

const killed: Row = {
  name: 'kill -9 of the replica that holds a serialized lane',
  store: single(),
  async strike({ holder }) {
    const victim = await holder();
    victim.signal('SIGKILL');
    return { killed: victim };
  },
};

const stopped: Row = {
  name: 'SIGSTOP of the replica that holds a serialized lane, for longer than its lease',
  store: single(),
  async strike({ holder }) {
    const victim = await holder();
    victim.signal('SIGSTOP');
    await pause(beyondLeaseMs);
    victim.signal('SIGCONT');
    return { stopped: victim };
  },
};

const flushed: Row = {
  name: 'FLUSHALL',
  store: single(),
  async strike(_, store) {
    await cli(await portOf(store), 'flushall');
    return nothing;
  },
};

const restarted: Row = {
  name: 'Redis restarted empty',
  store: single(),
  async strike(_, store) {
    await restartEmpty(await portOf(store), 100);
    return nothing;
  },
};

const hungDeny: Row = {
  name: 'Redis hung, whenDown: deny',
  store: single(),
  order: 'before',
  async strike(_, store) {
    const pid = Number(/process_id:(\d+)/.exec(await cli(await portOf(store), 'info', 'server'))?.[1]);
    process.kill(pid, 'SIGSTOP');
    await pause(outageMs);
    process.kill(pid, 'SIGCONT');
    return nothing;
  },
};

const awayLocal: Row = {
  name: 'Redis stopped, whenDown: local',
  store: single('local'),
  order: 'each replica',
  // The ceiling has room when Redis goes, and more calls come meanwhile than all shares of it together have.
  openCalls: 270,
  openForMs: 9_000,
  async strike(_, store) {
    await restartEmpty(await portOf(store), outageMs);
    return nothing;
  },
};

const sentinel: Row = {
  name: 'Sentinel: the primary is killed',
  async store() {
    const { url, primary, second } = await startWatched();
    return {
      yaml: `url: "${url}", whenDown: deny`,
      primary,
      ports: () => Promise.resolve([second.port]),
      stop: () => stopServer(second),
    };
  },
  order: 'before',
  async strike(_, store) {
    if ('primary' in store) await stopServer(store.primary as RedisServer);
    return nothing;
  },
};

const cluster: Row = {
  name: 'Cluster: the primary of the serialized lane is killed',
  async store() {
    const servers = await clusterNodes();
    const alive = new Set(servers);
    return {
      yaml: `url: "redis+cluster://${servers
        .slice(0, 3)
        .map(({ port }) => `127.0.0.1:${port}`)
        .join(',')}", whenDown: deny`,
      alive,
      async ports() {
        const roles = await Promise.all([...alive].map(({ port }) => cli(port, 'role')));
        return [...alive].flatMap(({ port }, index) => (roles[index]?.startsWith('master') ? [port] : []));
      },
      stop: async () => void (await Promise.all([...alive].map(stopServer))),
    };
  },
  order: 'before',
  async strike(_, store) {
    const { alive } = store as Store & { readonly alive: Set<RedisServer> };
    for (let tries = 0; tries < 100; tries += 1) {
      for (const server of [...alive].slice(0, 3)) {
        // Of the two upstreams, the one with the serialized lane.
        if (!(await hasWaitingCall(server.port))) continue;
        alive.delete(server);
        await stopServer(server);
        return nothing;
      }
      await pause(20);
    }
    throw new Error('no primary has a waiting call');
  },
};

const certificate = fileURLToPath(new URL('../../test/fixtures/tls/upstream.test.crt', import.meta.url));
const certificateKey = fileURLToPath(new URL('../../test/fixtures/tls/upstream.test.key', import.meta.url));

const tlsCut: Row = {
  name: 'TLS and an ACL user: every connection is cut, twice',
  async store() {
    const options = (port: number): readonly string[] => [
      `--port 0 --tls-port ${port} --tls-auth-clients no`,
      `--tls-cert-file ${certificate} --tls-key-file ${certificateKey} --tls-ca-cert-file ${certificate}`,
      // The user of docs/operate/redis.md.
      '--user sluice on >key-of-sluice ~sluice:* &sluice:* +@all -@admin -@dangerous +info',
      '--user default on >key-of-admin ~* &* +@all',
    ];
    const server = await startServer({ args: (port) => options(port).join(' ').split(' ') });
    const { port } = server;
    return {
      yaml: `url: "rediss://sluice:key-of-sluice@127.0.0.1:${port}", whenDown: deny, tls: { caFile: "${certificate}" }`,
      access: { tls: { ca: readFileSync(certificate) }, password: 'key-of-admin' },
      ports: () => Promise.resolve([port]),
      stop: () => stopServer(server),
    };
  },
  async strike(_, store) {
    const operator = new Redis(await portOf(store), '127.0.0.1', store.access ?? {});
    await operator.call('CLIENT', 'KILL', 'USER', 'sluice');
    await pause(1_000);
    await operator.call('CLIENT', 'KILL', 'USER', 'sluice');
    operator.disconnect();
    return nothing;
  },
};

const leaving: Row = {
  name: 'two of three clients hang up',
  store: single(),
  leaving: true,
  strike: () => Promise.resolve(nothing),
};

const pairs: Row = {
  name: 'equal pairs at two replicas',
  store: single(),
  pairs: true,
  strike: () => Promise.resolve(nothing),
};

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
async function renewedToken(upstream: GateUpstream): Promise<Credential> {
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
  store: single(),
  credential: renewedToken,
  openWaitSeconds: 120,
  strike: () => Promise.resolve(nothing),
};

/** Rows of one track run one after the other, tracks side by side: what takes longest comes first in its own. */
export const tracks: readonly (readonly Row[])[] = [
  [renewals],
  [killed, tlsCut],
  [sentinel, leaving],
  [stopped, pairs],
  [awayLocal, hungDeny],
  [cluster, flushed, restarted],
];
