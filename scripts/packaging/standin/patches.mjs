/**
 * The four ways in which helm and kubectl change an object: merge, JSON and strategic-merge patches, and server-side
 * apply (here: what the same manager applied before and leaves out now is removed; no conflicts between managers).
 */
const isMap = (value) => typeof value === 'object' && value !== null && !Array.isArray(value);

/** RFC 7386. */
export function mergePatch(target, patch) {
  if (!isMap(patch)) return patch;
  const result = isMap(target) ? { ...target } : {};
  for (const [key, value] of Object.entries(patch)) {
    if (value === null) delete result[key];
    else result[key] = mergePatch(result[key], value);
  }
  return result;
}

/** RFC 6902: add, remove, replace. */
export function jsonPatch(target, operations) {
  const result = structuredClone(target);
  for (const { op, path, value } of operations) {
    const steps = path
      .split('/')
      .slice(1)
      .map((step) => step.replaceAll('~1', '/').replaceAll('~0', '~'));
    const last = steps.pop();
    const parent = steps.reduce((node, step) => node[step], result);
    if (Array.isArray(parent))
      parent.splice(Number(last), op === 'add' ? 0 : 1, ...(op === 'remove' ? [] : [value]));
    else if (op === 'remove') delete parent[last];
    else parent[last] = value;
  }
  return result;
}

/** Lists of maps that Kubernetes merges by a key instead of replacing; all others are replaced. */
const MERGE_KEYS = {
  containers: 'name',
  initContainers: 'name',
  volumes: 'name',
  env: 'name',
  imagePullSecrets: 'name',
  secrets: 'name',
  volumeMounts: 'mountPath',
  topologySpreadConstraints: 'topologyKey',
  ownerReferences: 'uid',
};
const keyOf = (field, list) =>
  field === 'ports'
    ? list.some((item) => 'containerPort' in item)
      ? 'containerPort'
      : 'port'
    : MERGE_KEYS[field];

export function strategicMerge(target, patch) {
  if (patch.$patch === 'replace') return without(patch);
  const result = { ...target };
  for (const [field, value] of Object.entries(patch)) {
    if (field.startsWith('$')) continue;
    if (value === null) delete result[field];
    else if (Array.isArray(value))
      result[field] = mergeList(field, result[field], value, patch[`$setElementOrder/${field}`]);
    else if (isMap(value)) result[field] = strategicMerge(isMap(result[field]) ? result[field] : {}, value);
    else result[field] = value;
  }
  if (patch.$retainKeys) {
    for (const key of Object.keys(result)) if (!patch.$retainKeys.includes(key)) delete result[key];
  }
  return result;
}

const without = (patch) => Object.fromEntries(Object.entries(patch).filter(([key]) => !key.startsWith('$')));

function mergeList(field, target, patch, order) {
  const key = patch.every(isMap) && keyOf(field, [...patch, ...(target ?? [])]);
  if (!key || !Array.isArray(target)) return patch.map((item) => (isMap(item) ? without(item) : item));
  const items = new Map(target.map((item) => [item[key], item]));
  for (const change of patch) {
    if (change.$patch === 'delete') items.delete(change[key]);
    else items.set(change[key], strategicMerge(items.get(change[key]) ?? {}, change));
  }
  const ordered = (order ?? []).map((item) => item[key]);
  const indexIn = (item) => (ordered.includes(item[key]) ? ordered.indexOf(item[key]) : ordered.length);
  return [...items.values()].sort((a, b) => indexIn(a) - indexIn(b));
}

/** @param previous what the same manager applied last, or undefined */
export function serverSideApply(target, applied, previous) {
  const result = { ...target };
  for (const field of Object.keys(previous ?? {})) if (!(field in applied)) delete result[field];
  for (const [field, value] of Object.entries(applied)) {
    result[field] =
      isMap(value) && isMap(result[field]) ? serverSideApply(result[field], value, previous?.[field]) : value;
  }
  return result;
}
