/**
 * What a store holds: products, orders, customers, stock, jobs.
 *
 * Owns: the resources and their changes. Invariants: ids lie beyond 2^53 and stay text here, so that no digit
 * is lost; money is text.
 */
import { listOf, objectOf, type Json } from '../json.ts';

/** A resource as it is printed; its `id` and every `*_id` is a bigint. */
export type Resource = Record<string, unknown>;

export type Outcome =
  | { readonly status: 200 | 201 | 202; readonly body: unknown; readonly location?: string }
  | { readonly status: 400 | 404 | 422; readonly errors: unknown };

export const collections = ['products', 'orders', 'customers', 'inventory_levels', 'jobs'] as const;
export type Collection = (typeof collections)[number];

/** The key a single resource is wrapped in. */
export const singular: Record<Collection, string> = {
  products: 'product',
  orders: 'order',
  customers: 'customer',
  inventory_levels: 'inventory_level',
  jobs: 'job',
};

/** 2^53 + 1: a reader that goes through a double changes it. */
const firstId = 9_007_199_254_740_993n;

export class Resources {
  readonly #lists = new Map<string, Map<string, Resource>>();
  readonly #seeded: number;
  #next = firstId + 1_000_000n;

  constructor(seeded: number) {
    this.#seeded = seeded;
  }

  list(store: string, collection: Collection): readonly Resource[] {
    return [...this.#of(store, collection).values()];
  }

  get(store: string, collection: Collection, id: string): Resource | undefined {
    return this.#of(store, collection).get(id);
  }

  create(store: string, collection: Collection, body: Json, at: string): Outcome {
    const given = objectOf(body[singular[collection]]);
    if (given === undefined && collection !== 'jobs') {
      return { status: 400, errors: { [singular[collection]]: 'Required parameter missing or invalid' } };
    }
    const errors = problems(collection, given ?? {});
    if (errors !== undefined) return { status: 422, errors };
    const id = (this.#next += 1n);
    const resource = { ...make(collection, id, at), ...given, id };
    this.#of(store, collection).set(String(id), resource);
    const wrapped = { [singular[collection]]: resource };
    return collection === 'jobs'
      ? { status: 202, body: wrapped, location: `jobs/${id}.json` }
      : { status: 201, body: wrapped };
  }

  update(store: string, collection: Collection, id: string, body: Json, at: string): Outcome {
    const known = this.get(store, collection, id);
    const given = objectOf(body[singular[collection]]);
    if (known === undefined) return { status: 404, errors: 'Not Found' };
    if (given === undefined) {
      return { status: 400, errors: { [singular[collection]]: 'Required parameter missing or invalid' } };
    }
    const changed = { ...known, ...given, id: known['id'], updated_at: at };
    this.#of(store, collection).set(id, changed);
    return { status: 200, body: { [singular[collection]]: changed } };
  }

  remove(store: string, collection: Collection, id: string): Outcome {
    const known = this.#of(store, collection).delete(id);
    return known ? { status: 200, body: {} } : { status: 404, errors: 'Not Found' };
  }

  /** `inventory_levels/adjust.json` and `/set.json`: stock of one item at one place. */
  stock(store: string, change: 'adjust' | 'set', body: Json, at: string): Outcome {
    const item = digits(body['inventory_item_id']);
    const amount = Number(body[change === 'set' ? 'available' : 'available_adjustment']);
    if (item === '' || !Number.isFinite(amount)) {
      return { status: 422, errors: { inventory_level: ['is invalid'] } };
    }
    const levels = this.#of(store, 'inventory_levels');
    const known = levels.get(item) ?? {};
    const before = change === 'set' ? 0 : Number(known['available'] ?? 0);
    const id = {
      inventory_item_id: bigintOf(item),
      location_id: bigintOf(digits(body['location_id'] ?? 1)),
    };
    const level = { ...known, ...id, available: before + amount, updated_at: at };
    levels.set(item, level);
    return { status: 200, body: { inventory_level: level } };
  }

  reset(): void {
    this.#lists.clear();
    this.#next = firstId + 1_000_000n;
  }

  #of(store: string, collection: Collection): Map<string, Resource> {
    const name = `${store}|${collection}`;
    const known = this.#lists.get(name);
    if (known !== undefined) return known;
    const list = new Map<string, Resource>();
    for (let index = 0; collection !== 'jobs' && index < this.#seeded; index += 1) {
      const id = firstId + BigInt(index * 2);
      list.set(String(id), make(collection, id, '2026-01-01T00:00:00Z'));
    }
    this.#lists.set(name, list);
    return list;
  }
}

/** JSON in which bigints are plain digits. */
export function print(value: unknown): string {
  return JSON.stringify(value, (_name, part: unknown) =>
    typeof part === 'bigint' ? rawJson(part.toString()) : part,
  );
}

// `JSON.rawJSON` is in the runtime and not yet in the language's type library.
const { rawJSON: rawJson } = JSON as unknown as { rawJSON(this: void, text: string): unknown };

function digits(value: unknown): string {
  return typeof value === 'number' || typeof value === 'string' ? String(value) : '';
}

function bigintOf(text: string): bigint {
  return /^\d{1,30}$/.test(text) ? BigInt(text) : 0n;
}

function problems(collection: Collection, given: Json): unknown {
  if (collection === 'products' && !given['title']) return { title: ["can't be blank"] };
  if (collection === 'orders' && listOf(given['line_items']).length === 0) {
    return { order: ['Line items must have at least one line item'] };
  }
  if (collection === 'customers' && !given['email'] && !given['phone'] && !given['first_name']) {
    return { base: ['Customer must have a name, phone number or email address'] };
  }
  return undefined;
}

function make(collection: Collection, id: bigint, at: string): Resource {
  const times = { created_at: at, updated_at: at };
  switch (collection) {
    case 'products': {
      const variant = {
        id: id + 1n,
        product_id: id,
        title: 'Default Title',
        price: '19.00',
        sku: `SKU-${id}`,
      };
      const stock = { inventory_item_id: id, inventory_quantity: 7 };
      const texts = { title: `Product ${id}`, body_html: null, vendor: 'Acme', product_type: '', tags: '' };
      return {
        id,
        ...texts,
        handle: `product-${id}`,
        status: 'active',
        ...times,
        variants: [{ ...variant, ...stock }],
      };
    }
    case 'orders':
      return {
        id,
        name: `#${id % 100_000n}`,
        email: 'buyer@example.com',
        currency: 'EUR',
        total_price: '19.00',
        financial_status: 'paid',
        fulfillment_status: null,
        ...times,
        line_items: [{ id: id + 1n, title: 'Product', quantity: 1, price: '19.00' }],
      };
    case 'customers':
      return {
        id,
        email: `customer-${id}@example.com`,
        first_name: 'Ada',
        last_name: 'Example',
        orders_count: 0,
        total_spent: '0.00',
        ...times,
      };
    case 'inventory_levels':
      return { inventory_item_id: id, location_id: 1n, available: 7, updated_at: at };
    case 'jobs':
      return { id, done: true, ...times };
  }
}
