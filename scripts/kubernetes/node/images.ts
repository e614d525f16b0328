/**
 * The images that the node runs, as archives in the cache: the gateway from the real Dockerfile on local stand-ins of its
 * base images (no registry is asked), Debian's Redis under the name that the chart uses, and the pause container.
 */
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { execFileSync } from 'node:child_process';
import { homedir } from 'node:os';
import { dirname, join } from 'node:path';
import { BUILD, makeBaseImages, RUNTIME } from '../../packaging/base-images.mjs';
import { root } from '../../packaging/generated.mjs';
import { binaryOf, cacheFolder } from '../programs.ts';

/** As the chart names it. */
export const GATEWAY = 'docker.io/library/sluice:0.1.0';
const REDIS = 'docker.io/library/redis:8.2-alpine';
export const PAUSE = 'localhost/pause:1';

/** Shared with verify:packaging, which makes the same base images. */
const shared = join(process.env['XDG_CACHE_HOME'] ?? join(homedir(), '.cache'), 'sluice-packaging-images');
const storage = ['--root', join(shared, 'storage'), '--runroot', join(shared, 'run')];
const environment = { ...process.env, BUILDAH_ISOLATION: 'chroot' };

function run(program: string, args: readonly string[]): string {
  const all = ['-n', '19', program, ...args];
  return execFileSync('nice', all, {
    encoding: 'utf8',
    cwd: root,
    env: environment,
    maxBuffer: 1 << 26,
    stdio: 'pipe',
  });
}
const buildah = (args: readonly string[]): string => run('buildah', [...storage, ...args]);

/** What the image is made of: another content, another image. */
function contentHash(): string {
  const hash = createHash('sha256');
  const add = (path: string): void => {
    const full = join(root, path);
    if (!existsSync(full)) return;
    hash.update(path).update(readFileSync(full));
  };
  for (const path of ['Dockerfile', '.dockerignore', 'package.json', 'package-lock.json']) add(path);
  for (const path of ['tsconfig.json', 'tsconfig.build.json', 'scripts/build.mjs']) add(path);
  for (const folder of ['src', 'demo', 'presets', 'simulators', 'tools'])
    for (const entry of readdirSync(join(root, folder), { recursive: true, withFileTypes: true }))
      if (entry.isFile()) add(join(entry.parentPath, entry.name).slice(root.length));
  return hash.digest('hex').slice(0, 16);
}

/** Makes an archive unless it is there. */
function archive(name: string, image: string, make: () => void): string {
  const folder = join(cacheFolder, 'images');
  mkdirSync(folder, { recursive: true });
  const file = join(folder, `${name}.tar`);
  if (existsSync(file)) return file;
  for (const old of readdirSync(folder))
    if (old.split('.')[0] === name.split('.')[0]) rmSync(join(folder, old));
  make();
  buildah(['push', '--quiet', image, `docker-archive:${file}.part:${image}`]);
  run('mv', [`${file}.part`, file]);
  return file;
}

function buildGateway(): void {
  makeBaseImages((args: string[]) => buildah(args), shared);
  const authority = process.env['NODE_EXTRA_CA_CERTS'];
  const behindProxy = authority
    ? ['-v', `${authority}:${authority}:ro`, '--build-arg', `NODE_EXTRA_CA_CERTS=${authority}`]
    : [];
  const bases = ['--build-arg', `BUILD_IMAGE=${BUILD}`, '--build-arg', `RUNTIME_IMAGE=${RUNTIME}`];
  const fixed = ['--pull=never', '--format', 'docker', '--layers=false', '--network', 'host'];
  buildah(['build', ...fixed, ...bases, ...behindProxy, '-t', GATEWAY, '.']);
}

/** Fills an empty image with files and gives it a configuration. */
function fromFiles(image: string, files: readonly string[], config: readonly string[]): void {
  const container = buildah(['from', 'scratch']).trim();
  const tree = buildah(['mount', container]).trim();
  for (const file of files) {
    const [from = '', into = from] = file.split('=>');
    mkdirSync(join(tree, dirname(into)), { recursive: true });
    run('cp', ['-L', from, join(tree, into)]);
  }
  run('mkdir', ['-p', '-m', '1777', join(tree, 'tmp')]);
  buildah(['umount', container]);
  buildah(['config', ...config, container]);
  buildah(['commit', '--quiet', '--rm', container, image]);
}

/** This machine's Redis with the libraries that it names. */
function buildRedis(): void {
  const programs = ['/usr/bin/redis-server', '/usr/bin/redis-cli'];
  const libraries = programs.flatMap((program) =>
    [...run('ldd', [program]).matchAll(/(\/\S+) \(0x/g)].map((found) => found[1] ?? ''),
  );
  const into = (program: string): string => `${program}=>/usr/local/bin/${program.split('/').at(-1) ?? ''}`;
  const all = [...new Set([...programs.map(into), ...libraries])];
  fromFiles(REDIS, all, ['--env', 'PATH=/usr/local/bin:/usr/bin:/bin', '--user', '999']);
}

/** @returns paths of docker archives. The first time takes minutes. */
export function makeImages(): string[] {
  const pause = [`${binaryOf('newest/pause')}=>/pause`];
  return [
    archive(`gateway.${contentHash()}`, GATEWAY, buildGateway),
    archive('redis.1', REDIS, buildRedis),
    archive('pause.1', PAUSE, () =>
      fromFiles(PAUSE, pause, ['--entrypoint', '["/pause"]', '--user', '65535']),
    ),
  ];
}
