/**
 * A stand-in for the Kubernetes API server, never to be called a cluster: real helm and kubectl can install, wait,
 * upgrade, test, roll back and uninstall against it. It runs no container and does no admission, defaulting,
 * authentication or scheduling, so it proves that a release is well formed and its changes are accepted, nothing more.
 */
import http from 'node:http';
import { writeFileSync } from 'node:fs';
import { replicaSetOf, statusOf } from './controllers.mjs';
import { discovery, kindOf } from './kinds.mjs';
import { jsonPatch, mergePatch, serverSideApply, strategicMerge } from './patches.mjs';
import { Refusal, Store } from './store.mjs';
import { readBody } from './wire.mjs';

const READY_AFTER_MS = 50;
const PATH =
  /^\/(?:api\/(v1)|apis\/([^/]+\/[^/]+))(?:\/namespaces\/([^/]+)(?=\/))?\/([a-z]+)(?:\/([^/]+))?(?:\/([a-z]+))?$/;
const notFound = (what) => new Refusal(404, 'NotFound', `${what} not found`);

/** @param {string} kubeconfig file to write. @returns {Promise<{store: Store, requests: string[], close: () => Promise<void>}>} */
export async function startApiServer(kubeconfig) {
  const store = new Store();
  const requests = [];
  const applied = new Map();
  const timers = new Set();
  for (const name of ['default', 'sluice']) {
    store.put(kindOf('v1', 'namespaces'), {
      apiVersion: 'v1',
      kind: 'Namespace',
      metadata: { name },
      status: { phase: 'Active' },
    });
  }

  const server = http.createServer(async (incoming, response) => {
    let result;
    try {
      result = await handle(incoming, response);
    } catch (error) {
      const refusal =
        error instanceof Refusal ? error : new Refusal(500, 'InternalError', String(error.stack));
      result = [refusal.status.code, refusal.status];
    }
    requests.push(`${incoming.method} ${incoming.url} ${result?.[0] ?? 'watch'}`);
    if (result)
      response.writeHead(result[0], { 'content-type': 'application/json' }).end(JSON.stringify(result[1]));
  });

  async function handle(incoming, response) {
    const chunks = [];
    for await (const chunk of incoming) chunks.push(chunk);
    const url = new URL(incoming.url, 'http://stand-in');
    const found = discovery(url.pathname.replace(/\/$/, ''));
    if (found) return [200, found];
    const [, core, group, namespace, plural, name, subresource] = url.pathname.match(PATH) ?? [];
    const kind = kindOf(core ?? group, plural);
    if (kind === undefined) throw notFound(url.pathname);
    const { method } = incoming;
    const type = incoming.headers['content-type'] ?? '';
    const request = {
      kind,
      namespace,
      name,
      subresource,
      query: url.searchParams,
      type,
      body: readBody(Buffer.concat(chunks)),
    };
    if (method === 'GET') return name ? one(request, response) : many(request, response);
    if (method === 'DELETE') return remove(request);
    return write(method, request);
  }

  function one({ kind, namespace, name, subresource }, response) {
    if (subresource === 'log') return void response.end('the stand-in runs no container\n');
    const object = store.get(kind, namespace, name);
    if (object === undefined) throw notFound(`${kind.plural} "${name}"`);
    return [200, object];
  }

  function many({ kind, namespace, query }, response) {
    const selects = (object) => selected(query, object);
    const items = store.list(kind, namespace, selects);
    const metadata = { resourceVersion: String(store.version) };
    if (query.get('watch') === null)
      return [200, { kind: `${kind.kind}List`, apiVersion: kind.groupVersion, metadata, items }];
    const from = Number(query.get('resourceVersion') ?? 0);
    const initial = query.get('sendInitialEvents') === 'true';
    response.writeHead(200, { 'content-type': 'application/json' }).flushHeaders();
    const report = (type, object) => response.write(`${JSON.stringify({ type, object })}\n`);
    if (initial || from === 0) for (const object of items) report('ADDED', object);
    if (initial) {
      const annotations = { 'k8s.io/initial-events-end': 'true' };
      report('BOOKMARK', {
        kind: kind.kind,
        apiVersion: kind.groupVersion,
        metadata: { ...metadata, annotations },
      });
    }
    const stop = store.watch(kind, initial ? 0 : from, ({ type, object }) => {
      if ((!namespace || object.metadata.namespace === namespace) && selects(object)) report(type, object);
    });
    response.on('close', stop);
    return undefined;
  }

  function remove({ kind, namespace, name, query }) {
    if (name && !store.get(kind, namespace, name)) throw notFound(`${kind.plural} "${name}"`);
    const doomed = name
      ? [store.get(kind, namespace, name)]
      : store.list(kind, namespace, (item) => selected(query, item));
    if (query.get('dryRun') !== 'All') for (const object of doomed) store.delete(kind, object);
    return [
      200,
      { kind: 'Status', apiVersion: 'v1', status: 'Success', details: { name, kind: kind.plural } },
    ];
  }

  function write(method, request) {
    const { kind, namespace, body, query } = request;
    const name = request.name ?? body.metadata.name;
    const old = store.get(kind, namespace, name);
    if (method === 'POST' && old)
      throw new Refusal(409, 'AlreadyExists', `${kind.plural} "${name}" already exists`);
    if (kind.namespaced && !store.get(kindOf('v1', 'namespaces'), undefined, namespace))
      throw notFound(`namespace "${namespace}"`);
    const next = method === 'PATCH' ? patched(request, old) : body;
    const object = {
      ...next,
      apiVersion: kind.groupVersion,
      kind: kind.kind,
      metadata: { ...next.metadata },
    };
    if (kind.namespaced) object.metadata.namespace = namespace;
    if (object.status === undefined && old?.status !== undefined) object.status = old.status;
    fillDefaults(object, store.version);
    if (query.get('dryRun') === 'All') return [old ? 200 : 201, object];
    const stored = store.put(kind, object);
    report(kind, stored);
    return [old ? 200 : 201, stored];
  }

  function patched({ kind, namespace, name, type, body, query }, old) {
    if (type.startsWith('application/apply-patch')) {
      const owner = `${kind.plural}|${namespace}|${name}|${query.get('fieldManager')}`;
      const result = serverSideApply(old ?? {}, body, old && applied.get(owner));
      if (query.get('dryRun') !== 'All') applied.set(owner, body);
      return result;
    }
    if (old === undefined) throw notFound(`${kind.plural} "${name}"`);
    if (type.startsWith('application/json-patch')) return jsonPatch(old, body);
    if (type.startsWith('application/strategic') && !kind.builtIn)
      throw new Refusal(415, 'UnsupportedMediaType', type);
    return type.startsWith('application/strategic') ? strategicMerge(old, body) : mergePatch(old, body);
  }

  /** A moment later, as controllers do. */
  function report(kind, object) {
    if (statusOf(object) === undefined) return;
    const timer = setTimeout(() => {
      timers.delete(timer);
      const current = store.get(kind, object.metadata.namespace, object.metadata.name);
      if (current?.metadata.uid !== object.metadata.uid) return;
      store.put(kind, { ...current, status: statusOf(current) });
      if (current.kind === 'Deployment') {
        const sets = kindOf('apps/v1', 'replicasets');
        const own = (set) => set.metadata.ownerReferences?.[0]?.uid === current.metadata.uid;
        for (const set of store.list(sets, current.metadata.namespace, own)) store.delete(sets, set);
        store.put(sets, replicaSetOf(current));
      }
    }, READY_AFTER_MS);
    timers.add(timer);
  }

  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  const context = {
    name: 'stand-in',
    context: { cluster: 'stand-in', user: 'stand-in', namespace: 'sluice' },
  };
  const cluster = { name: 'stand-in', cluster: { server: `http://127.0.0.1:${server.address().port}` } };
  const users = [{ name: 'stand-in', user: {} }];
  const config = {
    apiVersion: 'v1',
    kind: 'Config',
    'current-context': 'stand-in',
    contexts: [context],
    clusters: [cluster],
    users,
  };
  writeFileSync(kubeconfig, JSON.stringify(config), { mode: 0o600 });

  const close = () => {
    for (const timer of timers) clearTimeout(timer);
    server.closeAllConnections();
    return new Promise((resolve) => server.close(resolve));
  };
  return { store, requests, close };
}

