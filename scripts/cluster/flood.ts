/**
 * More connections, calls, pipelined calls and bytes than one replica may hold, all at once: what is let in is answered, what is not is
 * refused with a time or ended, the admin port answers throughout, and afterwards nothing is held.
 */
import { createServer } from 'node:http';
import { connect, type AddressInfo } from 'node:net';
import { createKey } from '../../src/cli/keys.ts';
import { pause } from '../../test/support/redis-fleet.ts';
import { readResponses } from '../../test/support/raw-client.ts';
import { startFleet } from './fleet.ts';
import { until } from './processes.ts';
import type { Row, Scenario } from './row.ts';

const bounds = { maxConnections: 300, maxOpenCalls: 100, maxCallsPerConnection: 10, maxHeldBytes: 4_000_000 };
/** Calls stay open for so long, so that every flood meets a replica that is full. Milliseconds. */
const workMs = 3_000;
const bodyBytes = 100_000;
const floods = { connections: 1_000, pipelined: 60, bodies: 200 };

/** How one connection ended: statuses in order, and whether a refusal said no time. */
interface Ended {
  readonly statuses: readonly number[];
  readonly isTimeless: boolean;
}

interface Sent {
  /** The connection is open, or has been refused. */
  readonly opened: Promise<void>;
  readonly ended: Promise<Ended>;
}

/** Writes once, when it may, and reads until the connection is closed. */
function send(port: number, bytes: string, mayWrite: Promise<unknown> = Promise.resolve()): Sent {
  const { promise: opened, resolve: open } = Promise.withResolvers<void>();
  const ended = new Promise<Ended>((resolve) => {
    const chunks: Buffer[] = [];
    const socket = connect(port, '127.0.0.1', () => {
      open();
      void mayWrite.then(() => socket.write(bytes, 'latin1'));
    });
    socket.on('data', (chunk) => chunks.push(chunk));
    socket.on('error', () => {});
    socket.on('close', () => {
      open();
      const { responses } = readResponses(Buffer.concat(chunks), [], true);
      const refused = responses.filter(({ status }) => status === 503);
      resolve({
        statuses: responses.map(({ status }) => status),
        isTimeless: refused.some((one) => !/^\d+$/.test(one.field('retry-after') ?? '')),
      });
    });
  });
  return { opened, ended };
}

const sent = (port: number, bytes: string): Promise<Ended> => send(port, bytes).ended;

const times = <T>(count: number, run: () => T): T[] => Array.from({ length: count }, run);

export const flood: Scenario = {
  name: `a flood over every bound: ${floods.connections} connections where ${bounds.maxConnections} may be open, pipelines, bodies`,
  async run(): Promise<Row> {
    const upstream = createServer((request, response) => {
      request.resume().on('end', () => setTimeout(() => response.end('ok'), workMs));
    });
    await new Promise<void>((resolve) => upstream.listen(0, '127.0.0.1', resolve));
    const { key, hash } = createKey();
    const inYaml = Object.entries(bounds).map(([name, value]) => `${name}: ${value}`);
    const yaml = [
      `server: { host: 127.0.0.1, adminHost: 127.0.0.1, port: 0, adminPort: 0, maxBodyBytes: 200000, ${inYaml.join(', ')} }`,
      'log: { level: info, sampleSuccesses: 0 }',
      `upstreams:\n  api: { origins: ["http://127.0.0.1:${(upstream.address() as AddressInfo).port}"], allowPrivateAddresses: true }`,
      `workspaces:\n  acme: { keys: ["${hash}"] }`,
    ].join('\n');
    const fleet = await startFleet(1, { keys: {}, yaml: () => yaml });
    const [gateway] = fleet.gateways;
    if (gateway === undefined) throw new Error('no gateway');
    const port = Number(new URL(gateway.url).port);
    const head = (method: string, more = ''): string =>
      `${method} /via/api/x HTTP/1.1\r\nHost: a\r\nSluice-Key: ${key}\r\n${more}\r\n`;
    const memory = (): Promise<number> => fleet.metric('process_resident_memory_bytes');
    const before = await memory();
    let isOver = false;
    const probing = (async () => {
      let failed = 0;
      for (; !isOver; await pause(100))
        if (!(await fetch(`${gateway.adminUrl}/livez`).catch(() => null))?.ok) failed += 1;
      return failed;
    })();
    const body =
      head('POST', `Content-Length: ${bodyBytes}\r\nConnection: close\r\n`) + 'x'.repeat(bodyBytes);
    // All are open before the first writes: a call that is refused at once makes room for the next connection.
    const { promise: allOpened, resolve: letWrite } = Promise.withResolvers<void>();
    const opening = times(floods.connections, () =>
      send(port, head('GET', 'Connection: close\r\n'), allOpened),
    );
    await Promise.all(opening.map(({ opened }) => opened));
    letWrite();
    const crowd = await Promise.all(opening.map(({ ended }) => ended));
    const pipeline = await sent(
      port,
      times(floods.pipelined, () => head('GET')).join('') + head('GET', 'Connection: close\r\n'),
    );
    const heavy = await Promise.all(times(floods.bodies, () => sent(port, body)));
    isOver = true;
    const unprobed = await probing;
    const all = [...crowd, pipeline, ...heavy];
    const statuses = all.flatMap((ended) => ended.statuses);
    const count = (status: number): number => statuses.filter((one) => one === status).length;
    const silent = all.filter((ended) => ended.statuses.length === 0).length;
    const isTimed = all.every(({ isTimeless }) => !isTimeless);
    const bound = (name: string): Promise<number> => fleet.metric(`sluice_overload_total{bound="${name}"}`);
    const reached = await Promise.all(['connections', 'connection_calls', 'calls', 'bytes'].map(bound));
    const held = async (): Promise<number> =>
      (await fleet.metric('sluice_open_calls')) +
      (await fleet.metric('sluice_queue_bytes')) +
      (await fleet.metric('sluice_head_bytes'));
    const isEmpty = await until(async () => (await held()) === 0, 20_000);
    const growth = ((await memory()) - before) / 1_048_576;
    await fleet.stop();
    upstream.close().closeAllConnections();
    return {
      holds:
        statuses.every((status) => status === 200 || status === 503) &&
        count(200) >= bounds.maxOpenCalls &&
        isTimed &&
        unprobed === 0 &&
        reached.every((refusals) => refusals > 0) &&
        isEmpty,
      figures: `200 ×${count(200)}, 503 ×${count(503)}, closed without a word ×${silent}, others ×${statuses.length - count(200) - count(503)}; refused for connections, pipelining, calls, bytes: ${reached.join(', ')}; probes that failed ${unprobed}; held afterwards ${isEmpty ? 'nothing' : 'something'}; memory grew by ${growth.toFixed(0)} MB`,
    };
  },
};
