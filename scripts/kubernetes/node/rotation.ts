/** Keys of a workspace come and go while the pods run: by the chart's ConfigMap, and by a Secret mounted as the file. */
import { setTimeout as sleep } from 'node:timers/promises';
import { until } from '../cluster/processes.ts';
import { newKey, type Shop } from './shop.ts';

/** The kubelet brings a changed file within its sync period, and the gateway reads it within seconds. */
const BROUGHT_MS = 150_000;
const FOLDER = '/etc/sluice-secret';
const SECRET = 'gateway-file';

async function accepted(shop: Shop, key: string): Promise<number> {
  const begunMs = Date.now();
  await until('the new key is accepted', BROUGHT_MS, async () => (await shop.statusOf(key)) === 200);
  return Math.round((Date.now() - begunMs) / 1000);
}

/** Refused by every pod: each of several questions goes to any of them. */
async function refused(shop: Shop, key: string): Promise<number> {
  const begunMs = Date.now();
  await until('the removed key is refused', BROUGHT_MS, async () => {
    for (let asked = 0; asked < 6; asked += 1) {
      if ((await shop.statusOf(key)) !== 401) return false;
      await sleep(50);
    }
    return true;
  });
  return Math.round((Date.now() - begunMs) / 1000);
}

async function samePods(shop: Shop, before: readonly string[]): Promise<void> {
  const after = await shop.pods();
  if (after.join() !== before.join())
    throw new Error(`the pods were replaced: ${before.join(', ')} by ${after.join(', ')}`);
}

/** By `helm upgrade`, which changes the ConfigMap only. */
export async function rotates(shop: Shop): Promise<string> {
  const second = newKey();
  await shop.upgrade();
  const before = await shop.pods();
  await shop.upgrade({}, [shop.key, second]);
  const added = await accepted(shop, second);
  await shop.upgrade();
  const removed = await refused(shop, second);
  await samePods(shop, before);
  return `accepted after ${added} s, refused after ${removed} s`;
}

/** The whole file comes from a Secret: the release names it once, and is not touched again. */
export async function rotatesBySecret(shop: Shop): Promise<string> {
  const second = newKey();
  await write(shop, [shop.key]);
  await shop.upgrade({
    extraVolumes: [{ name: 'file', secret: { secretName: SECRET } }],
    extraVolumeMounts: [{ name: 'file', mountPath: FOLDER, readOnly: true }],
    extraArgs: ['--config', `${FOLDER}/sluice.yaml`],
  });
  const before = await shop.pods();
  await write(shop, [shop.key, second]);
  const added = await accepted(shop, second);
  await write(shop, [shop.key]);
  const removed = await refused(shop, second);
  await samePods(shop, before);
  return `accepted after ${added} s, refused after ${removed} s`;
}

/** The chart's own file with these keys, as a Secret. */
async function write(shop: Shop, keys: readonly string[]): Promise<void> {
  const { release } = shop;
  const template = ['template', release.name, release.chart, ...shop.options({}, keys)];
  const { stdout } = await release.run([...template, '-s', 'templates/configmap.yaml']);
  const start = stdout.indexOf('sluice.yaml: |\n') + 'sluice.yaml: |\n'.length;
  const file = stdout.slice(start).replaceAll(/^ {4}/gm, '');
  const secret = {
    apiVersion: 'v1',
    kind: 'Secret',
    metadata: { name: SECRET },
    stringData: { 'sluice.yaml': file },
  };
  await release.kubectl(['apply', '-f', '-'], JSON.stringify(secret));
}
