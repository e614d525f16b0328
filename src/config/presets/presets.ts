/** All presets by name; the table of docs/upstreams/apis.md is written from them. */
import { airtable } from './airtable.ts';
import { amazonSpApi } from './amazon-sp-api.ts';
import { bigcommerce } from './bigcommerce.ts';
import { cloudflare } from './cloudflare.ts';
import { discord } from './discord.ts';
import { github } from './github.ts';
import { githubGraphql } from './github-graphql.ts';
import { gitlab } from './gitlab.ts';
import { hubspot } from './hubspot.ts';
import { jira } from './jira.ts';
import { linear } from './linear.ts';
import { mailchimp } from './mailchimp.ts';
import { notion } from './notion.ts';
import { quickbooks } from './quickbooks.ts';
import { salesforce } from './salesforce.ts';
import { sendgrid } from './sendgrid.ts';
import { slack } from './slack.ts';
import { stripe } from './stripe.ts';
import { twilio } from './twilio.ts';
import { xero } from './xero.ts';
import { zendesk } from './zendesk.ts';
import type { PresetName } from './names.ts';
import type { Preset } from './preset.ts';

export const presets: Readonly<Record<PresetName, Preset>> = {
  airtable,
  'amazon-sp-api': amazonSpApi,
  bigcommerce,
  cloudflare,
  discord,
  github,
  'github-graphql': githubGraphql,
  gitlab,
  hubspot,
  jira,
  linear,
  mailchimp,
  notion,
  quickbooks,
  salesforce,
  sendgrid,
  slack,
  stripe,
  twilio,
  xero,
  zendesk,
};
