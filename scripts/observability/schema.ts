/**
 * Dashboards against the types of @grafana/schema, by the compiler: each checked-in file becomes a typed constant, so
 * that an unknown or misspelt field is an error.
 */
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { run } from '../processes.ts';
import type { Report } from '../report.ts';

const root = new URL('../../', import.meta.url);

/** The schema's enums as the strings and numbers that stand in a file. */
const head = `import type { Dashboard, Panel, RowPanel } from '@grafana/schema';
type Plain<T> = T extends string ? \`\${T}\` : T extends number ? number : T extends boolean | null | undefined ? T
  : T extends (infer U)[] ? Plain<U>[] : T extends object ? { [K in keyof T]: Plain<T[K]> } : T;
export type PlainDashboard = Plain<Omit<Dashboard, 'panels'>> & { panels: (Plain<Panel> | Plain<RowPanel>)[] };
`;

export function verifySchema(report: Report): void {
  const folder = new URL('node_modules/.cache/sluice-grafana/', root);
  rmSync(folder, { recursive: true, force: true });
  mkdirSync(folder, { recursive: true });
  const dashboards = new URL('grafana/dashboards/', root);
  for (const name of readdirSync(dashboards)) {
    const text = readFileSync(new URL(name, dashboards), 'utf8');
    writeFileSync(
      new URL(name.replace('.json', '.ts'), folder),
      `${head}export const dashboard: PlainDashboard = ${text};\n`,
    );
  }
  const options = {
    strict: true,
    noEmit: true,
    skipLibCheck: true,
    module: 'nodenext',
    target: 'es2023',
    types: [],
  };
  writeFileSync(
    new URL('tsconfig.json', folder),
    JSON.stringify({ compilerOptions: options, include: ['*.ts'] }),
  );
  const tsc = run(new URL('node_modules/.bin/tsc', root).pathname, ['-p', folder.pathname]);
  report.check('dashboards have the types of @grafana/schema', tsc.status === 0, tsc.output.slice(0, 3_000));
}
