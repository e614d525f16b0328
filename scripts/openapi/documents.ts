/**
 * OpenAPI 3.1 of both ports, made from what the code itself uses: the table of refusals, what may hold a call, the methods
 * of the proxy, the published schema of `/activity`. Sentences and routes are written here; `test/docs/openapi.test.ts` holds
 * them to a running gateway.
 */
import { readFileSync } from 'node:fs';
import { heldByReasons, refusals, type RefusalCode } from '../../src/errors.ts';
import { maxRecordingSeconds } from '../../src/recording/format.ts';
import { proxyMethods } from '../../src/ingress/respond.ts';

type Json = Readonly<Record<string, unknown>>;

const ref = (name: string): Json => ({ $ref: `#/components/schemas/${name}` });
/** A response with content of one type. */
const said = (description: string, type: string, schema: Json = { type: 'string' }): Json => ({
  description,
  content: { [type]: { schema } },
});
const json = (description: string, schema: Json): Json => said(description, 'application/json', schema);
const text = (description: string): Json => said(description, 'text/plain');
const get = (operationId: string, summary: string, more: Json): Json => ({
  get: { operationId, summary, ...more },
});
const codes = Object.keys(refusals) as RefusalCode[];

/** `$defs` of the activity schema as components: every `#/$defs/x` becomes `#/components/schemas/x`. */
const activityText = readFileSync(new URL('../../schema/activity.schema.json', import.meta.url), 'utf8');
const { $defs: activityComponents } = JSON.parse(
  activityText.replaceAll('#/$defs/', '#/components/schemas/'),
) as { readonly $defs: Json };

/** An object with these members, every one of which it has to have. */
const members = (properties: Json): Json => ({ required: Object.keys(properties), properties });
const string: Json = { type: 'string' };

const errorType: Json = { type: 'string', pattern: '^urn:sluice:error:[a-z_]+$' };
const problem: Json = {
  type: 'object',
  description:
    'A response that Sluice made itself (RFC 9457), with the `error` member that language-model SDKs read.',
  required: ['type', 'title', 'status', 'detail', 'code', 'requestId', 'error'],
  properties: {
    type: errorType,
    title: string,
    status: { type: 'integer', minimum: 400, maximum: 599 },
    detail: { type: 'string', description: 'What to do, for a person.' },
    code: { enum: [...codes, 'internal'] },
    requestId: { type: 'string', pattern: '^[0-9a-f]{32}$' },
    heldBy: {
      enum: heldByReasons,
      description: 'What held the call back; every 429 that Sluice decided has it.',
    },
    error: {
      type: 'object',
      ...members({
        message: string,
        type: string,
        code: {
          description:
            'The same code; of `upstream_refused` what the provider’s own error said: a word of a fixed list, an HTTP status, or null.',
          type: ['string', 'integer', 'null'],
          examples: ['wait_too_long', 'insufficient_quota', 402],
        },
        param: { type: ['string', 'null'] },
      }),
    },
  },
};

const field = (description: string, schema: Json = { type: 'string' }): Json => ({ description, schema });
const responseFields: Json = {
  'Sluice-Request-Id': field('Id of this call, also in logs and traces.'),
  'Sluice-Admission': field(
    'waited=<ms>, attempts=<n>, absorbed=<throttled responses absorbed> and, where something held the call, held=(requests;ms=1200 ceiling_minute;ms=300): what, longest first. Where limits are only observed, would=send, wait or refuse, and would-wait=<ms>.',
  ),
  'RateLimit-Policy': field('The workspace ceiling on this upstream.'),
  RateLimit: field('What is left under it.'),
};
const errorFields: Json = {
  'Sluice-Request-Id': responseFields['Sluice-Request-Id'],
  'Sluice-Error': field('The code: Sluice made this response.'),
};
const retryFields: Json = {
  'Retry-After': field('Whole seconds, rounded up.', { type: 'integer', minimum: 1 }),
  'retry-after-ms': field('The same, exact.', { type: 'integer', minimum: 1 }),
  'Sluice-Ticket': field(
    'With `Prefer: reserve`: the position is kept for whoever sends this with the call.',
  ),
};

