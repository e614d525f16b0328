/** What the image installs is under a licence that is named, and is in the bill of materials with its version. */
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { expect, test } from '@jest/globals';

const textOf = (path: string): string => readFileSync(new URL(`../../${path}`, import.meta.url), 'utf8');
const page = textOf('SECURITY.md');
const manifest = JSON.parse(textOf('package.json')) as {
  readonly scripts: Readonly<Record<string, string>>;
};
interface Locked {
  readonly license?: string;
  readonly version?: string;
  readonly dev?: boolean;
  readonly optional?: boolean;
  /** A workspace of this repository. */
  readonly link?: boolean;
}
const { packages } = JSON.parse(textOf('package-lock.json')) as {
  readonly packages: Readonly<Record<string, Locked>>;
};
const installed = Object.entries(packages).filter(
  ([path, { dev, optional, link }]) => path.startsWith('node_modules/') && !(dev || optional || link),
);

test('every package of the image is under a licence that the page names', () => {
  const unknown = installed.filter(([, { license = 'none' }]) => !page.includes(license));
  expect(unknown.map(([path]) => path)).toEqual([]);
  expect(installed.length).toBeGreaterThan(100);
});

test('the bill of materials has every package of the image with its version', () => {
  const [program = '', ...words] = (manifest.scripts['sbom'] ?? '').split(' ');
  const cwd = new URL('../../', import.meta.url).pathname;
  const written = execFileSync(program, words, { cwd, encoding: 'utf8', maxBuffer: 50_000_000 });
  const bill = JSON.parse(written) as {
    readonly bomFormat: string;
    readonly metadata: { readonly component: { readonly name: string; readonly 'bom-ref': string } };
    readonly dependencies: readonly { readonly ref: string; readonly dependsOn: readonly string[] }[];
    readonly components: readonly { readonly purl?: string; readonly version: string }[];
  };
  expect(bill.bomFormat).toBe('CycloneDX');
  const { name, 'bom-ref': ref } = bill.metadata.component;
  const own = bill.dependencies.find((one) => one.ref === ref);
  expect([name, own?.dependsOn.some((on) => on.startsWith('express@'))]).toEqual(['sluice', true]);
  const versions = new Set(
    bill.components.map(({ purl = '' }) => decodeURIComponent(purl.split('?')[0] ?? '')),
  );
  const missing = installed
    .map(([path, { version }]) => `pkg:npm/${path.split('node_modules/').at(-1)}@${version}`)
    .filter((purl) => !versions.has(purl));
  expect(missing).toEqual([]);
});
