/**
 * nginx and HAProxy with the documented settings in front of three gateways that share a Redis: held calls outlive the
 * proxy's patience for an unheld one, and replacing the gateways one after the other loses and doubles nothing.
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { redisBinary } from '../../test/support/redis.ts';
import { freePort } from '../../test/support/free-port.ts';
import { has, start, until } from '../processes.ts';
import { call, startFleet } from './fleet.mjs';
import { root } from './generated.mjs';
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

const proxies = [
  {
    name: 'nginx',
    launch(folder, port, gateways) {
      writeFileSync(join(folder, 'nginx.conf'), nginxConfig(folder, port, gateways));
      return start('nginx', [
        '-p',
        folder,
        '-c',
        join(folder, 'nginx.conf'),
        '-e',
        join(folder, 'nginx.log'),
      ]);
    },
  },
  {
    name: 'haproxy',
    launch(folder, port, gateways) {
      writeFileSync(join(folder, 'haproxy.cfg'), haproxyConfig(port, gateways));
      return start('haproxy', ['-db', '-f', join(folder, 'haproxy.cfg')]);
    },
  },
];

export async function proxyChecks() {
  const binary = await redisBinary().catch(String);
  if (!binary.startsWith('/')) return skip('nginx and HAProxy in front of gateways', binary);
  for (const proxy of proxies) {
    if (!has(proxy.name)) {
      skip(
        `${proxy.name} in front of three gateways`,
        `${proxy.name} is not installed (Debian: nginx-light, haproxy)`,
      );
      continue;
    }
    await check(`${proxy.name}: calls held for seconds come through, none is sent twice`, () =>
      withProxy(proxy, heldProblems),
    );
    await check(`${proxy.name}: replacing three gateways one by one loses and doubles nothing`, () =>
      withProxy(proxy, rollingProblems),
    );
  }
  return undefined;
}

async function withProxy(proxy, run) {
  // Four in flight over all gateways together, so a burst of calls is held.
  const fleet = await startFleet({ limits: { requestsPerMinute: 600, maxInFlight: 4 } });
  let front;
  try {
    const gateways = [];
    for (let at = 0; at < 3; at += 1) gateways.push(await fleet.gateway());
    const port = await freePort();
    front = proxy.launch(fleet.folder, port, gateways);
    const base = `http://127.0.0.1:${port}`;
    await responds(base, front);
    return await run({ fleet, gateways, base });
  } finally {
    await front?.stop();
    await fleet.stop();
  }
}

/** The data port knows no health route: any response of the gateway will do. */
const responds = (base, front) =>
  until(
    'the proxy passes calls on',
    60_000,
    () =>
      fetch(`${base}/activity`).then(
        ({ status }) => status === 401,
        () => false,
      ),
    front.said,
  );

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
  return [
    ...problemsOf(results, fleet.upstream.seen),
    ...(longest < 2000
      ? [
          `nothing was held long enough, so the gateways do not share the limit of 4 in flight: longest ${longest} ms`,
        ]
      : []),
  ];
}

/** Steady calls while each gateway is drained and started anew, as a Deployment's rollout does. */
async function rollingProblems({ fleet, gateways, base }) {
  const results = [];
  const pending = new Set();
  let going = true;
  const load = (async () => {
    for (let n = 0; going; n += 1) {
      const one = call(base, { id: `roll-${n}`, upstreamMs: 300 }).then((result) => {
        results.push(result);
        pending.delete(one);
      });
      pending.add(one);
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
  await Promise.all(pending);
  const unclean = exits
    .filter((exit) => exit.code !== 0)
    .map((exit) => `a gateway ended with ${JSON.stringify(exit)}`);
  return [
    ...problemsOf(results, fleet.upstream.seen),
    ...unclean,
    ...(results.length < 20 ? ['too little load'] : []),
  ];
}
