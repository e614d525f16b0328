/**
 * Which fields go upstream. Fields pass by default, but never hop-by-hop ones, never one that carries an API key of ours, never a second
 * credential beside an injected one; and framing is written here from the buffered length, whatever the client says in `Connection`.
 */
import { showsApiKey } from '../auth/api-key.policy.ts';
import type { Call, InjectedField, Route } from '../call.ts';
import { isCarrier } from '../credential-carriers.policy.ts';
import { valuesOf } from '../field-lines.policy.ts';
import { pseudonym } from '../target/target.policy.ts';
import { endsHere, namesIn, remembered } from './field-names.policy.ts';

/** Cookies of a client pass on `/via`, where each upstream has its own path; one jar for all of `/proxy` would show them to others. */
export const passesCookies = (
  { form }: Pick<Call, 'form'>,
  { cookies }: Pick<Route['upstream'], 'cookies'>,
): boolean => form === 'via' || cookies === 'pass';

/** Lower-case names; an array for a repeated field. No prototype, so that no name can mean anything but itself. */
export type OutgoingFields = Record<string, string | string[]>;

export interface OutgoingInput {
  /** The client's lines, name and value alternating. */
  readonly rawFields: readonly string[];
  readonly route: Pick<Route, 'host'> & {
    readonly credential: InjectedField | null;
    readonly upstream: Pick<Route['upstream'], 'propagateTrace' | 'carriers'>;
  };
  /** True where cookies of the client belong to this upstream. */
  readonly passesCookies: boolean;
  /** Lower-case names of fields that carried the API key. */
  readonly dropFields: readonly string[];
  readonly method: string;
  /** Length of the buffered body; 0 = none. */
  readonly bodyBytes: number;
  /** `traceparent` of the attempt's span; sent only where the upstream's configuration asks for it. */
  readonly traceparent: string | null;
  /** Values that go upstream in the place of the client's own, by lower-case name; absent or `null` = none. */
  readonly replacedFields?: ReadonlyMap<string, string> | null;
}

/**
 * Makes objects without inherited members that V8 keeps in its fast form; `Object.create(null)` makes a hash table, which
 * the proxy and Node then copy and walk several times per call.
 */
const EmptyFields = function () {} as unknown as new () => OutgoingFields;
EmptyFields.prototype = Object.create(null);

/** Written anew for the upstream, or answered here. */
const writtenHere = new Set(['host', 'content-length', 'expect']);

/** Methods that expect a body: a request of theirs without one says so with `Content-Length: 0` (RFC 9110 §8.6). */
const announcesEmptyBody = new Set(['POST', 'PUT', 'PATCH']);

/**
 * Fields of a request that name the client, its network, or the hops and the trace by which it came: written by proxies, CDNs,
 * meshes and tracers in front of Sluice, or by clients that pretend to be one. They concern no upstream.
 *
 * Fields that a client's program means for the upstream pass, also where they look alike: `Fastly-Key`, `CF-Access-Client-Id`,
 * `cf-aig-*`, `X-Akamai-ACS-*`, `X-Vercel-Protection-Bypass`, `PSU-IP-Address`, `X-FAPI-Customer-IP-Address`, `Shopify-Storefront-Buyer-IP`, `X-Request-Id`.
 */
