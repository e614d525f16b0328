/**
 * Turns tracing on, only when somebody configured where spans go. Owns that decision and the SDK's start and stop;
 * does not own what a span says (`otel-spans.ts`).
 *
 * The SDK costs 0.2 s of CPU and 20 MB to load, and started without configuration it would export to
 * localhost: both are avoided by importing it only here, only then. Nothing is instrumented automatically, because that
 * records target URLs and script arguments and would hand the client's `baggage` to the upstream.
 */
import { systemRandom, type Random } from '../clock.ts';
import { samplingOf } from './sampling.policy.ts';
import type { Tracing } from './spans.ts';
import type { Log } from './events.ts';

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

/** `OTEL_RESOURCE_ATTRIBUTES`: `key=value` pairs, values percent-encoded. Broken pairs are left out. */
export function resourceAttributes(text: string | undefined): Record<string, string> {
  const attributes: Record<string, string> = {};
  for (const pair of (text ?? '').split(',')) {
    const at = pair.indexOf('=');
    if (at < 1) continue;
    try {
      attributes[decodeURIComponent(pair.slice(0, at).trim())] = decodeURIComponent(
        pair.slice(at + 1).trim(),
      );
    } catch {
      // Not percent-encoded text: the specification says to discard it.
    }
  }
  return attributes;
}

/**
 * Starts the SDK when `env` configures an exporter, else gives `null` and loads nothing. The SDK reads the other
 * standard variables (endpoint, protocol, headers, batching) from the process's environment itself.
 * `instanceId` names this replica in `service.instance.id`.
 */
export async function startTracing(
  env: Environment,
  instanceId: string,
  log: Log,
  random: Random = systemRandom,
): Promise<Tracing | null> {
  if (!tracingConfigured(env)) return null;
  const [{ NodeSDK }, { createOtelTracing, noContext }] = await Promise.all([
    import('@opentelemetry/sdk-node'),
    import('./otel-spans.ts'),
  ]);
  const named = resourceAttributes(env['OTEL_RESOURCE_ATTRIBUTES']);
  const attributes = {
    'service.instance.id': instanceId,
    ...named,
    'service.name': env['OTEL_SERVICE_NAME'] || named['service.name'] || 'sluice',
  };
  const sdk = new NodeSDK({
    // The SDK's own detectors would add host names and the command line.
    resourceDetectors: [{ detect: () => ({ attributes }) }],
    // Decided before a span is made: see sampling.policy.ts. 2 = record and sample.
    sampler: { shouldSample: () => ({ decision: 2 }), toString: () => 'decided by Sluice' },
    textMapPropagator: null,
    // Contexts are passed explicitly, so no context manager has to follow promises.
    contextManager: noContext,
    instrumentations: [],
    metricReaders: [],
    logRecordProcessors: [],
  });
  sdk.start();
  log.info('traces are exported', { service: attributes['service.name'] });
  return createOtelTracing({
    sampling: samplingOf(env['OTEL_TRACES_SAMPLER'], env['OTEL_TRACES_SAMPLER_ARG']),
    draw: () => random.next(),
    async close() {
      try {
        await sdk.shutdown();
      } catch (cause) {
        log.bug('the last traces could not be exported', cause);
      }
    },
  });
}
