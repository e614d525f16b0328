/**
 * Rules and dashboards have one home, grafana/; a chart can only read files inside its own folder, so they are copied
 * there. Rules may use one `groups:` list per file; dashboards are plain Grafana JSON.
 */
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { root } from './generated.mjs';

const copies = [
  { from: 'grafana/rules', to: 'helm/sluice/files/rules', ending: '.yaml' },
  { from: 'grafana', to: 'helm/sluice/dashboards', ending: '.json' },
  { from: 'grafana/dashboards', to: 'helm/sluice/dashboards', ending: '.json' },
];

/** @returns {Map<string, string>} path in the chart → text */
export function chartFiles() {
  const files = new Map();
  for (const { from, to, ending } of copies) {
    if (!existsSync(join(root, from))) continue;
    const found = readdirSync(join(root, from), { withFileTypes: true });
    // promtool's unit tests lie beside the rules and are no rules.
    const wanted = found.filter(
      (entry) => entry.isFile() && entry.name.endsWith(ending) && !entry.name.includes('test'),
    );
    for (const { name } of wanted) files.set(`${to}/${name}`, readFileSync(join(root, from, name), 'utf8'));
  }
  return files;
}
