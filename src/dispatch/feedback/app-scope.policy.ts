/**
 * `X-Stats-ApiClientId`: the app that a shop's token belongs to. All tokens of an app share its bucket of that shop.
 * Owns: reading the field; a value that is no id is no information.
 */
import type { Feedback } from '../../call.ts';

export function appScope(fields: ReadonlyMap<string, string>): Pick<Feedback, 'scope'> {
  const app = fields.get('x-stats-apiclientid')?.trim() ?? '';
  return /^[\w-]{1,64}$/.test(app) ? { scope: { app } } : {};
}
