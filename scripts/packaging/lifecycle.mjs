/**
 * One release's life with a real helm against the stand-in API server: install --wait, upgrade, test, rollback,
 * uninstall, each followed by a comparison of every value of the manifest with what the server holds.
 */
import { execFile } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { differences, documents, nameOf } from './documents.mjs';
import { chart } from './generated.mjs';
import { groups } from './standin/kinds.mjs';
import { startApiServer } from './standin/server.mjs';

const run = promisify(execFile);
const LIMIT = { timeout: 90_000, maxBuffer: 1 << 26 };
const WAIT = ['--wait', '--timeout', '45s'];

/** Paths of the values that a manifest asks for and the live object does not hold. */
function missing(wanted, actual, path = '') {
  if (wanted === null || wanted === undefined) return [];
  if (Array.isArray(wanted)) {
    if (wanted.length !== actual?.length)
      return [`${path}: ${actual?.length ?? 0} items instead of ${wanted.length}`];
    return wanted.flatMap((item, index) => missing(item, actual[index], `${path}[${index}]`));
  }
  if (typeof wanted === 'object')
    return Object.entries(wanted).flatMap(([key, value]) => missing(value, actual?.[key], `${path}.${key}`));
  return wanted === actual ? [] : [`${path}: ${JSON.stringify(actual)} instead of ${JSON.stringify(wanted)}`];
}

function live(store, object) {
  const kind = groups.get(object.apiVersion)?.find((item) => item.kind === object.kind);
  return (
    kind &&
    store.get(
      kind,
      kind.namespaced ? (object.metadata.namespace ?? 'sluice') : undefined,
      object.metadata.name,
    )
  );
}

/** @returns a session with one stand-in; `close()` it. */
export async function open() {
  const folder = mkdtempSync(join(tmpdir(), 'sluice-helm-'));
  const kubeconfig = join(folder, 'kubeconfig');
  const server = await startApiServer(kubeconfig);
  const home = {
    HELM_CACHE_HOME: join(folder, 'c'),
    HELM_CONFIG_HOME: join(folder, 'f'),
    HELM_DATA_HOME: join(folder, 'd'),
  };
  const env = { ...process.env, ...home, KUBECONFIG: kubeconfig };
  const close = async () => {
    await server.close();
    rmSync(folder, { recursive: true });
  };
  return { ...server, env, close };
}

async function manifest(session, helm, revision = []) {
  const { stdout } = await run(helm, ['get', 'manifest', 'v', ...revision], { ...LIMIT, env: session.env });
  return documents(stdout);
}

async function present(session, helm) {
  const problems = (await manifest(session, helm)).flatMap((object) =>
    missing(object, live(session.store, object)).map((problem) => `${nameOf(object)} ${problem}`),
  );
  if (problems.length > 0) throw new Error(problems.join('\n'));
}

/**
 * @param {{install: string, later: string}} helms the helm that installs, and the one that does everything after it
 * @param {string[]} values options for install and upgrade
 * @param {string[]} change further options of the upgrade
 */
export async function lifecycle({ install, later }, values, change) {
  const session = await open();
  const helm = (binary, ...args) => run(binary, args, { ...LIMIT, env: session.env });
  try {
    await helm(install, 'install', 'v', chart, ...values, ...WAIT);
    await present(session, install);
    const first = await manifest(session, install);
    await helm(later, 'upgrade', 'v', chart, ...values, ...change, ...WAIT);
    await present(session, later);
    const changed = differences(first, await manifest(session, later));
    if (changed.length === 0) throw new Error('the upgrade changed nothing');
    await helm(later, 'test', 'v', '--timeout', '45s');
    await helm(later, 'rollback', 'v', '1', ...WAIT);
    await present(session, later);
    const back = differences(first, await manifest(session, later));
    if (back.length > 0) throw new Error(`the rollback did not restore ${back.join(', ')}`);
    await helm(later, 'uninstall', 'v', '--wait', '--timeout', '45s');
    const left = first.filter((object) => live(session.store, object));
    if (left.length > 0) throw new Error(`left after uninstall: ${left.map(nameOf).join(', ')}`);
  } finally {
    await session.close();
  }
}
