/**
 * Strict validation of single objects against the Kubernetes and CRD types, in two passes that are both needed: each
 * model's validate() finds wrong types, patterns and missing fields; `tsc --strict` on the objects as typed constants
 * finds unknown fields. Rules between objects are in rules.mjs.
 */
import { spawnSync } from 'node:child_process';
import { cpSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { nameOf } from './documents.mjs';

const PACKAGES = [
  [/^monitoring\.coreos\.com\//, '@kubernetes-models/prometheus-operator'],
  [/^keda\.sh\//, '@kubernetes-models/keda'],
  [/^gateway\.networking\.k8s\.io\//, '@kubernetes-models/gateway-api'],
  [/^external-secrets\.io\//, '@kubernetes-models/external-secrets'],
  [/./, 'kubernetes-models'],
];
/** Kinds that no package has: their types are in gke-types.ts, and only the compiler checks them. */
const OWN = /^(networking\.gke\.io|cloud\.google\.com)\//;

function moduleOf({ apiVersion }) {
  if (OWN.test(apiVersion)) return './gke-types.ts';
  return `${PACKAGES.find(([group]) => group.test(apiVersion))[1]}/${apiVersion}`;
}

async function modelProblems(object, load) {
  if (OWN.test(object.apiVersion)) return [];
  const module = await load(moduleOf(object)).catch(() => ({}));
  const Model = module[object.kind];
  if (Model === undefined) return [`${nameOf(object)}: no type is known for it`];
  try {
    new Model(structuredClone(object)).validate();
    return [];
  } catch (error) {
    return [`${nameOf(object)}: ${error.message}`];
  }
}

/**
 * @param {{dir: string}} tools
 * @param {Map<string, object[]>} sets name of a render → its objects; one compiler run for all of them
 * @returns {Promise<string[]>} problems
 */
export async function validate(tools, sets) {
  const { load } = await import(pathToFileURL(join(tools.dir, 'load.mjs')).href);
  const problems = [];
  const sources = [];
  const names = [];
  for (const [set, objects] of sets) {
    for (const object of objects) {
      problems.push(...(await modelProblems(object, load)).map((problem) => `${set}: ${problem}`));
      // In a manifest null means "not set"; the types have no null.
      const text = JSON.stringify(object, (_, value) => value ?? undefined);
      const type = `import('${moduleOf(object)}').I${object.kind}`;
      sources.push(`export const object${names.length}: ${type} = ${text};`);
      names.push(`${set}: ${nameOf(object)}`);
    }
  }
  return [...problems, ...compilerProblems(tools, sources, names)];
}

function compilerProblems(tools, sources, names) {
  const folder = mkdtempSync(join(tools.dir, 'check-'));
  try {
    cpSync(fileURLToPath(new URL('gke-types.ts', import.meta.url)), join(folder, 'gke-types.ts'));
    writeFileSync(join(folder, 'check.ts'), sources.join('\n'));
    const flags = [
      '--noEmit',
      '--strict',
      '--skipLibCheck',
      '--allowImportingTsExtensions',
      '--target',
      'es2022',
    ];
    const modules = ['--module', 'nodenext', '--moduleResolution', 'nodenext'];
    const compiler = join(tools.dir, 'node_modules/typescript/bin/tsc');
    const run = spawnSync(process.execPath, [compiler, ...flags, ...modules, 'check.ts'], {
      cwd: folder,
      encoding: 'utf8',
    });
    if (run.status === 0) return [];
    const lines = run.stdout
      .trim()
      .split('\n')
      .filter((line) => line.startsWith('check.ts'));
    return lines.map((line) => {
      const [, number, text] = line.match(/^check\.ts\((\d+),\d+\): error TS\d+: (.*)$/) ?? [null, '0', line];
      return `${names[Number(number) - 1] ?? 'check'}: ${text}`;
    });
  } finally {
    rmSync(folder, { recursive: true });
  }
}
