/**
 * Writes a registry as Prometheus text or, on request, as OpenMetrics. Does not own what is counted
 * and which form a scraper asked for.
 *
 * prom-client renames counters *in place* when it writes OpenMetrics (it strips `_total` from the metric's own name
 * and never puts it back), so the next plain scrape would lose the suffix. Here the OpenMetrics form is written from
 * renamed views; the metrics keep their names.
 */
import {
  Registry,
  type Metric,
  type MetricObject,
  type OpenMetricsContentType,
  type RegistryContentType,
} from 'prom-client';

/** `prometheus`: text format 0.0.4. `openmetrics`: OpenMetrics 1.0.0, where exemplars can be shown. */
export type MetricsFormat = 'prometheus' | 'openmetrics';

/** Text of a scrape and its content type. */
export interface MetricsPage {
  readonly contentType: string;
  readonly body: string;
}

/** The part of prom-client's metric classes that its registry calls, missing from its types. */
interface Renderable {
  readonly name: string;
  readonly type: string;
  get(): Promise<MetricObject>;
  getForPromString?(): Promise<MetricObject>;
}

function renamedView(metric: Renderable): Renderable {
  const name = metric.name.replace(/_total$/, '');
  const read = () => metric.getForPromString?.() ?? metric.get();
  return { name, type: metric.type, get: async () => ({ ...(await read()), name }) };
}

/** A registry to create metrics in. It never writes itself: prom-client ties exemplars to OpenMetrics registries. */
export function createRegistry(): Registry<OpenMetricsContentType> {
  const registry = new Registry<OpenMetricsContentType>();
  registry.setContentType(Registry.OPENMETRICS_CONTENT_TYPE);
  return registry;
}

/** Writes all metrics of `registry` in `format`. */
export async function writeMetrics(
  registry: Registry<OpenMetricsContentType>,
  format: MetricsFormat,
): Promise<MetricsPage> {
  const open = format === 'openmetrics';
  const contentType = open ? Registry.OPENMETRICS_CONTENT_TYPE : Registry.PROMETHEUS_CONTENT_TYPE;
  const writer = new Registry<RegistryContentType>();
  writer.setContentType(contentType);
  for (const metric of registry.getMetricsAsArray() as readonly unknown[] as readonly Renderable[]) {
    const view = open && metric.type === 'counter' ? renamedView(metric) : metric;
    writer.registerMetric(view as unknown as Metric);
  }
  return { contentType, body: await writer.metrics() };
}
