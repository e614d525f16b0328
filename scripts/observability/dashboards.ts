/**
 * The dashboards over a recording (`recording.ts`): every query is asked as Grafana asks it, and every panel must find something in a
 * time in which everything happened.
 */
import { available } from '../fleet/processes.ts';
import { dashboards } from '../grafana/dashboards.ts';
import type { Report } from '../report.ts';
import { makeRecording } from './recording.ts';

/** What the variables of the dashboards stand for. */
const variables = { $__rate_interval: '10s', $upstream: 'openai', $namespace: '.*' };
export const filledIn = (query: string): string =>
  Object.entries(variables).reduce((text, [name, value]) => text.replaceAll(name, value), query);

/** The queries of each panel of a dashboard, by its title. */
export const queriesOf = (builder: (typeof dashboards)[keyof typeof dashboards]) =>
  (builder.build().panels ?? []).flatMap((panel) => {
    const targets =
      'targets' in panel ? ((panel.targets ?? []) as readonly { readonly expr?: string }[]) : [];
    const queries = targets.map(({ expr = '' }) => filledIn(expr));
    return queries.length === 0 ? [] : [{ title: panel.title ?? '', queries }];
  });

/** Empty where all is well, or within four minutes: what these count is rare, or has no series before it first happens. */
const mayBeEmpty = new Set(['Leases lost', 'Turned away, by bound']);

export async function verifyDashboards(report: Report): Promise<void> {
  if (!available('prometheus', 'prometheus')) return report.skipped('dashboards', 'no prometheus');
  try {
    const recording = await makeRecording();
    for (const builder of Object.values(dashboards)) {
      const { title: name, annotations } = builder.build();
      const empty: string[] = [];
      for (const { title, queries } of queriesOf(builder))
        if (!(await Promise.all(queries.map(recording.finds))).includes(true)) empty.push(title);
      const wrong = empty.filter((title) => !mayBeEmpty.has(title));
      report.check(`${name}: every panel finds something`, wrong.length === 0, wrong.join('\n'));
      const isMarked = await recording.finds(filledIn(annotations?.list?.[0]?.expr ?? ''));
      report.check(`${name}: a configuration that was taken over is marked`, isMarked);
    }
  } catch (failure) {
    report.check('dashboards: a recording', false, String(failure));
  }
}
