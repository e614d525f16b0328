/** The attacks of slowhttptest, and what 1,500 connections of each cost a bare server of Node under the limits of the gateway. */
import { existsSync, readFileSync } from 'node:fs';
import { readdir, readFile } from 'node:fs/promises';
import { child, firstLine } from '../cluster/processes.ts';
import { ran, type Ran } from './tools.ts';

const pageBytes = 4_096;
const maxConnections = 1_500;
/** What slow readers ask for: more than the system takes off the gateway's hands for a client that does not read. */
export const responseBytes = 3 * 1_048_576;

/**
 * Of a response that nobody reads the system keeps everything: as many at once as fit into a bit more than half of what TCP may
 * take on this machine (`net.ipv4.tcp_mem`). Above that every connection of the machine waits for memory, those of the control too.
 */
function maxReads(): number {
  const bounds = '/proc/sys/net/ipv4/tcp_mem';
  if (!existsSync(bounds)) return maxConnections;
  const pages = Number(readFileSync(bounds, 'utf8').trim().split(/\s+/)[1]);
  return Math.min(maxConnections, Math.floor((0.6 * pages * pageBytes) / responseBytes));
}

export interface Attack {
  readonly what: 'heads' | 'bodies' | 'reads';
  readonly connections: number;
  readonly how: readonly string[];
  readonly path: string;
  /** It ends by itself when its last connection was closed. */
  readonly maxSeconds: number;
}

export const attacks: readonly Attack[] = [
  { what: 'heads', connections: maxConnections, how: ['-H'], path: '/via/small/x', maxSeconds: 60 },
  {
    what: 'bodies',
    connections: maxConnections,
    how: ['-B', '-s', '9000'],
    path: '/via/small/x',
    maxSeconds: 100,
  },
  {
    what: 'reads',
    connections: maxReads(),
    how: ['-X', '-w', '10', '-y', '20', '-n', '5', '-z', '32'],
    path: '/via/large/x',
    maxSeconds: 60,
  },
];

/** An attack of fewer would show nothing. */
export const minOpen = ({ connections }: Attack): number => 0.9 * connections;

/** Runs an attack until its last connection was closed, or its time is over: it does not notice that a connection was reset which it reads slowly. */
export function attack(
  tool: string,
  { how, connections, maxSeconds }: Attack,
  { url, key }: { readonly url: string; readonly key: string },
): Promise<Ran> {
  const size = ['-c', String(connections), '-r', '500', '-l', String(maxSeconds), '-i', '5', '-p', '10'];
  // It has no option for a key: one more field is written behind the only one that it sends in every mode and whose value it takes.
  return ran(tool, [...how, ...size, '-j', `of=judge\r\nSluice-Key: ${key}`, '-u', url], 2_000 * maxSeconds);
}

export interface Sample {
  readonly open: number;
  /** Resident. */
  readonly bytes: number;
}

export interface Growth {
  /** From the first to the last third of the time in which the connections were held, bytes. */
  readonly held: number;
  /** At most, over what it was before, bytes. */
  readonly peak: number;
}

const mean = (values: readonly number[]): number =>
  values.reduce((sum, value) => sum + value, 0) / Math.max(1, values.length);

/** What the connections cost, by samples of which the first one is from before. */
export function growthOf(samples: readonly Sample[], one: Attack): Growth {
  const held = samples.filter(({ open }) => open >= minOpen(one)).map(({ bytes }) => bytes);
  const third = Math.max(1, Math.floor(held.length / 3));
  return {
    held: mean(held.slice(-third)) - mean(held.slice(0, third)),
    peak: Math.max(...samples.map(({ bytes }) => bytes)) - (samples[0]?.bytes ?? 0),
  };
}

/** The same attack on a bare server of Node in a process of its own; `null` when it did not reach its size there. */
export async function onBareServer(tool: string, one: Attack): Promise<Growth | null> {
  const bare = child(process.execPath, [new URL('bare-server.ts', import.meta.url).pathname]);
  try {
    const port = await firstLine(bare, [], (line) => (/^\d+$/.test(line) ? Number(line) : null));
    const url = `http://127.0.0.1:${port}/`;
    for (let n = 0; n < 50; n += 1) await (await fetch(url)).arrayBuffer();
    const idle = await descriptorsOf(bare.pid);
    const sample = async (): Promise<Sample> => ({
      open: (await descriptorsOf(bare.pid)) - idle,
      bytes: await residentOf(bare.pid),
    });
    const samples = [await sample()];
    let isOver = false;
    const attacking = attack(tool, one, { url, key: 'none' }).finally(() => (isOver = true));
    while (!isOver) {
      await new Promise((resolve) => setTimeout(resolve, 500));
      samples.push(await sample());
    }
    await attacking;
    return Math.max(...samples.map(({ open }) => open)) >= minOpen(one) ? growthOf(samples, one) : null;
  } finally {
    bare.kill('SIGKILL');
  }
}

const descriptorsOf = async (pid = 0): Promise<number> => (await readdir(`/proc/${pid}/fd`)).length;
/** Connections of a port that the system still has, whether or not a process does; those that only wait for stray packets apart. */
export async function socketsOf(port: number): Promise<number> {
  const local = `:${port.toString(16).toUpperCase().padStart(4, '0')}`;
  const [listening, waiting] = ['0A', '06'];
  return (await readFile('/proc/net/tcp', 'utf8')).split('\n').filter((line) => {
    const [, from, , state] = line.trim().split(/\s+/);
    return from?.endsWith(local) === true && state !== listening && state !== waiting;
  }).length;
}

const residentOf = async (pid = 0): Promise<number> =>
  Number((await readFile(`/proc/${pid}/statm`, 'utf8')).split(' ')[1]) * pageBytes;
