/**
 * nginx and HAProxy with the documented settings in front of three gateways that share a Redis: held calls outlive the
 * proxy's patience for an unheld one, and replacing the gateways one after the other loses and doubles nothing.
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { freePort } from '../../test/support/free-port.ts';
import { has, root, start, until } from '../fleet/processes.ts';
import { noRedis } from '../fleet/redis.ts';
import { call, startFleet } from './fleet.mjs';
import { check, skip } from './report.mjs';

const read = (path) => readFileSync(join(root, path), 'utf8');

/** The compose file's nginx configuration with loopback addresses in place of the compose names. */
function nginxConfig(folder, port, gateways) {
  const paths = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi'].map(
    (name) => `${name}_temp_path ${folder}/${name};`,
  );
  const servers = gateways.map((item) => `server 127.0.0.1:${item.port} max_fails=0;`).join('\n');
  return `daemon off; master_process off; pid ${folder}/nginx.pid; error_log ${folder}/nginx.log;\n${read('deploy/compose/nginx.conf')}`
    .replace('http {', `http {\n${paths.join('\n')}`)
    .replace(/server gateway-1:8080 max_fails=0;\s+server gateway-2:8080 max_fails=0;/, servers)
    .replace('listen 80;', `listen 127.0.0.1:${port};`);
}

/** The documented HAProxy configuration, likewise. */
function haproxyConfig(port, gateways) {
  const servers = gateways.map(
    (item, at) => `  server gateway-${at + 1} 127.0.0.1:${item.port} check port ${item.adminPort}`,
  );
  return read('deploy/haproxy/haproxy.cfg')
    .replace(/ {2}server gateway-1 [^\n]*\n {2}server gateway-2 [^\n]*/, servers.join('\n'))
    .replace('bind :8080', `bind 127.0.0.1:${port}`);
}

/** How each is configured and started, by its name. */
const proxies = {
  nginx(folder, port, gateways) {
    const [file, log] = [join(folder, 'nginx.conf'), join(folder, 'nginx.log')];
    writeFileSync(file, nginxConfig(folder, port, gateways));
    return start('nginx', ['-p', folder, '-c', file, '-e', log]);
  },
  haproxy(folder, port, gateways) {
    const file = join(folder, 'haproxy.cfg');
    writeFileSync(file, haproxyConfig(port, gateways));
    return start('haproxy', ['-db', '-f', file]);
  },
};

export async function proxyChecks() {
  const why = await noRedis();
  if (why !== null) return skip('nginx and HAProxy in front of gateways', why);
  for (const [name, launch] of Object.entries(proxies)) {
    if (!has(name)) {
      skip(`${name} in front of three gateways`, `${name} is not installed (Debian: nginx-light, haproxy)`);
      continue;
    }
    await check(`${name}: calls held for seconds come through, none is sent twice`, () =>
      withProxy(launch, heldProblems),
    );
    await check(`${name}: replacing three gateways one by one loses and doubles nothing`, () =>
      withProxy(launch, rollingProblems),
    );
  }
  return undefined;
}

async function withProxy(launch, run) {
  // Four in flight over all gateways together, so a burst of calls is held.
  const fleet = await startFleet({ requestsPerMinute: 600, maxInFlight: 4 });
  try {
    const gateways = [];
    for (let at = 0; at < 3; at += 1)
      gateways.push(await fleet.gateway(await fleet.settings(`gateway-${at}.yaml`)));
    const port = await freePort();
    const front = launch(fleet.folder, port, gateways);
    const base = `http://127.0.0.1:${port}`;
    // The data port knows no health route: any response of the gateway will do.
    const responds = async () => (await fetch(`${base}/activity`)).status === 401;
    await until('the proxy passes calls on', 60_000, responds, front.said);
    return await run({ fleet, gateways, base });
  } finally {
    await fleet.stop();
  }
}

function problemsOf(results, seen) {
  const lost = results.filter((result) => result.status !== 200);
  const twice = [...seen].filter(([, count]) => count > 1);
  return [
    ...lost.map((result) => `lost: ${JSON.stringify(result)}`),
    ...twice.map(([id, count]) => `call ${id} reached the upstream ${count} times`),
  ];
}

/** 24 calls of 500 ms, four at a time: the last ones are held for about 2.5 s. */
async function heldProblems({ fleet, base }) {
  const ids = Array.from({ length: 24 }, (_, at) => `held-${at}`);
  const results = await Promise.all(ids.map((id) => call(base, { id, upstreamMs: 500 })));
  const longest = Math.max(...results.map((result) => result.ms));
  const unheld = `nothing was held, so the gateways do not share the limit of 4 in flight: longest ${longest} ms`;
  return [...problemsOf(results, fleet.seen), ...(longest < 2000 ? [unheld] : [])];
}

/** Steady calls while each gateway is drained and started anew, as a Deployment's rollout does. */
async function rollingProblems({ fleet, gateways, base }) {
  const calls = [];
  let going = true;
  const load = (async () => {
    for (let n = 0; going; n += 1) {
      calls.push(call(base, { id: `roll-${n}`, upstreamMs: 300 }));
      await sleep(120);
    }
  })();
  const exits = [];
  for (const gateway of gateways) {
    await sleep(500);
    exits.push(await gateway.stop(25_000));
    await fleet.gateway(gateway);
  }
  await sleep(1000);
  going = false;
  await load;
  const results = await Promise.all(calls);
  const unclean = exits.filter(({ code }) => code !== 0);
  return [
    ...problemsOf(results, fleet.seen),
    ...unclean.map((exit) => `a gateway ended with ${JSON.stringify(exit)}`),
    ...(results.length < 20 ? ['too little load'] : []),
  ];
}
