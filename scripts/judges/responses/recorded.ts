/** Records the responses that are judged: some two hundred and fifty, with every refusal that the gateway knows. */
import { refusals } from '../../../src/errors.ts';
import { until } from '../../cluster/processes.ts';
import { besideOthers, draining, inSequence, ofAdmin, passing, refused } from './calls.ts';
import { startGateways, type Gateways } from './gateways.ts';
import { record, type Asked, type Recorded } from './record.ts';

/** Calls under way at once. */
const width = 16;

async function all(calls: readonly Asked[]): Promise<Recorded[]> {
  const left = [...calls];
  const recorded: Recorded[] = [];
  const lane = async (): Promise<void> => {
    for (let next = left.shift(); next !== undefined; next = left.shift()) recorded.push(await record(next));
  };
  await Promise.all(Array.from({ length: width }, lane));
  return recorded;
}

async function oneByOne(calls: readonly Asked[]): Promise<Recorded[]> {
  const recorded: Recorded[] = [];
  for (const asked of calls) recorded.push(await record(asked));
  return recorded;
}

async function valueOf(adminUrl: string, series: string): Promise<number> {
  const text = await (await fetch(`${adminUrl}/metrics`)).text();
  return Number(
    text
      .split('\n')
      .find((line) => line.startsWith(`${series} `))
      ?.split(' ')[1] ?? 0,
  );
}

/** The second call once the first has been sent to its upstream. */
async function pair([first, second]: readonly [Asked, Asked], { full, open }: Gateways): Promise<Recorded[]> {
  const { adminUrl } = first.base === full.url ? full : open;
  const series = `sluice_in_flight{upstream="${first.path.split('/')[2] ?? ''}"}`;
  const under = record(first);
  await until(async () => (await valueOf(adminUrl, series)) > 0, 10_000);
  return [await record(second), await under];
}

async function whileDraining(gateways: Gateways): Promise<Recorded[]> {
  const { held, meanwhile } = draining(gateways);
  const { open } = gateways;
  const under = record(held);
  await until(
    async () => (await valueOf(open.adminUrl, 'sluice_queue_depth{upstream="narrow"}')) > 0,
    10_000,
  );
  open.signal('SIGTERM');
  await until(async () => (await fetch(`${open.adminUrl}/readyz`)).status === 503, 3_000);
  return [...(await all(meanwhile)), await under];
}

export async function recordedResponses(): Promise<readonly Recorded[]> {
  const gateways = await startGateways();
  try {
    const sequences = await Promise.all(inSequence(gateways).map(oneByOne));
    const passed = await all([...passing(gateways), ...ofAdmin(gateways)]);
    const own = await all(refused(gateways));
    const beside = [];
    for (const two of besideOthers(gateways)) beside.push(...(await pair(two, gateways)));
    return [...sequences.flat(), ...passed, ...own, ...beside, ...(await whileDraining(gateways))];
  } finally {
    await gateways.stop();
  }
}

/** Refusals that no recorded response shows. */
export const unseenRefusals = (recorded: readonly Recorded[]): readonly string[] =>
  Object.keys(refusals).filter((code) => !recorded.some(({ got }) => got.endsWith(` ${code}`)));
