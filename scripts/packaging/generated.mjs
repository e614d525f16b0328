/**
 * Which packaging files are generated, and from what. `npm run packaging:generate` writes them all; verify:packaging
 * fails when one differs from what its source says, so a generated file can never drift unnoticed.
 */
import { existsSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { mkdir, writeFile } from 'node:fs/promises';
import { dirname, join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';
import prettier from 'prettier';

export const root = fileURLToPath(new URL('../../', import.meta.url));
export const chart = join(root, 'helm/sluice');

/** Text in the repository's own format; `name` tells the parser. */
export async function formatted(text, name) {
  const options = await prettier.resolveConfig(join(root, name));
  return prettier.format(text, { ...options, filepath: name });
}

/** @param {Map<string, string>} files path from the root → wanted text. @returns paths that differ or are missing */
export function drifted(files) {
  return [...files]
    .filter(
      ([path, text]) => !existsSync(join(root, path)) || readFileSync(join(root, path), 'utf8') !== text,
    )
    .map(([path]) => path);
}

/** Files of a folder that is generated as a whole, but that nothing generates any more. */
export function leftOver(folder, files) {
  const path = join(root, folder);
  if (!existsSync(path)) return [];
  return readdirSync(path, { withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => relative(root, join(path, entry.name)))
    .filter((file) => !files.has(file));
}

export async function write(files) {
  for (const [path, text] of files) {
    await mkdir(dirname(join(root, path)), { recursive: true });
    await writeFile(join(root, path), text);
  }
}

export const remove = (paths) => paths.forEach((path) => rmSync(join(root, path)));
