/**
 * porcupine over histories of three replicas while Redis is killed, emptied, and fails over to its replica: the charges of a ceiling,
 * the order of a lane and calls that are sent one after the other are what one process could have done. Planted faults must be found:
 * three replicas without a Redis, which know nothing of one another, and a lane in which one call is put before ten others.
 */
import { mkdtemp, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { cli, noRedis, restartEmpty, startServer, startWatched, stopServer } from '../fleet/redis.ts';
import type { Report } from '../report.ts';
import { recordHistories, type History, type World } from './histories.ts';
import { ownGoProgram, ran } from './tools.ts';

const maxMs = 600_000;

/** A Redis for each, which ends with the verification. */
const worlds: readonly (() => Promise<World>)[] = [
  async () => {
    const { url, port } = await startServer();
    const strike = () => restartEmpty(port, 300);
    return { name: 'Redis killed, empty again', redis: `url: "${url}"`, strike };
  },
  async () => {
    const { url, port } = await startServer();
    const strike = async () => void (await cli(port, 'flushall'));
    return { name: 'FLUSHALL', redis: `url: "${url}"`, strike };
  },
  async () => {
    const { url, primary } = await startWatched();
    return { name: 'failover', redis: `url: "${url}"`, strike: () => stopServer(primary) };
  },
];
const alone: World = { name: 'planted: no Redis', strike: () => Promise.resolve() };

/** The lane with one call that overtakes. */
function overtaking(history: History): History {
  const left = history.operations.filter(({ kind }) => kind === 'left').toSorted((a, b) => a.to - b.to);
  const [early, late] = [left.at(-11), left.at(-1)];
  const callOf = new Map([
    [early, late?.call],
    [late, early?.call],
  ]);
  const operations = history.operations.map((one) => ({ ...one, call: callOf.get(one) ?? one.call }));
  return { ...history, name: 'planted: a call overtakes', operations };
}

/** @returns the result of each history, by its name, or why there is none */
async function checked(program: string, histories: readonly History[]) {
  const { status, output } = await ran(program, [], maxMs, JSON.stringify(histories));
  if (status !== 0) return output.slice(-500);
  return new Map(output.split('\n').map((line) => line.split('\t') as [name: string, result: string]));
}

/** Keeps a history that failed, to be looked at and checked again; says where. */
async function saved(history: History): Promise<string> {
  const path = join(await mkdtemp(join(tmpdir(), 'sluice-history-')), 'history.json');
  await writeFile(path, JSON.stringify([history]));
  return `the history is in ${path}`;
}

export async function judgeByPorcupine(report: Report): Promise<void> {
  const tool = await ownGoProgram('linearizability');
  const why = 'why' in tool ? tool.why : await noRedis();
  if ('why' in tool || why !== null) return report.skipped('porcupine', String(why));
  const histories: History[] = [];
  for (const start of worlds) {
    const world = await start();
    const { histories: more, lost, twice } = await recordHistories(world);
    histories.push(...more);
    const found = `${twice} twice; lost: ${lost.slice(0, 10).join(', ')}`;
    const claim = `porcupine: ${world.name}: nothing is lost or made twice`;
    report.check(claim, lost.length + twice === 0, found);
  }
  const ofOthers = (await recordHistories(alone)).histories.filter(({ model }) => model !== 'lane');
  const [lane] = histories.filter(({ model }) => model === 'lane');
  const faulty = [...ofOthers, ...(lane === undefined ? [] : [overtaking(lane)])];
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
    const claim = `porcupine: ${name}: the fault is found in ${operations.length} operations`;
    report.check(claim, result === 'Illegal', result);
  }
}