/** `name` in lower case. */
const isOfTheWayHere = namesIn({
  names: [
    'via forwarded x-forwarded forwarded-for forwarded-proto x-forward-for x-forward-proto x-scheme x-url-scheme',
    'front-end-https cdn-loop cookie2 remote-user x-remote-user x-rewrite-url x-request-start x-queue-start',
    'cf-ray cf-visitor cf-worker cf-ew-via cf-pseudo-ipv4 cf-region cf-region-code cf-metro-code cf-postal-code',
    'cf-timezone cf-access-jwt-assertion cf-access-authenticated-user-email',
    'fastly-client fastly-ff fastly-ssl fastly-temp-xff',
    'x-azure-ref x-azure-fdid x-azure-requestchain x-goog-iap-jwt-assertion x-amz-cf-id x-vercel-id',
    'x-akamai-edgescape akamai-origin-hop',
    'x-client-cert client-cert client-cert-chain x-client-dn x-client-verify',
    'x-anonymous-consumer x-credential-identifier', // Kong
    // Traces
    'traceparent tracestate baggage b3 uber-trace-id jaeger-debug-id jaeger-baggage sentry-trace correlation-context',
    'request-context x-ms-request-root-id x-amzn-trace-id x-cloud-trace-context grpc-trace-bin',
    'elastic-apm-traceparent newrelic x-newrelic-id x-newrelic-transaction x-newrelic-synthetics singularityheader',
    'x-dynatrace x-honeycomb-trace x-ot-span-context',
  ],
  prefixes: [
    'x-forwarded- x-original- x-envoy- x-appengine- x-istio- x-arr- x-ssl- ssl-client- x-client-cert- x-tls-client-',
    'x-auth-request-', // oauth2-proxy
    'x-goog-authenticated-user- tailscale-user- x-pomerium- x-webauth-',
    'x-ms-client-principal x-ms-token-', // the sign-in of Azure's App Service
    'x-consumer-', // Kong
    'l5d-', // linkerd
    'x-amzn-oidc- x-amzn-tls- x-amzn-mtls- cloudfront-',
    'x-vercel-forwarded- x-vercel-ip- x-vercel-proxied-',
    'cf-connecting- cf-ip fastly-client- fastly-orig- fly-forwarded-',
    // Traces
    'x-b3- uberctx- ot-tracer- ot-baggage- x-datadog- x-instana- x-dynatrace- pinpoint- eagleeye- sw6 sw8',
  ],
  /**
   * The address of a client by its many names: `X-Client-IP`, `True-Client-IP`, `X-Real-IP`, `X-Cluster-Client-IP`, `Ali-CDN-Real-IP`,
   * `WL-Proxy-Client-IP`, `X-Remote-Addr`, `X-NF-Client-Connection-IP`, `X-Sucuri-ClientIP`, `X-ProxyUser-IP`, `X-Azure-SocketIP`.
   */
  pattern:
    /(?:^|-)(?:client|real|remote|connecting|originating|viewer|src|proxyuser|socket)-?(?:connection-)?(?:ip|ipv4|ipv6|addr|address|port)$/,
});

const staysHere = remembered((name) => writtenHere.has(name) || endsHere(name) || isOfTheWayHere(name));

/** Builds the fields of one attempt. Values of the client are passed on as they are, also empty ones. */
export function outgoingFields(input: OutgoingInput): OutgoingFields {
  const { rawFields, route, dropFields, bodyBytes } = input;
  const { credential, upstream } = route;
  const fields = new EmptyFields();
  fields['host'] = route.host;
  let brought: string | null = null;

  for (let at = 0; at + 1 < rawFields.length; at += 2) {
    const name = rawFields[at]?.toLowerCase() ?? '';
    const value = rawFields[at + 1] ?? '';
    if (name === 'sluice-upstream-authorization') brought = value;
    if (name === 'cookie' && !input.passesCookies) continue;
    if (dropFields.includes(name) || staysHere(name)) continue;
    // Two credentials make upstreams refuse the call, or judge it by the client's own.
    if (credential !== null && (name === credential.field || isCarrier(name, upstream.carriers))) continue;
    // Also when the client sends its key a second time, in another field.
    if (showsApiKey(value)) continue;
    append(fields, name, input.replacedFields?.get(name) ?? value);
  }

  if (credential !== null) fields[credential.field] = credential.value;
  else if (brought !== null && !showsApiKey(brought)) fields['authorization'] = brought;
  if (bodyBytes > 0 || announcesEmptyBody.has(input.method)) fields['content-length'] = String(bodyBytes);
  fields['via'] = `1.1 ${pseudonym}`;
  if (upstream.propagateTrace) propagate(fields, input);
  return fields;
}

function append(fields: OutgoingFields, name: string, value: string): void {
  const earlier = fields[name];
  if (earlier === undefined) fields[name] = value;
  else if (typeof earlier === 'string') fields[name] = [earlier, value];
  else earlier.push(value);
}

/** `tracestate` belongs to the trace that the client began and means nothing without its `traceparent`. */
function propagate(fields: OutgoingFields, { rawFields, traceparent }: OutgoingInput): void {
  if (traceparent === null) return;
  fields['traceparent'] = traceparent;
  for (const value of valuesOf(rawFields, 'tracestate')) append(fields, 'tracestate', value);
}
