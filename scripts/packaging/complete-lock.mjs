/**
 * Completes package-lock.json by the optional packages of other platforms. npm leaves out those that the registry in use
 * does not have, and `npm ci` of npm 11.19 then refuses the whole file ("Missing: … from lock file"), also on platforms
 * that never install them. Entries without a hash are added: version, platform, nothing that is downloaded here.
 * Run it after a dependency with platform packages changed: node scripts/packaging/complete-lock.mjs
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

const file = fileURLToPath(new URL('../../package-lock.json', import.meta.url));
const systems = /android|darwin|freebsd|linux|win32|openharmony|netbsd|openbsd|aix|sunos/;
const processors = /arm64|arm|x64|ia32|ppc64|riscv64|s390x|loong64|wasm32|mips64el/;

/** What the name of a platform package says about where it is installed. */
function platformOf(name) {
  const os = systems.exec(name)?.[0];
  const cpu = processors.exec(name)?.[0];
  const libc =
    os === 'linux' && (name.includes('musl') ? 'musl' : name.includes('gnu') ? 'glibc' : undefined);
  return { ...(cpu && { cpu: [cpu] }), ...(os && { os: [os] }), ...(libc && { libc: [libc] }) };
}

const lock = JSON.parse(readFileSync(file, 'utf8'));
for (const [path, entry] of Object.entries(lock.packages)) {
  for (const [name, version] of Object.entries(entry.optionalDependencies ?? {})) {
    const at = `node_modules/${name}`;
    if (lock.packages[at] !== undefined || lock.packages[`${path}/${at}`] !== undefined) continue;
    lock.packages[at] = { version, ...platformOf(name), ...(entry.dev && { dev: true }), optional: true };
  }
}
const sorted = Object.entries(lock.packages).sort(([a], [b]) => a.localeCompare(b, 'en'));
writeFileSync(file, `${JSON.stringify({ ...lock, packages: Object.fromEntries(sorted) }, null, 2)}\n`);
