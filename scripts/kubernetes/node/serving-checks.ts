/** The chart with its real image on the real node, under load, through everything that replaces or stops a pod. */
import { setTimeout as sleep } from 'node:timers/promises';
import { CommandFailure, until } from '../cluster/processes.ts';
import { hangs } from './hanging.ts';
import { rotates, rotatesBySecret } from './rotation.ts';
import type { Shop } from './shop.ts';

const COUNT = 2;
const within = { min: COUNT, max: COUNT + 1 };

/** @param short leaves out what takes longest */
export async function checkServing(shop: Shop, version: string, short: boolean): Promise<void> {
  const { report, release } = shop;
  const check = (what: string, run: () => Promise<string | void>): Promise<boolean> =>
    report.check(`${version}, real node: ${what}`, run);
  const load = (what: string, happens: () => Promise<unknown>, bounds = within): Promise<boolean> =>
    check(`${what}, under load`, () => shop.underLoad(`${version}, real node: ${what}`, happens, bounds));
  const ready = await check('a restricted namespace with an upstream', () => shop.open());
  if (!ready || !(await check('install --wait', () => shop.upgrade())))
    return report.skip(`${version}, real node: the rest`, 'not installed');
  await check('a start leaves no warning event', () => noWarning(shop));
  await check('a call is answered by its Service, one without a key is refused', () => serves(shop));
  await check('user, capabilities, privileges, seccomp, read-only root, no token, no links', () =>
    bounded(shop),
  );
  await check('helm test asks the Services', () => tested(shop));
  await load('rollout restart', async () => {
    await release.kubectl(['rollout', 'restart', `deployment/${release.deployment}`]);
    await release.rolledOut();
  });
  await load('upgrade', () => shop.upgrade({ config: { server: { keepAliveSeconds: 60 } } }));
  await load('rollback', () => release.rollback(1));
  await load('both pods evicted at once: one goes', () => evicts(shop), { min: COUNT - 1, max: COUNT + 1 });
  await load('the small Redis is killed', () => redisDies(shop));
  await check('a key rotates by the ConfigMap: the running pods reload', () => rotates(shop));
  if (short) {
    for (const what of ['an image that does not exist', 'a key by a mounted Secret', 'a hanging process'])
      report.skip(`${version}, real node: ${what}`, 'not in the short form');
  } else {
    await load('an image that does not exist, and the rollback', () => missingImage(shop));
    await load('a key rotates by a mounted Secret: the running pods reload', () => rotatesBySecret(shop), {
      min: COUNT,
      max: COUNT + 1,
    });
    await check('a hanging process leaves the Service and is restarted', () => hangs(shop));
  }
}

/** Of pods that start one at a time. A machine on which a start takes about as long as the probe waits shows nothing. */
async function noWarning(shop: Shop): Promise<string> {
  const { release } = shop;
  await release.kubectl(['rollout', 'restart', `deployment/${release.deployment}`]);
  await release.rolledOut();
  const pods = await shop.pods();
  const delay = '.spec.template.spec.containers[0].startupProbe.initialDelaySeconds';
  const delayMs = Number((await release.field(delay)) || '0') * 1000;
  const startsMs = await Promise.all(pods.map((pod) => startOf(shop, pod)));
  const took = startsMs.map((ms) => (ms / 1000).toFixed(1)).join(' and ');
  const found = (await release.warningEvents(/^$/)).filter((line) => pods.some((pod) => line.includes(pod)));
  if (found.length === 0) return `starts took ${took} s`;
  // The kubelet states the start in whole seconds.
  if (delayMs === 0 || Math.max(...startsMs) < delayMs - 1000) throw new Error(found.join('\n'));
  shop.report.skip(
    'real node: a start leaves no warning event',
    `starts took ${took} s on this busy machine`,
  );
  return 'not shown';
}

/** Time from the start of the container to its line "serving". */
async function startOf({ release }: Shop, pod: string): Promise<number> {
  const path = '.status.containerStatuses[0].state.running.startedAt';
  const started = await release.kubectl(['get', 'pod', pod, '-o', `jsonpath={${path}}`]);
  const log = await release.kubectl(['logs', pod]);
  const line = log.split('\n').find((one) => one.includes('"message":"serving"')) ?? '{}';
  const { time = '' }: { time?: string } = JSON.parse(line);
  return Date.parse(time) - Date.parse(started);
}

