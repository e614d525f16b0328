/** Records the responses that are judged: those of an upstream in every form, the gateway's own refusals, and the admin port's. */
import { ofAdmin, passing, refused } from './calls.ts';
import { startGateways } from './gateways.ts';
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

export async function recordedResponses(): Promise<readonly Recorded[]> {
  const gateways = await startGateways();
  try {
    const passed = await all([...passing(gateways), ...ofAdmin(gateways)]);
    return [...passed, ...(await all(refused(gateways)))];
  } finally {
    await gateways.stop();
  }
}
