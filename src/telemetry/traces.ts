/**
 * Turns tracing on, only when somebody configured where spans go; what a span says is in `spans.ts`.
 *
 * The SDK costs 0.2 s of CPU and 20 MB to load, and started without configuration it would export to
 * localhost: both are avoided by importing it only here, only then. Nothing is instrumented automatically, because that
 * records target URLs and script arguments and would hand the client's `baggage` to the upstream.
 */
import { trace } from '@opentelemetry/api';
import type { Tracing } from './spans.ts';

type Environment = Readonly<Record<string, string | undefined>>;

/** True when the standard variables name a place for spans and do not switch tracing off. */
export function tracingConfigured(env: Environment): boolean {
  if (env['OTEL_SDK_DISABLED']?.toLowerCase() === 'true') return false;
  const exporters = (env['OTEL_TRACES_EXPORTER'] ?? '').split(',').map((name) => name.trim());
  if (exporters.includes('none')) return false;
  return (
    exporters.some((name) => name !== '') ||
    Boolean(env['OTEL_EXPORTER_OTLP_ENDPOINT']) ||
    Boolean(env['OTEL_EXPORTER_OTLP_TRACES_ENDPOINT'])
  );
}

/**
 * Starts the SDK when `env` configures an exporter, else gives `null` and loads nothing. The SDK reads the other
 * standard variables (endpoint, protocol, headers, batching, sampler, resource attributes) from the process's environment itself.
 * `instanceId` names this replica in `service.instance.id`.
 */
export async function startTracing(env: Environment, instanceId: string): Promise<Tracing | null> {
  if (!tracingConfigured(env)) return null;
  const [{ NodeSDK }, resources] = await Promise.all([
    import('@opentelemetry/sdk-node'),
    import('@opentelemetry/resources'),
  ]);
  const { defaultResource, detectResources, resourceFromAttributes } = resources;
  const { resourceAttributesEnvDetector, serviceNameEnvDetector } = resources;
  const resource = defaultResource()
    .merge(resourceFromAttributes({ 'service.name': 'sluice', 'service.instance.id': instanceId }))
    .merge(detectResources({ detectors: [resourceAttributesEnvDetector, serviceNameEnvDetector] }));
  const sdk = new NodeSDK({
    resource,
    // The SDK's other detectors would add host names and the command line.
    autoDetectResources: false,
    // Spans are given their parents explicitly, and nothing is put into requests but a `traceparent`.
    textMapPropagator: null,
    instrumentations: [],
    metricReaders: [],
    logRecordProcessors: [],
  });
  sdk.start();
  return { tracer: trace.getTracer('sluice'), close: () => sdk.shutdown() };
}
