/** A store of which a test replaces some methods; everything else is the store's own. */
export const withMethods = <T extends object>(store: T, changes: Partial<T>): T =>
  new Proxy(store, {
    get(target, name): unknown {
      const changed: unknown = Reflect.get(changes, name);
      if (changed !== undefined) return changed;
      const own: unknown = Reflect.get(target, name, target);
      return typeof own === 'function' ? own.bind(target) : own;
    },
  });
