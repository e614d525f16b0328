/** Names of the presets, each of which has a file of its name beside this one. */
export const presetNames = [
  'airtable',
  'amazon-sp-api',
  'bigcommerce',
  'cloudflare',
  'discord',
  'github',
  'github-graphql',
  'gitlab',
  'hubspot',
  'jira',
  'linear',
  'mailchimp',
  'notion',
  'quickbooks',
  'salesforce',
  'sendgrid',
  'slack',
  'stripe',
  'twilio',
  'xero',
  'zendesk',
] as const;

export type PresetName = (typeof presetNames)[number];
