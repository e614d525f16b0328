/** `npm run packaging:generate`: writes every generated packaging file. `--check` only compares and names what drifted. */
import { chartFiles } from './chart-files.mjs';
import { schemaText } from './chart-schema.mjs';
import { drifted, leftOver, remove, write } from './generated.mjs';
import { manifestFiles } from './manifests.mjs';
import { installTools } from './tools.mjs';

/** @returns {Promise<Map<string, string>>} every generated file; those the chart reads come first */
async function sources() {
  return new Map([['helm/sluice/values.schema.json', await schemaText()], ...chartFiles()]);
}

const stale = (files) => [
  ...leftOver('k8s/base', files),
  // As long as grafana/ has no rules or dashboards, the chart keeps its own.
  ...['helm/sluice/files/rules', 'helm/sluice/dashboards'].flatMap((folder) =>
    [...files.keys()].some((path) => path.startsWith(folder)) ? leftOver(folder, files) : [],
  ),
];

/** @returns {Promise<string[]>} what differs, empty when all is current */
export async function check(helm) {
  const files = new Map([...(await sources()), ...(await manifestFiles(helm))]);
  return [...drifted(files), ...stale(files)];
}

async function generate(helm) {
  await write(await sources());
  const files = new Map([...(await sources()), ...(await manifestFiles(helm))]);
  await write(files);
  remove(stale(files));
}

if (import.meta.main) {
  const { helm4 } = installTools();
  if (process.argv.includes('--check')) {
    const found = await check(helm4);
    for (const path of found) console.log(`differs from its source: ${path}`);
    process.exitCode = found.length > 0 ? 1 : 0;
  } else {
    await generate(helm4);
  }
}