/** Responses by status, as components, and what operations say in their stead. */
function shared(prefix: string, responses: Json): { readonly components: Json; readonly references: Json } {
  const named = Object.entries(responses).map(([status, response]) => [status, prefix + status, response]);
  return {
    components: Object.fromEntries(named.map(([, name, response]) => [name, response])) as Json,
    references: Object.fromEntries(
      named.map(([status, name]) => [status, { $ref: `#/components/responses/${String(name)}` }]),
    ) as Json,
  };
}

/** One response per status of these codes. `passing`: the upstream's own response may have the status, too. */
function refusalResponses(of: readonly RefusalCode[], { passing }: { readonly passing: boolean }): Json {
  const byStatus = new Map<number, string[]>([[500, ['internal']]]);
  for (const code of of) {
    const { status } = refusals[code];
    byStatus.set(status, [...(byStatus.get(status) ?? []), code]);
  }
  // Requests that Node's parser ends: too slow, or with an expectation that nobody can meet.
  for (const status of [408, 417]) byStatus.set(status, ['request_invalid']);
  const responses = [...byStatus]
    .toSorted(([a], [b]) => a - b)
    .map(([status, names]): [string, Json] => [
      String(status),
      {
        description: `${names.map((name) => `\`${name}\``).join(', ')}${passing ? ', or the upstream’s own response' : ''}`,
        headers: {
          ...errorFields,
          ...(status === 429 || status === 503 ? retryFields : {}),
          ...(status === 401 ? { 'WWW-Authenticate': field('Bearer') } : {}),
          ...(status === 405 ? { Allow: field('The methods of this route.') } : {}),
        },
        content: {
          'application/problem+json': { schema: ref('Problem') },
          ...(passing ? { '*/*': { schema: {} } } : {}),
        },
      },
    ]);
  return Object.fromEntries(responses);
}

const parameter = (place: string, name: string, description: string, more: Json = {}): Json => ({
  name,
  in: place,
  required: place === 'path',
  description,
  schema: { type: 'string' },
  ...more,
});
/** Seconds, or a duration with a unit. */
const secondsQuery = (description: string, seconds: Json): Json => {
  const schema = { anyOf: [seconds, { type: 'string', pattern: '^[0-9.]+[smh]$' }] };
  return parameter('query', 'seconds', description, { required: true, schema });
};
const forRecording: Json = { type: 'integer', minimum: 1, maximum: maxRecordingSeconds };
const windowQuery = parameter('query', 'window', 'How far back: 90, 90s, 15m, 1h.', {
  schema: { type: 'string', pattern: '^[0-9.]+[smh]?$', example: '15m' },
});
const header = (name: string, description: string, more: Json = {}): Json =>
  parameter('header', name, description, more);
const callFields: Readonly<Record<string, Json>> = {
  prefer: header(
    'Prefer',
    '`wait=<seconds>`: how long the call may wait; `wait=0`: now or not at all. `reserve`: a call that is refused for its wait keeps its position.',
  ),
  ticket: header('Sluice-Ticket', 'The ticket of a refusal, for which the client comes back.'),
  priority: header(
    'Priority',
    '`u=0` to `u=7`: urgency among the calls of the same workspace in one bucket.',
  ),
  idempotencyKey: header(
    'Idempotency-Key',
    'An equal call that is already held is joined: one upstream call.',
  ),
};
const callFieldReferences = Object.keys(callFields).map((name) => ({
  $ref: `#/components/parameters/${name}`,
}));

