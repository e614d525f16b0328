/**
 * Writes `grafana/dashboards/`: `node scripts/grafana/generate.ts`. `test/telemetry/dashboards.test.ts` holds the files to their code.
 */
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import type { Dashboard } from '@grafana/grafana-foundation-sdk/dashboard';
import { dashboards } from './dashboards.ts';

const folder = new URL('../../grafana/dashboards/', import.meta.url);

/** Panel numbers in reading order: links to a panel stay good while panels are added behind it. */
function finished(dashboard: Dashboard): Dashboard {
  // The SDK writes the fields of an interval variable into every variable; the schema knows them only there.
  for (const variable of dashboard.templating?.list ?? []) {
    delete variable.auto;
    delete variable.auto_min;
    delete variable.auto_count;
  }
  for (const [i, panel] of (dashboard.panels ?? []).entries()) panel.id = i + 1;
  return dashboard;
}

/** File name and text of every dashboard. */
export const files = (): readonly (readonly [string, string])[] =>
  Object.entries(dashboards).map(([name, builder]) => [`${name}.json`, `${JSON.stringify(finished(builder.build()), null, 2)}\n`]);

export function drifted(): readonly string[] {
  return files()
    .filter(([name, text]) => {
      const file = new URL(name, folder);
      return !existsSync(file) || readFileSync(file, 'utf8') !== text;
    })
    .map(([name]) => name);
}

if (import.meta.main) for (const [name, text] of files()) writeFileSync(new URL(name, folder), text);
