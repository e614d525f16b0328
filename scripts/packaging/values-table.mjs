/**
 * The table of values in helm/sluice/README.md, read from values.yaml: each "# --" comment describes the value below it.
 * A value without a description is an error, so the table is complete.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { isMap, isScalar, parseDocument } from 'yaml';
import { chart } from './generated.mjs';

const START = '<!-- values: generated from values.yaml -->';
const END = '<!-- /values -->';

function description(comment) {
  const lines = (comment ?? '').split('\n').map((line) => line.trim());
  const at = lines.findLastIndex((line) => line.startsWith('-- '));
  return at < 0 ? null : lines.slice(at).join(' ').slice(3).trim();
}

const cell = (text) => text.replaceAll('|', '\\|').replaceAll('\n', ' ');

/** Rows of one map: a described key is one row; an undescribed one must be a map whose keys are described. */
function rowsOf(map, path) {
  return map.items.flatMap((pair, index) => {
    const key = String(pair.key.value);
    const name = path === '' ? key : `${path}.${key}`;
    // The parser hands the comment above a map's first key to the map itself.
    const comment = pair.key.commentBefore ?? (index === 0 ? map.commentBefore : null);
    const text = description(comment);
    if (text !== null) return [`| \`${name}\` | ${cell(`\`${shown(pair.value)}\``)} | ${cell(text)} |`];
    if (isMap(pair.value)) return rowsOf(pair.value, name);
    throw new Error(`values.yaml: ${name} has no description ("# -- …" above it)`);
  });
}

function shown(node) {
  const text = JSON.stringify(isScalar(node) ? node.value : node.toJSON());
  return text.length > 90 ? `${text.slice(0, 88)}…` : text;
}

/** @returns {string} README.md with a fresh table */
export function readmeText() {
  const document = parseDocument(readFileSync(join(chart, 'values.yaml'), 'utf8'));
  const rows = rowsOf(document.contents, '');
  const readme = readFileSync(join(chart, 'README.md'), 'utf8');
  const before = readme.slice(0, readme.indexOf(START) + START.length);
  const after = readme.slice(readme.indexOf(END));
  const table = ['| value | default | what |', '|---|---|---|', ...rows].join('\n');
  return `${before}\n\n${table}\n\n${after}`;
}
