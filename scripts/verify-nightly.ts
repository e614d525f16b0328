/**
 * `npm run verify:nightly [-- --only=<parts, by comma>] [--weekly] [--write]`: everything that the gate on each change leaves out, one
 * part after the other. Goes on after a part that failed, and ends with a table of the parts and one of the figures beside the committed ones
 * (`docs/performance/nightly.json`, which `--write` renews). Exit code 1 when a part failed: figures alone never fail the run, a part
 * judges what it promises. Parts that take hours run on Sundays (UTC), with `--weekly`, or where they are named.
 */
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { cpus } from 'node:os';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { format } from 'prettier';
import { compare, merged, originOf, rowsOf, tableHead, type Measurements } from './nightly/figures.ts';
import { parts } from './nightly/parts.ts';
import { runPart, type Outcome } from './nightly/run.ts';

const { values } = parseArgs({
  options: {
    only: { type: 'string' },
    weekly: { type: 'boolean', default: new Date().getUTCDay() === 0 },
    write: { type: 'boolean', default: false },
  },
});
const only = values.only?.split(',') ?? null;
const unknown = only?.filter((name) => !parts.some((part) => part.name === name)) ?? [];
if (unknown.length > 0) {
  console.error(`no such part: ${unknown.join(', ')}; there are ${parts.map(({ name }) => name).join(', ')}`);
  process.exit(2);
}

const outcomes = new Map<string, Outcome>();
for (const part of parts) {
  if (only !== null ? !only.includes(part.name) : part.isWeekly === true && !values.weekly) continue;
  console.log(`\n=== ${part.name}: ${part.what} (${new Date().toISOString().slice(11, 19)})`);
  outcomes.set(part.name, await runPart(part));
}

console.log('\n| part | result | minutes | what it says |\n|---|---|---|---|');
for (const [name, { result, minutes, words }] of outcomes)
  console.log(`| ${name} | ${result} | ${minutes.toFixed(1)} | ${words} |`);
const left = parts.filter(({ name }) => !outcomes.has(name));
if (left.length > 0) console.log(`\nnot asked for: ${left.map(({ name }) => name).join(', ')}`);

const file = fileURLToPath(new URL('../docs/performance/nightly.json', import.meta.url));
const committed = existsSync(file) ? (JSON.parse(readFileSync(file, 'utf8')) as Measurements) : {};
const processors = cpus();
const origin = {
  machine: `${processors.length} × ${processors[0]?.model.trim() ?? 'unknown'}`,
  node: process.versions.node,
  day: new Date().toISOString().slice(0, 10),
};
const now: Measurements = Object.fromEntries(
  [...outcomes].map(([name, { load, figures }]) => [name, { ...origin, load, figures }]),
);
console.log('\nfigures, less is better');
for (const [name, measured] of Object.entries(now)) {
  const before = committed[name];
  console.log(`${name} now: ${originOf(measured)}`);
  console.log(`${name} before: ${before === undefined ? 'none committed' : originOf(before)}`);
}
console.log(tableHead);
for (const [name, measured] of Object.entries(now))
  for (const row of rowsOf(name, compare(measured, committed[name] ?? null))) console.log(row);
if (values.write) {
  // What a part measured that failed is not what the next one should be compared with.
  const sound = Object.entries(now).filter(([name]) => outcomes.get(name)?.result !== 'FAILED');
  const text = JSON.stringify(merged(committed, Object.fromEntries(sound)));
  writeFileSync(file, await format(text, { parser: 'json', printWidth: 110 }));
  console.log(`\nwritten: ${file}`);
}
process.exitCode = [...outcomes.values()].some(({ result }) => result === 'FAILED') ? 1 : 0;