/** Every method of the proxy with the same description; `OPTIONS` and the rest are upstream methods like `GET`. */
function everyMethod(id: string, parameters: readonly Json[], responses: Json, summary: string): Json {
  const anyBody = { requestBody: { required: false, content: { '*/*': { schema: {} } } } };
  const methods = proxyMethods.split(', ').map((method): [string, Json] => [
    method.toLowerCase(),
    {
      operationId: `${id}${method[0]}${method.slice(1).toLowerCase()}`,
      summary,
      parameters: [...parameters, ...callFieldReferences],
      ...(method === 'GET' || method === 'HEAD' ? {} : anyBody),
      responses,
    },
  ]);
  return Object.fromEntries(methods);
}

/** Refusals of calls that go to no upstream. */
const own =
  'request_invalid unauthenticated method_not_allowed headers_too_large target_too_long upgrade_unsupported overloaded draining';

/** The public port. */
export function dataPort(): Json {
  const ofCalls = shared('call', {
    ...refusalResponses(
      codes.filter((code) => code !== 'not_found'),
      { passing: true },
    ),
    default: {
      description: 'The upstream’s own response, streamed: status, fields and body.',
      headers: responseFields,
      content: { '*/*': { schema: {} } },
    },
  });
  const ofOwn = shared('own', refusalResponses(own.split(' ') as RefusalCode[], { passing: false }));
  return {
    openapi: '3.1.0',
    info: {
      title: 'Sluice, data port',
      version: '1',
      description:
        'Calls to upstreams, held until their quota has room. Every other path is 404 `not_found`.',
    },
    servers: [{ url: 'http://127.0.0.1:8080' }],
    security: [{ bearer: [] }, { sluiceKey: [] }],
    paths: {
      '/proxy': everyMethod(
        'proxy',
        [
          parameter(
            'query',
            'target',
            'Absolute URL of the call, percent-encoded. No other parameter may stand beside it.',
            { required: true },
          ),
        ],
        ofCalls.references,
        'Sends the call to its target',
      ),
      '/via/{upstream}/{path}': everyMethod(
        'via',
        [
          parameter('path', 'upstream', 'Name of the configuration.'),
          parameter(
            'path',
            'path',
            'Path at the upstream, slashes and query as they are; with wildcard origins the host comes first.',
            { allowReserved: true },
          ),
        ],
        ofCalls.references,
        'The same for SDKs that take a base URL',
      ),
      '/activity': get('activity', 'The calling workspace’s own state and recent pressure', {
        parameters: [windowQuery],
        responses: { '200': json('By upstream.', ref('workspaceActivity')), ...ofOwn.references },
      }),
      '/openapi.json': description,
    },
    components: {
      securitySchemes: {
        bearer: { type: 'http', scheme: 'bearer', description: 'slc_<key id>_<secret>' },
        sluiceKey: { type: 'apiKey', in: 'header', name: 'Sluice-Key' },
      },
      parameters: callFields,
      responses: { ...ofCalls.components, ...ofOwn.components },
      schemas: { Problem: problem, ...activityComponents },
    },
  };
}

/** `/openapi.json`, of either port. */
const description = get('description', 'This document', {
  security: [],
  responses: { '200': json('OpenAPI 3.1.', { type: 'object' }) },
});

const controlProblem = (description: string): Json =>
  said(description, 'application/problem+json', ref('ControlProblem'));

function control(verb: string, summary: string, parameters: readonly Json[] = []): Json {
  return {
    post: {
      operationId: verb,
      summary,
      parameters: [
        parameter('path', 'name', 'Name of the upstream.'),
        header('Sluice-Admin', 'Demanded, so that no page in a browser can send it.', {
          required: true,
          schema: { const: 'yes' },
        }),
        header('Authorization', '`Bearer` and the token of `server.adminToken`, where it is configured.'),
        ...parameters,
      ],
      responses: {
        '200': json('Done, on all replicas within a second.', {
          type: 'object',
          additionalProperties: false,
          ...members({ result: { enum: ['done', 'not_paused'] } }),
        }),
        '400': controlProblem('`request_invalid`'),
        '401': controlProblem('`admin_token_missing`: `server.adminToken` is configured'),
        '403': controlProblem('`admin_field_missing`, or asked by a foreign name or page'),
        '404': controlProblem('`not_found`: no such upstream'),
        '405': controlProblem('`method_not_allowed`'),
        '503': controlProblem('`limiter_unavailable`: Redis is away; try again'),
      },
    },
  };
}