async function serves(shop: Shop): Promise<void> {
  const [known, unknown] = [await shop.statusOf(shop.key), await shop.statusOf('none')];
  if (known !== 200 || unknown !== 401) throw new Error(`answered ${known}, without a key ${unknown}`);
}

const SELF_REPORT = `
const { existsSync, readFileSync, writeFileSync } = require('fs');
const can = (path) => { try { writeFileSync(path, 'x'); return 'written'; } catch (error) { return error.code; } };
const status = readFileSync('/proc/self/status', 'utf8');
const field = (name) => status.match(new RegExp('^' + name + ':\\\\s*(\\\\S+)', 'm'))[1];
const links = Object.keys(process.env).filter((name) => /_SERVICE_HOST$/.test(name) && !/^KUBERNETES_/.test(name));
console.log(JSON.stringify([field('Uid'), field('CapEff'), field('NoNewPrivs'), field('Seccomp'), can('/app/x'),
  can('/etc/sluice/x'), can('/tmp/x'), existsSync('/var/run/secrets/kubernetes.io'), links.length]));`;

async function bounded(shop: Shop): Promise<void> {
  const [pod = ''] = await shop.pods();
  const seen = await shop.inside(pod, SELF_REPORT);
  const wanted = '["65532","0000000000000000","1","2","EROFS","EROFS","written",false,0]';
  if (seen !== wanted) throw new Error(`a process in the pod sees ${seen}, not ${wanted}`);
}

async function tested({ release }: Shop): Promise<void> {
  const { stdout } = await release.run(['test', release.name, '--logs', '--timeout', '120s']);
  if (!stdout.includes('readyz 200, a call without a key 401 unauthenticated')) throw new Error(stdout);
}

/** Both at the same time: the budget refuses one of them. */
async function evicts(shop: Shop): Promise<void> {
  const { release } = shop;
  const pods = await shop.pods();
  const { namespace } = release;
  const responses = await Promise.all(
    pods.map((name) => {
      const eviction = { apiVersion: 'policy/v1', kind: 'Eviction', metadata: { name, namespace } };
      const path = `/api/v1/namespaces/${namespace}/pods/${name}/eviction`;
      return release.client.output(['create', '--raw', path, '-f', '-'], JSON.stringify(eviction)).then(
        () => 'gone',
        (failure: unknown) => (failure instanceof CommandFailure ? failure.output.stderr : String(failure)),
      );
    }),
  );
  const refused = responses.filter((one) => one.includes('disruption budget')).length;
  if (refused !== 1 || !responses.includes('gone')) throw new Error(responses.join('\n'));
  await sleep(1000);
  await release.untilReady(COUNT);
}

async function missingImage(shop: Shop): Promise<void> {
  const { release } = shop;
  const options = shop.options({ image: { tag: 'none' } });
  const upgrade = ['upgrade', release.name, release.chart, ...options, '--wait', '--timeout', '20s'];
  const passed = await release.run(upgrade).then(
    () => true,
    () => false,
  );
  if (passed) throw new Error('the upgrade passed');
  await release.run(['rollback', release.name, '--wait', '--timeout', '120s']);
}

async function redisDies({ release }: Shop): Promise<void> {
  const label = 'app.kubernetes.io/name=sluice-redis';
  await release.kubectl(['delete', 'pod', '-l', label, '--wait=false', '--grace-period', '0', '--force']);
  await sleep(2000);
  await release.kubectl(['rollout', 'status', 'deployment/s-sluice-redis', '--timeout', '120s']);
  await sleep(5000);
}

/** For the other groups: the release is gone, and so is everything that it made. */
export async function checkUninstall(shop: Shop, version: string): Promise<void> {
  await shop.report.check(`${version}, real node: uninstall leaves nothing`, async () => {
    await shop.release.uninstall();
    await until('no pod of the gateway is left', 120_000, async () => (await shop.pods()).length === 0);
  });
}
