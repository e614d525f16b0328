/**
 * porcupine over histories of three replicas while Redis is killed, emptied, and fails over to its replica: the charges of a ceiling,
 * the order of a lane and calls that are sent one after the other are what one process could have done. Planted faults must be found:
 * three replicas without a Redis, which know nothing of one another, and a lane in which one call is put before ten others.
 */
import { mkdtemp, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { redisBinary } from '../../test/support/redis.ts';
import { pause } from '../../test/support/redis-fleet.ts';
import { cli, startServer, stopServer } from '../cluster/processes.ts';
import { startWatched } from '../cluster/topologies.ts';
import type { Report } from '../report.ts';
import { recordHistories, type History, type Recorded, type World } from './histories/record.ts';
import { ownGoProgram, ran } from './tools.ts';

const maxMs = 600_000;

/** Milliseconds until Redis, killed, is started again. */
const goneMs = 300;

interface Started {
  readonly world: World;
  readonly end: () => Promise<void>;
}

async function killed(): Promise<Started> {
  const server = await startServer();
  const strike = async (): Promise<void> => {
    await cli(server.port, 'shutdown', 'nosave').catch(() => '');
    await pause(goneMs);
    await startServer({ port: server.port });
  };
  const world = {
    name: 'Redis killed, empty again',
    redis: `url: "${server.url}"`,
    strike,
    calls: 'at a steady pace',
  } as const;
  return { world, end: async () => void (await cli(server.port, 'shutdown', 'nosave').catch(() => '')) };
}

async function emptied(): Promise<Started> {
  const server = await startServer();
  const strike = async (): Promise<void> => void (await cli(server.port, 'flushall'));
  return {
    world: { name: 'FLUSHALL', redis: `url: "${server.url}"`, strike, calls: 'at a steady pace' } as const,
    end: () => stopServer(server),
  };
}

async function failedOver(): Promise<Started> {
  const { url, primary, second } = await startWatched();
  const strike = (): Promise<void> => stopServer(primary);
  return {
    world: { name: 'failover', redis: `url: "${url}"`, strike, calls: 'at a steady pace' },
    end: () => stopServer(second),
  };
}

const alone: World = {
  name: 'planted: no Redis',
  redis: null,
  strike: () => Promise.resolve(),
  calls: 'one by one',
};

/** The lane with one call that overtakes. */
function overtaking(history: History): History {
  const left = history.operations.filter(({ kind }) => kind === 'left').toSorted((a, b) => a.to - b.to);
  const [early, late] = [left.at(-11), left.at(-1)];
  const exchanged = new Map([
    [early, late?.call],
    [late, early?.call],
  ]);
  const operations = history.operations.map((one) => ({ ...one, call: exchanged.get(one) ?? one.call }));
  return { ...history, name: 'planted: a call overtakes', operations };
}

async function recorded(start: () => Promise<Started>): Promise<Recorded> {
  const { world, end } = await start();
  try {
    return await recordHistories(world);
  } finally {
    await end();
  }
}

/** @returns the result of each history, by its name, or why there is none */
async function checked(
  program: string,
  histories: readonly History[],
): Promise<ReadonlyMap<string, string> | string> {
  const { status, output } = await ran(program, [], maxMs, JSON.stringify(histories));
  if (status !== 0) return output.slice(-500);
  return new Map(output.split('\n').map((line) => [line.split('\t')[0] ?? '', line.split('\t')[1] ?? '']));
}

/** Keeps a history that failed, to be looked at and checked again; says where. */
async function saved(history: History): Promise<string> {
  const path = join(await mkdtemp(join(tmpdir(), 'sluice-history-')), 'history.json');
  await writeFile(path, JSON.stringify([history]));
  return `the history is in ${path}`;
}

export async function judgeByPorcupine(report: Report): Promise<void> {
  const tool = await ownGoProgram('linearizability');
  if ('why' in tool) return report.skipped('porcupine', tool.why);
  const binary = await redisBinary().catch((failure: unknown) => String(failure));
  if (!binary.startsWith('/')) return report.skipped('porcupine', binary);
  const faulty = (await recordHistories(alone)).histories.filter(({ model }) => model !== 'lane');
  const histories: History[] = [];
  for (const start of [killed, emptied, failedOver]) {
    const { histories: more, lost, twice } = await recorded(start);
    histories.push(...more);
    const name = more[0]?.name.split(', ceiling')[0] ?? '';
    report.check(
      `porcupine: ${name}: nothing is lost or made twice`,
      lost.length + twice === 0,
      `${twice} twice; lost: ${lost.slice(0, 10).join(', ')}`,
    );
  }
  faulty.push(
    ...histories
      .filter(({ model }) => model === 'lane')
      .slice(0, 1)
      .map(overtaking),
  );
  const results = await checked(tool.path, [...histories, ...faulty]);
  if (typeof results === 'string') return report.check('porcupine checked the histories', false, results);
  for (const history of histories) {
    const { name, operations } = history;
    const result = results.get(name) ?? 'no result';
    const claim = `porcupine: ${name}: ${operations.length} operations are linearizable`;
    if (result === 'Unknown') report.skipped(claim, 'not decided within 20 s');
    else report.check(claim, result === 'Ok', result === 'Ok' ? '' : `${result}; ${await saved(history)}`);
  }
  for (const { name, operations } of faulty) {
    const result = results.get(name) ?? 'no result';
    report.check(
      `porcupine: ${name}: the fault is found in ${operations.length} operations`,
      result === 'Illegal',
      result,
    );
  }
}
