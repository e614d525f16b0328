/**
 * The objects of the stand-in, their versions and their watchers. Refuses what an API server refuses on a change of an
 * immutable field, so that an upgrade that would fail on a cluster fails here.
 */
import { randomUUID } from 'node:crypto';
import { isDeepStrictEqual } from 'node:util';

const IMMUTABLE = {
  Deployment: [(object) => object.spec.selector],
  Job: [(object) => object.spec.template, (object) => object.spec.selector],
  Secret: [(object) => object.type],
};

export class Refusal extends Error {
  constructor(code, reason, message) {
    super(message);
    this.status = {
      kind: 'Status',
      apiVersion: 'v1',
      status: 'Failure',
      metadata: {},
      code,
      reason,
      message,
    };
  }
}

export class Store {
  #objects = new Map();
  #watchers = new Set();
  #history = [];
  version = 100;

  #key = (kind, namespace, name) => [kind.groupVersion, kind.plural, namespace ?? '', name].join('|');

  get(kind, namespace, name) {
    return this.#objects.get(this.#key(kind, namespace, name));
  }

  list(kind, namespace, selects = () => true) {
    const prefix = `${kind.groupVersion}|${kind.plural}|`;
    return [...this.#objects]
      .filter(
        ([key, object]) => key.startsWith(prefix) && (!namespace || object.metadata.namespace === namespace),
      )
      .map(([, object]) => object)
      .filter(selects);
  }

  put(kind, object) {
    const { namespace, name } = object.metadata;
    const old = this.get(kind, namespace, name);
    for (const field of old ? (IMMUTABLE[object.kind] ?? []) : []) {
      if (!isDeepStrictEqual(field(old), field(object))) {
        throw new Refusal(
          422,
          'Invalid',
          `${object.kind} "${name}" is invalid: an immutable field was changed`,
        );
      }
    }
    const changed = !old || !isDeepStrictEqual(old.spec, object.spec);
    const stored = {
      ...object,
      metadata: {
        ...object.metadata,
        uid: old?.metadata.uid ?? randomUUID(),
        creationTimestamp: old?.metadata.creationTimestamp ?? new Date().toISOString(),
        generation: (old?.metadata.generation ?? 0) + (changed ? 1 : 0),
        resourceVersion: String((this.version += 1)),
      },
    };
    this.#objects.set(this.#key(kind, namespace, name), stored);
    this.#report(kind, old ? 'MODIFIED' : 'ADDED', stored);
    return stored;
  }

  delete(kind, object) {
    this.#objects.delete(this.#key(kind, object.metadata.namespace, object.metadata.name));
    this.version += 1;
    this.#report(kind, 'DELETED', object);
    for (const [key, child] of this.#objects.entries().toArray()) {
      if (!child.metadata.ownerReferences?.some((owner) => owner.uid === object.metadata.uid)) continue;
      const [groupVersion, plural] = key.split('|');
      this.delete({ groupVersion, plural }, child);
    }
  }

  #report(kind, type, object) {
    const event = { version: this.version, plural: kind.plural, type, object: structuredClone(object) };
    this.#history.push(event);
    for (const watcher of this.#watchers) watcher(event);
  }

  /** Calls back for each later event, and at once for those after `from`. @returns stop function */
  watch(kind, from, report) {
    const offer = (event) => event.plural === kind.plural && report(event);
    for (const event of this.#history) if (from > 0 && event.version > from) offer(event);
    this.#watchers.add(offer);
    return () => this.#watchers.delete(offer);
  }
}
