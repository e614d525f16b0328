/** A real OTLP/HTTP receiver on loopback: keeps what exporters post as JSON. */
import { listening } from '../support/listening.ts';

export interface SinkSpan {
  readonly traceId: string;
  readonly spanId: string;
  readonly parentSpanId?: string;
  readonly name: string;
  readonly kind: number;
  readonly attributes: Record<string, unknown>;
  readonly status: { readonly code?: number };
  readonly resource: Record<string, unknown>;
}

interface Pair {
  readonly key: string;
  readonly value: Record<string, unknown>;
}
interface Exported {
  readonly resourceSpans: readonly {
    readonly resource: { readonly attributes: readonly Pair[] };
    readonly scopeSpans: readonly { readonly spans: readonly Record<string, unknown>[] }[];
  }[];
}

const plain = (pairs: readonly Pair[]): Record<string, unknown> =>
  Object.fromEntries(pairs.map(({ key, value }) => [key, Object.values(value)[0]]));

export async function otlpSink() {
  const spans: SinkSpan[] = [];
  const bodies: string[] = [];
  const server = await listening((request, response) => {
    const chunks: Buffer[] = [];
    request.on('data', (chunk: Buffer) => chunks.push(chunk));
    request.on('end', () => {
      const text = Buffer.concat(chunks).toString();
      bodies.push(text);
      for (const { resource, scopeSpans } of (JSON.parse(text) as Exported).resourceSpans) {
        for (const span of scopeSpans.flatMap((each) => each.spans)) {
          spans.push({
            ...span,
            attributes: plain(span['attributes'] as Pair[]),
            resource: plain(resource.attributes),
          } as unknown as SinkSpan);
        }
      }
      response.writeHead(200, { 'content-type': 'application/json' }).end('{}');
    });
  });
  return { endpoint: server.url, spans, bodies, close: server.close };
}
