/**
 * Combines who calls with where to: a caller and a request line become a {@link Route}.
 *
 * Owns: the choice of credential and the loop guard. Does not own: the judgement of URLs (`target.policy.ts`).
 * Keeps: a credential is only ever paired with an origin of the upstream it was configured for.
 */
import type { Call, Caller, Route } from '../call.ts';
import { withoutCredentials } from '../credential-carriers.policy.ts';
import { Refusal } from '../errors.ts';
import type { UpstreamSettings, WorkspaceSettings } from '../config/settings.ts';
import { LRUCache } from 'lru-cache';
import { atMost } from '../bounded.ts';
import { decideTarget, passedThrough, viaPrefix } from './target.policy.ts';

/** Decisions kept: calls come to the same few targets again and again, and deciding costs a URL parse. */
const routesKept = 1_000;
/** Longer request targets are decided each time, so that what is kept stays below a megabyte. */
const maxUrlKept = 512;

/** @param upstreams the validated configuration; build a new finder when it is reloaded. */
export function createRouteFinder(upstreams: ReadonlyMap<string, UpstreamSettings>) {
  const lately = new LRUCache<string, { readonly workspace: WorkspaceSettings; readonly route: Route }>(
    atMost(routesKept),
  );
  const decide = (call: Pick<Call, 'form' | 'rawUrl'>, workspace: WorkspaceSettings): Route => {
    const decision = decideTarget(call, upstreams, ({ name }) => workspace.upstreams.has(name));
    if (decision.kind === 'refused')
      throw new Refusal(decision.code, { detail: decision.detail, param: 'target' });
    const { upstream, origin, host, pathAndQuery } = decision;
    const credential = workspace.credentials.get(upstream.name) ?? upstream.credential;
    // Beside an injected credential no other one goes upstream.
    const sent = credential === null ? pathAndQuery : withoutCredentials(pathAndQuery, upstream.carriers);
    return { upstream, origin, host, pathAndQuery: sent, credential };
  };
  return {
    /**
     * Decides once where a call goes.
     *
     * @throws Refusal `target_missing` `target_invalid` `target_forbidden` `target_too_long` `loop_detected`
     */
    find(call: Pick<Call, 'form' | 'rawUrl' | 'rawFields'>, { workspace }: Pick<Caller, 'workspace'>): Route {
      // A loop would wait for the lease that it holds itself.
      if (passedThrough(call.rawFields)) throw new Refusal('loop_detected');
      if (call.rawUrl.length > maxUrlKept) return decide(call, workspace);
      const key = `${workspace.id} ${call.form} ${call.rawUrl}`;
      const known = lately.get(key);
      if (known?.workspace === workspace) return known.route;
      const route = decide(call, workspace);
      lately.set(key, { workspace, route });
      return route;
    },
    /** `/via/…` prefix of an absolute URL if it is an origin of this upstream, else `null`; for rewriting responses. */
    viaPrefix: (upstream: UpstreamSettings, url: URL) => viaPrefix(upstreams, upstream, url),
  };
}
