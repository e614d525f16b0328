/**
 * `@idempotent(key:)`: a mutation with a known key is not done twice.
 *
 * Owns: the keys of each (store, app). The error codes are not verified against the live API.
 */

export type KeyCheck =
  | { readonly kind: 'new' }
  | { readonly kind: 'replay'; readonly data: unknown }
  | { readonly kind: 'conflict'; readonly code: string };

export class IdempotencyKeys {
  readonly #known = new Map<string, { readonly payload: string; data: unknown; done: boolean }>();

  /** Registers the key when it is new. @param payload what must be equal for a replay. */
  check(scope: string, key: string, payload: string): KeyCheck {
    const known = this.#known.get(`${scope}|${key}`);
    if (known === undefined) {
      this.#known.set(`${scope}|${key}`, { payload, data: null, done: false });
      return { kind: 'new' };
    }
    if (known.payload !== payload) return { kind: 'conflict', code: 'IDEMPOTENCY_KEY_PARAMETER_MISMATCH' };
    if (!known.done) return { kind: 'conflict', code: 'IDEMPOTENCY_CONCURRENT_REQUEST' };
    return { kind: 'replay', data: known.data };
  }

  done(scope: string, key: string, data: unknown): void {
    const known = this.#known.get(`${scope}|${key}`);
    if (known === undefined) return;
    known.data = data;
    known.done = true;
  }

  clear(): void {
    this.#known.clear();
  }
}
