/** Which credentials and models share a quota, by what their responses name. */
import { expect, test } from '@jest/globals';
import type { Feedback } from '../../src/call.ts';
import { quotaNames } from '../../src/quotas/joined-quotas.ts';

type Shown = Parameters<typeof quotaNames>[1];
type QuotaScope = NonNullable<Feedback['scope']>;

const parts = { upstream: 'u', credential: 'k1', host: '', model: 'm1', shop: 's1', separate: [] };
const success = (scope: QuotaScope): Shown => ({ scope, throttle: null });
const refusal = (scope: QuotaScope): Shown => ({ scope, throttle: { kind: 'rate', waitMs: 1, meter: null } });
const project = success({ organization: 'o', project: 'p' });
const other = success({ organization: 'o', project: 'p2' });
const organization = success({ organization: 'o' });
const owner = refusal({ organization: 'o' });
const family = refusal({ organization: 'org-1', family: 'f' });
const app = success({ app: '7' });
const nothing: Shown = { throttle: null };

test.each<[string, boolean, Shown, Shown, Partial<typeof parts>]>([
  ['keys of one project share a model', true, project, project, { credential: 'k2' }],
  [
    'keys of one project do not share other models',
    false,
    project,
    project,
    { credential: 'k2', model: 'm2' },
  ],
  ['projects have their own', false, project, other, { credential: 'k2' }],
  ['an organisation without projects is one', true, organization, organization, { credential: 'k2' }],
  ['a refusal names no owner', false, owner, owner, { credential: 'k2' }],
  ['models of a family share its limit', true, family, family, { model: 'm2' }],
  ['credentials do not share a family', false, family, family, { credential: 'k2', model: 'm2' }],
  ['tokens of an app share a shop', true, app, app, { credential: 'k2' }],
  ['shops of an app are apart', false, app, app, { credential: 'k2', shop: 's2' }],
  ['upstreams are apart', false, project, project, { upstream: 'u2' }],
  ['nothing reported joins nothing', false, nothing, nothing, {}],
])('%s: %p', (_, isShared, one, two, differs) => {
  const words = quotaNames(parts, one).map(String);
  const shared = quotaNames({ ...parts, ...differs }, two).filter((list) => words.includes(String(list)));
  expect(shared.length > 0).toBe(isShared);
});
