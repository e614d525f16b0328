/**
 * How widely used APIs count, report and refuse: data only. `speaks` is what an operator would write by hand, and `speaks.ts` holds it to
 * that schema; the table of docs/upstreams/apis.md is written from the rest. `source`: page of the provider's documentation from which it
 * is taken; `counts`: what the API counts, in a sentence; `missing`: limits that no dialect can describe, `null` = none is known.
 */
export const presets = {
  airtable: {
    title: 'Airtable',
    source: 'https://airtable.com/developers/web/api/rate-limits',
    counts:
      '5 calls per second and base; after a refusal the base stays closed for 30 s, and no response says so.',
    missing: 'The 50 calls per second that all bases of a user share.',
    speaks: {
      windows: [{ requests: 5, seconds: 1 }],
      bucketBy: ['credential', 'path:/v0/{*}'],
      penaltySeconds: 30,
    },
  },
  'amazon-sp-api': {
    title: 'Amazon Selling Partner API',
    source: 'https://developer-docs.amazon.com/sp-api/docs/usage-plans-and-rate-limits-in-the-sp-api',
    counts: 'Each operation has a rate of its own, stated in calls per second.',
    missing: 'The burst of a plan, which no response tells: calls leave evenly at the rate.',
    speaks: {
      fields: { rate: 'x-amzn-ratelimit-limit' },
      bucketBy: ['credential', 'path:/{*}/{*}/{*}'],
    },
  },
  bigcommerce: {
    title: 'BigCommerce',
    source: 'https://docs.bigcommerce.com/developer/docs/overview/api-fundamentals/rate-limits',
    counts: 'A quota by plan for 30 s, for each store; fields tell quota, rest, reset and window.',
    missing: null,
    speaks: {
      fields: {
        limit: 'x-rate-limit-requests-quota',
        remaining: 'x-rate-limit-requests-left',
        reset: { name: 'x-rate-limit-time-reset-ms', as: 'milliseconds' },
        window: { name: 'x-rate-limit-time-window-ms', as: 'milliseconds' },
      },
      bucketBy: ['credential', 'path:/stores/{*}'],
    },
  },
  cloudflare: {
    title: 'Cloudflare API',
    source: 'https://developers.cloudflare.com/fundamentals/api/reference/limits/',
    counts: '1,200 calls in 5 minutes for each user; who goes beyond is blocked for 5 minutes.',
    missing: 'The 200 calls per second of an address.',
    speaks: {
      windows: [{ requests: 1200, seconds: 300 }],
      fields: { reset: { name: 'x-ratelimit-reset', as: 'date' } },
      penaltySeconds: 300,
    },
  },
  discord: {
    title: 'Discord',
    source: 'https://docs.discord.com/developers/topics/rate-limits',
    counts: 'A quota for each channel, guild or webhook; the time left is stated to the millisecond.',
    missing:
      'The 50 calls per second of a bot over all routes, and buckets that routes of one resource share.',
    speaks: {
      fields: {
        limit: 'x-ratelimit-limit',
        remaining: 'x-ratelimit-remaining',
        reset: { name: 'x-ratelimit-reset-after', as: 'seconds' },
      },
      bucketBy: [
        'credential',
        'path:/api/{*}/channels/{*}',
        'path:/api/{*}/guilds/{*}',
        'path:/api/{*}/webhooks/{*}',
      ],
    },
  },
  github: {
    title: 'GitHub REST',
    source: 'https://docs.github.com/en/rest/using-the-rest-api/rate-limits-for-the-rest-api',
    counts:
      'The primary limit refuses with 403 or 429 and nothing remaining; a secondary limit says so in a sentence, with Retry-After or at least a minute.',
    missing: 'Limits by points and CPU time that GitHub does not tell: they are met with its refusals.',
    speaks: {
      fields: {
        limit: 'x-ratelimit-limit',
        remaining: 'x-ratelimit-remaining',
        reset: { name: 'x-ratelimit-reset', as: 'epoch-seconds' },
      },
      throttledBy: [
        { status: [403, 429], body: 'secondary rate limit', waitSeconds: 60 },
        { status: 403, body: 'abuse detection mechanism', waitSeconds: 60 },
        { status: [403, 429], field: 'x-ratelimit-remaining', equals: '0' },
      ],
      bucketBy: ['credential', 'path:/search'],
      maxInFlight: 100,
    },
  },
  'github-graphql': {
    title: 'GitHub GraphQL',
    source: 'https://docs.github.com/en/graphql/overview/rate-limits-and-node-limits-for-the-graphql-api',
    counts: 'The primary limit refuses with 200 and an error, a secondary one with 200 or 403.',
    missing: 'What a query costs in points before its response.',
    speaks: {
      fields: {
        limit: 'x-ratelimit-limit',
        remaining: 'x-ratelimit-remaining',
        reset: { name: 'x-ratelimit-reset', as: 'epoch-seconds' },
      },
      throttledBy: [
        { status: [200, 403, 429], body: 'secondary rate limit', waitSeconds: 60 },
        { status: 200, field: 'x-ratelimit-remaining', equals: '0', body: 'RATE_LIMITED' },
      ],
      maxInFlight: 100,
    },
  },
  gitlab: {
    title: 'GitLab',
    source: 'https://docs.gitlab.com/administration/settings/user_and_ip_rate_limits/',
    counts:
      'A limit per minute for each user, stated under the names of the IETF draft, with an instant as reset.',
    missing: 'Limits of single features, which have no fields: they are met with their refusals.',
    speaks: {
      fields: {
        limit: 'ratelimit-limit',
        used: 'ratelimit-observed',
        remaining: 'ratelimit-remaining',
        reset: { name: 'ratelimit-reset', as: 'epoch-seconds' },
        window: 60,
      },
    },
  },
  hubspot: {
    title: 'HubSpot',
    source: 'https://developers.hubspot.com/docs/api/usage-details',
    counts: '100 calls in 10 s, more by plan, for each app and account, and a day’s quota.',
    missing: 'When a day ends: at midnight in the account’s zone, which no response tells.',
    speaks: {
      windows: [{ requests: 100, seconds: 10 }],
      fields: [
        {
          limit: 'x-hubspot-ratelimit-max',
          remaining: 'x-hubspot-ratelimit-remaining',
          window: { name: 'x-hubspot-ratelimit-interval-milliseconds', as: 'milliseconds' },
        },
        {
          limit: 'x-hubspot-ratelimit-daily',
          remaining: 'x-hubspot-ratelimit-daily-remaining',
          window: 86_400,
        },
      ],
      permanentBy: [{ status: 429, body: 'DAILY' }],
    },
  },
  jira: {
    title: 'Jira Cloud',
    source: 'https://developer.atlassian.com/cloud/jira/platform/rate-limiting/',
    counts: 'Limits by points and by second; each refusal has Retry-After.',
    missing: 'Points of a call before its response; limits of one issue.',
    speaks: {
      fields: {
        limit: 'x-ratelimit-limit',
        remaining: 'x-ratelimit-remaining',
        reset: { name: 'x-ratelimit-reset', as: 'date' },
      },
    },
  },
  linear: {
    title: 'Linear',
    source: 'https://linear.app/developers/rate-limiting',
    counts: 'A quota of calls per hour that refills evenly; a refusal is a 400 with a code.',
    missing: 'The complexity of a query before its response.',
    speaks: {
      fields: {
        limit: 'x-ratelimit-requests-limit',
        remaining: 'x-ratelimit-requests-remaining',
        reset: { name: 'x-ratelimit-requests-reset', as: 'epoch-milliseconds' },
        window: 3_600,
      },
      throttledBy: [{ status: 400, body: 'RATELIMITED', waitSeconds: 30 }],
    },
  },
  mailchimp: {
    title: 'Mailchimp Marketing',
    source: 'https://mailchimp.com/developer/marketing/docs/fundamentals/',
    counts: '10 calls at once for each key, and no rate.',
    missing: 'Refusals at high volume with a bare 403.',
    speaks: {
      maxInFlight: 10,
      throttledBy: [{ status: 429, body: 'too many requests', waitSeconds: 2 }],
    },
  },
  notion: {
    title: 'Notion',
    source: 'https://developers.notion.com/reference/request-limits',
    counts: 'About 3 calls per second and connection, counted over a minute; bursts pass.',
    missing: 'Budgets above the stated average, which depend on the plan.',
    speaks: {
      windows: [{ requests: 180, seconds: 60 }],
    },
  },
  quickbooks: {
    title: 'QuickBooks Online',
    source: 'https://developer.intuit.com/app/developer/qbo/docs/learn/limits-and-throttles',
    counts: '10 calls per second and 500 per minute for each company; a minute’s wait after a refusal.',
    missing: 'The month’s quota of a Builder plan, which is a 429 as well.',
    speaks: {
      windows: [
        { requests: 10, seconds: 1 },
        { requests: 500, seconds: 60 },
      ],
      bucketBy: ['credential', 'path:/v3/company/{*}'],
      maxInFlight: 10,
      penaltySeconds: 60,
    },
  },
  salesforce: {
    title: 'Salesforce',
    source: 'https://developer.salesforce.com/docs/platform/salesforce-app-limits-cheatsheet',
    counts: 'A quota for any 24 hours; when it is used up a 403 says so, and no wait of a call is that long.',
    missing: 'The 25 places count only calls of 20 s and longer; here they count all.',
    speaks: {
      permanentBy: [{ status: 403, body: 'REQUEST_LIMIT_EXCEEDED' }],
      maxInFlight: 25,
    },
  },
  sendgrid: {
    title: 'Twilio SendGrid',
    source: 'https://www.twilio.com/docs/sendgrid/api-reference/how-to-use-the-sendgrid-v3-api/rate-limits',
    counts: 'A quota for each endpoint, stated in every response; no Retry-After.',
    missing: null,
    speaks: {
      fields: {
        limit: 'x-ratelimit-limit',
        remaining: 'x-ratelimit-remaining',
        reset: { name: 'x-ratelimit-reset', as: 'epoch-seconds' },
      },
      bucketBy: ['credential', 'path:/v3/{*}/{*}'],
    },
  },
  slack: {
    title: 'Slack Web API',
    source: 'https://api.slack.com/apis/rate-limits',
    counts: 'A quota for each method, app and workspace; a refusal has Retry-After.',
    missing: 'The quotas themselves: Slack states minima, and refuses with Retry-After beyond its own.',
    speaks: {
      bucketBy: ['credential', 'path:/api/{*}'],
    },
  },
  stripe: {
    title: 'Stripe',
    source: 'https://docs.stripe.com/rate-limits',
    counts: '100 calls per second for each account in live mode; no Retry-After.',
    missing: 'The 25 calls per second of one endpoint, and locks of single objects.',
    speaks: {
      windows: [{ requests: 100, seconds: 1 }],
      throttledBy: [{ status: 429, field: 'stripe-rate-limited-reason', waitSeconds: 1 }],
    },
  },
  twilio: {
    title: 'Twilio',
    source: 'https://www.twilio.com/docs/api/errors/20429',
    counts: 'Calls at once for each account; a refused call was never processed.',
    missing: 'How many calls an account may have at once, which Twilio does not tell.',
    speaks: {
      throttledBy: [{ status: 429, body: '20429', waitSeconds: 1 }],
    },
  },
  xero: {
    title: 'Xero',
    source: 'https://developer.xero.com/faq/limits',
    counts: '60 calls per minute and 5,000 per day for each organisation, 5 at once.',
    missing: 'The 10,000 calls per minute that all organisations of an app share.',
    speaks: {
      windows: [
        { requests: 60, seconds: 60 },
        { requests: 5_000, seconds: 86_400 },
      ],
      fields: [
        { remaining: 'x-minlimit-remaining', window: 60 },
        { remaining: 'x-daylimit-remaining', window: 86_400 },
      ],
      permanentBy: [{ status: 429, field: 'x-rate-limit-problem', equals: 'day' }],
      bucketBy: ['credential', 'header:xero-tenant-id'],
      maxInFlight: 5,
    },
  },
  zendesk: {
    title: 'Zendesk',
    source:
      'https://developer.zendesk.com/documentation/api-basics/best-practices/best-practices-for-avoiding-rate-limiting/',
    counts: '200 to 2,500 calls per minute by plan, for each account.',
    missing: 'Quotas of single endpoints, and refusals of one object without a wait.',
    speaks: {
      fields: {
        limit: 'x-rate-limit',
        remaining: 'x-rate-limit-remaining',
        reset: { name: 'ratelimit-reset', as: 'seconds' },
        window: 60,
      },
    },
  },
} as const;

export type PresetName = keyof typeof presets;

export const presetNames = Object.keys(presets) as [PresetName, ...PresetName[]];