/** The two defaults that helm 3 waits for. */
function fillDefaults(object, number) {
  if (object.kind === 'Service') object.spec = { clusterIP: `10.96.0.${number % 250}`, ...object.spec };
  if (object.kind === 'Deployment') object.spec = { replicas: 1, ...object.spec };
}

/** Label selectors of the forms `a=b`, `a!=b`, `a in (b,c)`, `a`; field selectors of the form `metadata.name=x`. */
function selected(query, object) {
  const labels = object.metadata.labels ?? {};
  for (const term of (query.get('labelSelector') ?? '').split(/,(?![^(]*\))/).filter(Boolean)) {
    const [, key, operator, text] = term.match(/^\s*([^=!\s]+)\s*(==|=|!=|in|notin)\s*(.*)$/) ?? [];
    if (key === undefined) {
      if (!(term.trim() in labels)) return false;
      continue;
    }
    const listed = text
      .replace(/[()]/g, '')
      .split(',')
      .map((value) => value.trim())
      .includes(labels[key]);
    if (listed === (operator === '!=' || operator === 'notin')) return false;
  }
  for (const term of (query.get('fieldSelector') ?? '').split(',').filter(Boolean)) {
    const [path, value] = term.split(/==?/);
    if (String(path.split('.').reduce((node, step) => node?.[step], object) ?? '') !== value) return false;
  }
  return true;
}
