/**
 * `npm run packaging:generate`: writes every packaging file that has its source elsewhere; verify:packaging fails when one differs from what
 * its source says. Rules and dashboards have one home, grafana/; a chart can only read files inside its own folder, so they are copied.
 */
import { existsSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { root } from '../fleet/processes.ts';
import { schemaText } from './chart-schema.mjs';
import { manifestFiles } from './manifests.mjs';
import { installTools } from './tools.mjs';

const copies = [
  { from: 'grafana/rules', to: 'helm/sluice/files/rules', ending: '.yaml' },
  { from: 'grafana/dashboards', to: 'helm/sluice/dashboards', ending: '.json' },
];
/** Folders that are generated as a whole. */
const folders = ['k8s/base', ...copies.map(({ to }) => to)];

const read = (path) => readFileSync(join(root, path), 'utf8');

/** @returns {Map<string, string>} path of each copy in the chart → text */
export const chartFiles = () =>
  new Map(
    copies.flatMap(({ from, to, ending }) =>
      readdirSync(join(root, from))
        // promtool's unit tests lie beside the rules and are no rules.
        .filter((name) => name.endsWith(ending) && !name.includes('test'))
        .map((name) => [`${to}/${name}`, read(`${from}/${name}`)]),
    ),
  );

/** What the chart reads; manifests are rendered when it is there. */
const sources = async () =>
  new Map([['helm/sluice/values.schema.json', await schemaText()], ...chartFiles()]);
const everything = async (helm) => new Map([...(await sources()), ...(await manifestFiles(helm))]);

/** @param {Map<string, string>} files path from the root → wanted text. @returns paths that differ or are missing */
export const drifted = (files) =>
  [...files]
    .filter(([path, text]) => !existsSync(join(root, path)) || read(path) !== text)
    .map(([path]) => path);

/** Files that nothing generates any more. */
const leftOver = (files) =>
  folders
    .flatMap((folder) => readdirSync(join(root, folder)).map((name) => `${folder}/${name}`))
    .filter((path) => !files.has(path));

/** @returns {Promise<string[]>} what differs, empty when all is current */
export async function check(helm) {
  const files = await everything(helm);
  return [...drifted(files), ...leftOver(files)];
}

if (import.meta.main) {
  const { helm4 } = installTools();
  const write = (files) => files.forEach((text, path) => writeFileSync(join(root, path), text));
  write(await sources());
  const files = await everything(helm4);
  write(files);
  for (const path of leftOver(files)) rmSync(join(root, path));
}
