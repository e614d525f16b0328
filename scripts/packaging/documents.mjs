/** Reads YAML as Kubernetes does (YAML 1.1: an unquoted `y` or `on` is a boolean), and names objects for messages. */
import { isDeepStrictEqual } from 'node:util';
import { parse, parseAllDocuments } from 'yaml';

const customTags = (tags) =>
  tags.filter((tag) => !(tag.tag ?? '').endsWith('timestamp') && tag.format !== 'TIME');

/** @param {string} text one or more documents. @returns {object[]} the objects; @throws on YAML errors and duplicate keys */
export function documents(text) {
  return parseAllDocuments(text, { version: '1.1', merge: true, customTags }).flatMap((document) => {
    if (document.errors.length > 0) throw document.errors[0];
    const object = document.toJS();
    return object?.kind === 'List' ? object.items : object ? [object] : [];
  });
}

export const nameOf = (object) => `${object.apiVersion} ${object.kind} ${object.metadata?.name}`;

const HELM_LABELS = ['helm.sh/chart', 'app.kubernetes.io/managed-by'];

/** An object without what only Helm writes, so that a chart's render and a plain manifest can be compared. */
export function withoutHelm(object) {
  const copy = structuredClone(object);
  for (const label of HELM_LABELS) delete copy.metadata.labels?.[label];
  return copy;
}

/** For overlays: the configuration by its meaning, and without the annotations that only Helm needs. */
export function byMeaning(object) {
  const copy = withoutHelm(object);
  if (copy.data?.['sluice.yaml'] !== undefined) copy.data['sluice.yaml'] = parse(copy.data['sluice.yaml']);
  delete copy.spec?.template?.metadata?.annotations?.['checksum/restart'];
  if (copy.metadata.annotations?.['sluice/replicas'] !== undefined) delete copy.metadata.annotations;
  return copy;
}

/** @returns {string[]} names of objects that are in one list only, or differ; order does not count */
export function differences(left, right) {
  const maps = [left, right].map((list) => new Map(list.map((object) => [nameOf(object), object])));
  const names = new Set([...maps[0].keys(), ...maps[1].keys()]);
  return [...names].filter((name) => !isDeepStrictEqual(maps[0].get(name), maps[1].get(name)));
}
