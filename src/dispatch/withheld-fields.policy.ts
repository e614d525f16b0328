/**
 * Fields of a response that Sluice keeps to itself, because they act beyond the response that carries them: they command the hop
 * in front of Sluice (a proxy, a CDN, a mesh), or change what a browser keeps for a whole origin. To the client that origin is
 * Sluice, behind which other upstreams are, so that no single upstream may speak for it.
 */
import { namesIn } from './field-names.policy.ts';

/** `name` in lower case. */
export const isWithheld = namesIn({
  names: [
    'x-forwarded forwarded edge-control xkey x-send-file x-offload-to-sendfile',
    // What a browser remembers for all of an origin
    'alt-svc alternate-protocol strict-transport-security public-key-pins public-key-pins-report-only expect-ct',
    'clear-site-data nel report-to reporting-endpoints service-worker-allowed accept-ch accept-ch-lifetime critical-ch',
    'origin-agent-cluster set-login use-as-dictionary shared-storage-write observe-browsing-topics set-cookie2',
    'attribution-reporting-register-source attribution-reporting-register-trigger',
    'no-vary-search', // lets a browser take the response to one `?target=` for that to another
  ],
  /** Beginnings of names that one server or CDN takes commands by. */
  prefixes: [
    'x-accel-', // nginx
    'x-sendfile', // Apache, lighttpd, Caddy, Rack, and their variants
    'x-lighttpd- x-litespeed- x-lsadc- x-proxy- x-envoy- x-istio-',
    'x-reproxy- x-perlbal-', // Perlbal
    'l5d-', // linkerd
    'x-appengine-', // `X-AppEngine-BlobKey` is Google's X-Sendfile
    'x-middleware-', // rewrites at the edges of Vercel
    'x-forwarded-', // a request's field: in a response it can only mislead
    'surrogate- fastly- netlify-',
    'sec-session- secure-session-', // device-bound sessions of a browser
  ],
  /** `CDN-Cache-Control` and its kind (RFC 9213), which command one class of caches, and the tags by which a CDN stores. */
  pattern: /(?:-cache-control|(?:^|-)cache-tags?)$/,
});
