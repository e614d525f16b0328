/**
 * Panels in the looks of all Sluice dashboards. Owns units, colours, sizes and the habits of queries: gauges of a shared
 * bucket are the same on every replica (`max`), queues are each replica's own (`sum`), and a legend names a label.
 */
import {
  FieldColorModeId,
  ThresholdsConfigBuilder,
  ThresholdsMode,
  type DataSourceRef,
} from '@grafana/grafana-foundation-sdk/dashboard';
import { FieldColorBuilder } from '@grafana/grafana-foundation-sdk/dashboard';
import {
  GraphDrawStyle,
  LegendDisplayMode,
  LegendPlacement,
  StackingMode,
  TooltipDisplayMode,
  VizLegendOptionsBuilder,
  VizTooltipOptionsBuilder,
  StackingConfigBuilder,
  ReduceDataOptionsBuilder,
} from '@grafana/grafana-foundation-sdk/common';
import { PanelBuilder as HeatmapPanel } from '@grafana/grafana-foundation-sdk/heatmap';
import { DataqueryBuilder, PromQueryFormat } from '@grafana/grafana-foundation-sdk/prometheus';
import { PanelBuilder as StatPanel } from '@grafana/grafana-foundation-sdk/stat';
import { PanelBuilder as TimeseriesPanel } from '@grafana/grafana-foundation-sdk/timeseries';

/** The data source is chosen on the dashboard. */
export const datasource: DataSourceRef = { type: 'prometheus', uid: '${datasource}' };

/** Queries, by the legend of their series. */
export type Queries = Readonly<Record<string, string>>;

/** Colours from 0 on, from the first number on, and from the second. */
const steps = (colours: readonly string[], ...from: readonly number[]) =>
  new ThresholdsConfigBuilder()
    .mode(ThresholdsMode.Absolute)
    .steps(colours.map((color, at) => ({ value: from[at - 1] ?? null, color })));

/** The query within the namespaces that the dashboard shows; where metrics have no namespace, all of them. */
export const scoped = (expr: string): string =>
  expr.replaceAll(/\b(sluice_[a-z0-9_]+)(\{)?/g, (_all, name: string, brace?: string) =>
    brace === undefined ? `${name}{namespace=~"$namespace"}` : `${name}{namespace=~"$namespace",`,
  );

const queriesOf = (queries: Queries) =>
  Object.entries(queries).map(([legend, expr], at) =>
    new DataqueryBuilder().refId('ABCDEFGH'[at] ?? 'Z').datasource(datasource).expr(scoped(expr)).legendFormat(legend).range(),
  );

/**
 * Lines over time, a third of the row wide unless `style` says otherwise. `means`: what it means and what to do, shown behind the panel's
 * information sign.
 */
export function lines(
  title: string,
  means: string,
  unit: string,
  queries: Queries,
  style: { readonly stacked?: boolean; readonly span?: number } = {},
) {
  const panel = new TimeseriesPanel()
    .title(title)
    .description(means)
    .datasource(datasource)
    .unit(unit)
    .min(0)
    .height(8)
    .span(style.span ?? 8)
    .lineWidth(2)
    .fillOpacity(style.stacked === true ? 60 : 8)
    .drawStyle(GraphDrawStyle.Line)
    .legend(
      new VizLegendOptionsBuilder()
        .showLegend(true)
        .displayMode(LegendDisplayMode.List)
        .placement(LegendPlacement.Bottom)
        .calcs(['lastNotNull', 'max']),
    )
    .tooltip(new VizTooltipOptionsBuilder().mode(TooltipDisplayMode.Multi));
  if (style.stacked === true) panel.stacking(new StackingConfigBuilder().mode(StackingMode.Normal).group('A'));
  return panel.targets(queriesOf(queries));
}

const colours = ['green', 'orange', 'red'];

/** One number now, coloured by what it means. */
export function figure(
  title: string,
  means: string,
  unit: string,
  query: Queries,
  { amber, red }: { readonly amber: number; readonly red: number },
  sense: 'less is better' | 'more is better' = 'less is better',
) {
  return new StatPanel()
    .title(title)
    .description(means)
    .datasource(datasource)
    .unit(unit)
    .height(4)
    .span(4)
    .thresholds(sense === 'less is better' ? steps(colours, amber, red) : steps(colours.toReversed(), red, amber))
    .colorScheme(new FieldColorBuilder().mode(FieldColorModeId.Thresholds))
    .reduceOptions(new ReduceDataOptionsBuilder().calcs(['lastNotNull']))
    .targets(queriesOf(query));
}

/** Distribution over time from a histogram's buckets. */
export function heatmap(title: string, means: string, query: Queries) {
  return new HeatmapPanel()
    .title(title)
    .description(means)
    .datasource(datasource)
    .height(9)
    .span(12)
    .calculate(false)
    .targets(queriesOf(query).map((one) => one.format(PromQueryFormat.Heatmap)));
}

export type Panel = ReturnType<typeof lines> | ReturnType<typeof figure> | ReturnType<typeof heatmap>;

/** Quantile of a histogram over its rate window, by some labels. */
export const quantile = (share: number, metric: string, by: string, selector = ''): string =>
  `histogram_quantile(${share}, sum by (le, ${by}) (rate(${metric}_bucket${selector}[$__rate_interval])))`;
