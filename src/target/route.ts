/**
 * Combines who calls with where to: a caller and a request line become a {@link Route}.
 *
 * Owns: the choice of credential and the loop guard. Does not own: the judgement of URLs (`target.policy.ts`).
 * Keeps: a credential is only ever paired with an origin of the upstream it was configured for.
 */
import type { Call, Caller, Route } from '../call.ts';
import { withoutCredentials } from '../credential-carriers.policy.ts';
import { Refusal } from '../errors.ts';
import type { UpstreamSettings } from '../config/settings.ts';
import { decideTarget, passedThrough, viaPrefix } from './target.policy.ts';

export interface RouteFinder {
  /**
   * Decides once where a call goes.
   *
   * @throws Refusal `target_missing` `target_invalid` `target_forbidden` `target_too_long` `loop_detected`
   */
  find(call: Pick<Call, 'form' | 'rawUrl' | 'rawFields'>, caller: Pick<Caller, 'workspace'>): Route;
  /** `/via/…` prefix of an absolute URL if it is an origin of this upstream, else `null`; for rewriting responses. */
  viaPrefix(upstream: UpstreamSettings, url: URL): string | null;
}

/** @param upstreams the validated configuration; build a new finder when it is reloaded. */
export const createRouteFinder = (upstreams: ReadonlyMap<string, UpstreamSettings>): RouteFinder => ({
  find(call, { workspace }) {
    // A loop would wait for the lease that it holds itself.
    if (passedThrough(call.rawFields)) throw new Refusal('loop_detected');
    const decision = decideTarget(call, upstreams, ({ name }) => workspace.upstreams.has(name));
    if (decision.kind === 'refused')
      throw new Refusal(decision.code, { detail: decision.detail, param: 'target' });
    const { upstream, origin, host, pathAndQuery } = decision;
    const credential = workspace.credentials.get(upstream.name) ?? upstream.credential;
    // Beside an injected credential no other one goes upstream.
    const sent = credential === null ? pathAndQuery : withoutCredentials(pathAndQuery, upstream.carriers);
    return { upstream, origin, host, pathAndQuery: sent, credential };
  },
  viaPrefix: (upstream, url) => viaPrefix(upstreams, upstream, url),
});
