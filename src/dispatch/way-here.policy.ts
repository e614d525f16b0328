/**
 * Fields of a request that name the client, its network, or the hops and the trace by which it came: written by proxies, CDNs,
 * meshes and tracers in front of Sluice, or by clients that pretend to be one. They concern no upstream.
 *
 * Fields that a client's program means for the upstream pass, also where they look alike: `Fastly-Key`, `CF-Access-Client-Id`,
 * `cf-aig-*`, `X-Akamai-ACS-*`, `X-Vercel-Protection-Bypass`, `PSU-IP-Address`, `X-FAPI-Customer-IP-Address`, `Shopify-Storefront-Buyer-IP`, `X-Request-Id`.
 */
import { namesIn } from './field-names.policy.ts';

/** `name` in lower case. */
export const isOfTheWayHere = namesIn({
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
