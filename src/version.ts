import { readFileSync } from 'node:fs';
import { findPackageJSON } from 'node:module';

/** The version of the package. */
export function packageVersion(): string {
  const text = readFileSync(findPackageJSON(import.meta.url) ?? '', 'utf8');
  const { version } = JSON.parse(text) as { readonly version: string };
  return version;
}
