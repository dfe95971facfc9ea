// An OpenID provider for the tests of sign-in: npm `oidc-provider` with registration, client metadata documents, resource indicators,
// introspection, rotation of keys, token exchange and ID-JAG. `node provider.mjs PORT`; prints its issuer when it listens.
//
// Everybody who comes to sign in is the account that `POST /control {"account": "bob"}` has named last, and consents to everything.
// `{"format": "opaque"}` and `{"ttl": 5}` change the access tokens that are issued from then on; `{"rotate": true}` signs with a new key;
// `{"documents": {URL: metadata}}` publishes metadata documents of clients.
import { createHash, createPublicKey, generateKeyPairSync, verify } from 'node:crypto';
import { createServer } from 'node:http';
import Provider, { errors } from 'oidc-provider';

const port = Number(process.argv[2]);
const issuer = `http://127.0.0.1:${port}`;
const EXCHANGE = 'urn:ietf:params:oauth:grant-type:token-exchange';
const BEARER = 'urn:ietf:params:oauth:grant-type:jwt-bearer';
const SCOPES = 'read write';
const settings = { account: 'alice', format: 'jwt', ttl: 300, documents: {}, enterpriseKey: null };
const keys = [];
let provider;

function addKey() {
  const { privateKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' });
  const jwk = privateKey.export({ format: 'jwk' });
  const kid = createHash('sha256').update(jwk.x).digest('hex').slice(0, 8);
  keys.unshift({ ...jwk, kid, use: 'sig', alg: 'ES256' });
}

const resourceServer = (resource) => ({
  scope: SCOPES,
  audience: resource,
  accessTokenFormat: settings.format,
  accessTokenTTL: settings.ttl,
  jwt: { sign: { alg: 'ES256' } },
});

async function issue(ctx, accountId, resource, scope, extra = {}) {
  const { client } = ctx.oidc;
  const grant = new provider.Grant({ accountId, clientId: client.clientId });
  grant.addResourceScope(resource, scope);
  const token = new provider.AccessToken({ accountId, client, grantId: await grant.save(), gty: 'exchange', scope });
  token.resourceServer = new provider.ResourceServer(resource, resourceServer(resource));
  ctx.oidc.entity('AccessToken', token);
  ctx.body = { access_token: await token.save(), token_type: 'Bearer', expires_in: settings.ttl, scope, ...extra };
}

// RFC 8693, as far as a gateway needs it: the subject token is one of this provider's own opaque access tokens.
async function exchange(ctx) {
  const { subject_token: subject, resource, scope } = ctx.oidc.params;
  const found = await provider.AccessToken.find(subject);
  if (!found) throw new errors.InvalidGrant('the subject token is unknown');
  await issue(ctx, found.accountId, resource, scope || 'read', { issued_token_type: 'urn:ietf:params:oauth:token-type:access_token' });
}

// ID-JAG: the assertion of an enterprise's identity provider, whose key the test has announced, names the user, the client and the resource.
async function assertion(ctx) {
  const [head, body, mac] = ctx.oidc.params.assertion.split('.');
  const header = JSON.parse(Buffer.from(head, 'base64url'));
  const claims = JSON.parse(Buffer.from(body, 'base64url'));
  const key = createPublicKey({ key: settings.enterpriseKey, format: 'jwk' });
  const signature = { key, dsaEncoding: 'ieee-p1363' };
  const isValid = verify('sha256', Buffer.from(`${head}.${body}`), signature, Buffer.from(mac, 'base64url'));
  if (!isValid || header.typ !== 'oauth-id-jag+jwt' || claims.aud !== issuer || claims.client_id !== ctx.oidc.client.clientId) {
    throw new errors.InvalidGrant('the assertion is not valid');
  }
  await issue(ctx, claims.sub, claims.resource, claims.scope);
}

function build() {
  const made = new Provider(issuer, {
    jwks: { keys },
    cookies: { keys: ['for tests only'] },
    scopes: ['openid', 'offline_access', ...SCOPES.split(' ')],
    clientDefaults: { id_token_signed_response_alg: 'ES256' },
    clients: [
      { client_id: 'gateway', client_secret: 'canary-gateway-secret-4f0b', grant_types: [], redirect_uris: [], response_types: [] },
      {
        client_id: 'robot',
        client_secret: 'canary-robot-secret-77aa',
        grant_types: ['client_credentials', EXCHANGE, BEARER],
        redirect_uris: [],
        response_types: [],
      },
    ],
    features: {
      devInteractions: { enabled: false },
      clientCredentials: { enabled: true },
      clientIdMetadataDocument: { enabled: true, ack: 'draft-02' },
      introspection: { enabled: true, allowedPolicy: (ctx, client) => client.clientId === 'gateway' },
      registration: { enabled: true },
      revocation: { enabled: true },
      resourceIndicators: {
        enabled: true,
        getResourceServerInfo: (ctx, resource) => resourceServer(resource),
        useGrantedResource: () => true,
      },
    },
    extraTokenClaims: (ctx, token) => (token.accountId === 'alice' ? { groups: ['ops'], name: 'Alice' } : { groups: ['dev'], name: 'Bob' }),
    findAccount: (ctx, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
    issueRefreshToken: (ctx, client) => client.grantTypeAllowed('refresh_token'),
    pkce: { required: () => true },
    fetch: async (url, options) => {
      const document = settings.documents[String(url)];
      return document ? new Response(JSON.stringify(document), { headers: { 'content-type': 'application/json' } }) : fetch(url, options);
    },
  });
  // A client that registers with its first scopes may ask for further ones later.
  made.use(async (ctx, next) => {
    if (ctx.method === 'POST' && ctx.path === '/reg') {
      let body = '';
      for await (const part of ctx.req) body += part;
      const { scope, ...registration } = JSON.parse(body);
      ctx.req.body = registration;
    }
    await next();
  });
  made.on('server_error', (ctx, error) => console.error(error));
  made.registerGrantType(EXCHANGE, exchange, ['subject_token', 'subject_token_type', 'requested_token_type', 'resource', 'scope']);
  made.registerGrantType(BEARER, assertion, ['assertion', 'scope']);
  return made;
}

async function interact(request, response) {
  const { prompt, params, session } = await provider.interactionDetails(request, response);
  if (prompt.name === 'login') {
    await provider.interactionFinished(request, response, { login: { accountId: settings.account } });
    return;
  }
  const grant = new provider.Grant({ accountId: session.accountId, clientId: params.client_id });
  grant.addOIDCScope((prompt.details.missingOIDCScope ?? []).join(' '));
  for (const [resource, scopes] of Object.entries(prompt.details.missingResourceScopes ?? {})) {
    grant.addResourceScope(resource, scopes.join(' '));
  }
  await provider.interactionFinished(request, response, { consent: { grantId: await grant.save() } });
}

async function control(request, response) {
  let body = '';
  for await (const part of request) body += part;
  const { rotate, ...changed } = JSON.parse(body);
  Object.assign(settings, changed);
  if (rotate) {
    addKey();
    provider = build();
  }
  response.end('{}');
}

addKey();
provider = build();
createServer((request, response) => {
  const handler = request.url === '/control' ? control : request.url.startsWith('/interaction/') ? interact : null;
  if (handler === null) {
    provider.callback()(request, response);
    return;
  }
  handler(request, response).catch((error) => {
    console.error(error);
    response.statusCode = 500;
    response.end();
  });
}).listen(port, '127.0.0.1', () => console.log(issuer));
