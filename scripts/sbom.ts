/**
 * The bill of materials of what the image installs, as CycloneDX on standard output: `npm run -s sbom`. npm makes it of the whole
 * lock file; what only development needs is taken out here, because `npm sbom --omit dev` also leaves out packages that both need.
 */
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';

type Component = Readonly<Record<'bom-ref' | 'name' | 'version', string>>;
interface Bill {
  readonly metadata: { readonly component: Component };
  readonly components: readonly Component[];
  readonly dependencies: readonly { readonly ref: string; readonly dependsOn?: readonly string[] }[];
}

const root = new URL('../', import.meta.url);
const { packages } = JSON.parse(readFileSync(new URL('package-lock.json', root), 'utf8')) as {
  packages: Readonly<Record<string, { version?: string; dev?: boolean; optional?: boolean; link?: boolean }>>;
};
const installed = new Set(
  Object.entries(packages)
    // The root, and the folders of its workspaces, are none.
    .filter(
      ([path, { dev, optional, link }]) => path.startsWith('node_modules/') && !(dev || optional || link),
    )
    .map(([path, { version }]) => `${path.split('node_modules/').at(-1)}@${version}`),
);
const words = ['sbom', '--package-lock-only', '--sbom-format', 'cyclonedx'];
const options = { cwd: root.pathname, encoding: 'utf8', maxBuffer: 100_000_000 } as const;
const written = execFileSync('npm', words, { ...options, stdio: ['ignore', 'pipe', 'ignore'] });
const { metadata } = JSON.parse(written) as Bill;
// npm calls the project by the name of its folder.
const own = JSON.stringify(metadata.component['bom-ref']);
const whole = JSON.parse(written.replaceAll(own, `"sluice@${metadata.component.version}"`)) as Bill;
const component = { ...whole.metadata.component, name: 'sluice' };
const components = whole.components.filter(({ name, version }) => installed.has(`${name}@${version}`));
const kept = new Set([component, ...components].map((one) => one['bom-ref']));
const dependencies = whole.dependencies
  .filter(({ ref }) => kept.has(ref))
  .map(({ ref, dependsOn = [] }) => ({ ref, dependsOn: dependsOn.filter((on) => kept.has(on)) }));
const bill = { ...whole, metadata: { ...whole.metadata, component }, components, dependencies };
process.stdout.write(`${JSON.stringify(bill, null, 2)}\n`);
