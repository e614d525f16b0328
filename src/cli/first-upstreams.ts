/** What `sluice init` knows of upstreams. */

/** An upstream that a first configuration may have. */
export interface FirstUpstream {
  readonly name: string;
  /** Its section, without the name; each line begins with what stands under the name. */
  readonly lines: readonly string[];
  /** The variable that holds its credential. */
  readonly secret: string;
  /** Path behind `/via/` of a call that costs nothing. */
  readonly path: string;
  /** Further options of curl for that call. */
  readonly options: string;
}

const openai: FirstUpstream = {
  name: 'openai',
  lines: [
    'kind: language-model',
    "origins: ['https://api.openai.com']",
    "credential: { header: authorization, value: 'Bearer ${OPENAI_API_KEY}' }",
  ],
  secret: 'OPENAI_API_KEY',
  path: 'openai/v1/models',
  options: '',
};
const anthropic: FirstUpstream = {
  name: 'anthropic',
  lines: [
    'kind: language-model',
    "origins: ['https://api.anthropic.com']",
    "credential: { header: x-api-key, value: '${ANTHROPIC_API_KEY}' }",
  ],
  secret: 'ANTHROPIC_API_KEY',
  path: 'anthropic/v1/models',
  options: " -H 'anthropic-version: 2023-06-01'",
};
const shopify: FirstUpstream = {
  name: 'shop',
  lines: [
    'kind: commerce',
    "origins: ['https://*.myshopify.com']",
    "credential: { header: x-shopify-access-token, value: '${SHOP_TOKEN}' }",
    'bucketBy: [credential, host] # the platform counts per store',
  ],
  secret: 'SHOP_TOKEN',
  path: 'shop/YOUR-STORE.myshopify.com/admin/api/2026-10/shop.json',
  options: '',
};
const github: FirstUpstream = {
  name: 'github',
  lines: [
    "origins: ['https://api.github.com']",
    'speaks: github',
    "credential: { header: authorization, value: 'Bearer ${GITHUB_TOKEN}' }",
  ],
  secret: 'GITHUB_TOKEN',
  path: 'github/rate_limit',
  options: '',
};

const known: Readonly<Record<string, FirstUpstream>> = { openai, anthropic, shopify, github };

/** Names that `--upstream` takes beside an origin. */
export const firstUpstreams = Object.keys(known);

/** The upstream of a name, or of an origin such as `https://api.example.com`; `null` = it is neither. */
export function firstUpstream(text: string): FirstUpstream | null {
  const named = Object.hasOwn(known, text) ? known[text] : undefined;
  if (named !== undefined) return named;
  const url = URL.parse(text);
  if (url?.protocol !== 'https:' || url.pathname !== '/' || url.search + url.hash + url.username !== '')
    return null;
  return {
    name: 'api',
    lines: [
      `origins: ['${url.origin}']`,
      "credential: { header: authorization, value: 'Bearer ${API_TOKEN}' }",
      'limits: { requestsPerMinute: 60 } # what the API allows: its documentation says so',
    ],
    secret: 'API_TOKEN',
    path: 'api/',
    options: '',
  };
}