/** Server-sent events, or a refusal in these words. */
const endless = (refusal: string): Json => ({
  '200': said('Ends never.', 'text/event-stream'),
  '503': { description: refusal },
});

/** What commands at the admin port are refused with. */
const controlCodes =
  'admin_field_missing admin_host_forbidden admin_origin_forbidden admin_token_missing request_invalid method_not_allowed limiter_unavailable not_found overloaded';

/** The private port, without the files of the live page. */
export function adminPort(): Json {
  return {
    openapi: '3.1.0',
    info: {
      title: 'Sluice, admin port',
      version: '1',
      description:
        'Probes, metrics, activity and an operator’s controls. Never public: nobody is asked for a key here. Every request names the port by an IP address, as localhost, or by a name of `server.adminNames`, and comes from no page of another site: else it gets 403 `admin_host_forbidden` or `admin_origin_forbidden`. Commands carry the token of `server.adminToken` where it is configured (`Authorization: Bearer`).',
    },
    servers: [{ url: 'http://127.0.0.1:9090' }],
    paths: {
      '/livez': get('livez', 'The process runs', { responses: { '200': text('ok') } }),
      '/readyz': get('readyz', 'Calls may be sent here', {
        responses: {
          '200': text('ok; while Redis is away further lines say why, and that it has never been reached'),
          '503': text('draining, or starting: Redis has never been reached, for redis.startSeconds at most'),
        },
      }),
      '/metrics': get('metrics', 'Prometheus metrics', {
        responses: {
          '200': {
            description: 'Text format, or OpenMetrics where it is asked for.',
            content: { 'text/plain': { schema: string }, 'application/openmetrics-text': { schema: string } },
          },
        },
      }),
      '/activity': get('allActivity', 'Every workspace, by label', {
        parameters: [windowQuery],
        responses: {
          '200': json('By workspace and upstream.', ref('allActivity')),
          '400': text('The window cannot be read.'),
        },
      }),
      '/': get('page', 'Live page of throttle pressure', {
        responses: { '200': said('HTML.', 'text/html') },
      }),
      '/page/events': get('events', 'What the live page shows, as server-sent events', {
        responses: endless('As many pages are open as may be.'),
      }),
      '/calls': get(
        'calls',
        'Each call that ends from now on, as server-sent events: `call`, with the fields of its log line',
        { responses: endless('As many listen as may.') },
      ),
      '/recording': get(
        'recording',
        'Each call that arrives within some seconds, as a line of JSON when it ends, behind a first line with the limits: labels and figures only',
        {
          parameters: [secondsQuery('For how long calls are taken.', forRecording)],
          responses: {
            '200': said(
              'Ends with the last of these calls. To a reader that is too slow the last line is `{"sluice":"recording","ended":"reader_too_slow"}`, and the rest is missing.',
              'application/jsonl',
            ),
            '400': controlProblem('The number of seconds cannot be used.'),
            '503': controlProblem('As many recordings are under way as may be.'),
          },
        },
      ),
      '/openapi.json': description,
      '/upstreams/{name}/open': control(
        'open',
        'Reopens what responses of the upstream have closed: buckets and breakers',
      ),
      '/upstreams/{name}/resume': control('resume', 'Ends a pause'),
      '/upstreams/{name}/pause': control('pause', 'Sends nobody to the upstream for some seconds', [
        secondsQuery('How long.', { type: 'number', exclusiveMinimum: 0, maximum: 86_400 }),
      ]),
    },
    components: {
      schemas: {
        ControlProblem: {
          type: 'object',
          additionalProperties: false,
          ...members({
            type: errorType,
            title: string,
            status: { type: 'integer' },
            detail: string,
            code: { enum: controlCodes.split(' ') },
          }),
        },
        ...activityComponents,
      },
    },
  };
}
