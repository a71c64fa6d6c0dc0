// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

// An OpenID Connect server for the identity part: oidc-provider with clients
// that get tokens by their credentials. What the test changes while it runs is
// below /test: POST /test/rotate has a new key sign, with the old ones still
// published; POST /test/forget publishes the newest key alone.
//
// Environment: OIDC_PROVIDER (folder with node_modules), PORT, SECRET (of all
// clients).

import { createServer } from 'node:http';
import { generateKeyPairSync } from 'node:crypto';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';

const { Provider } = await import(pathToFileURL(join(process.env.OIDC_PROVIDER, 'node_modules', 'oidc-provider', 'lib', 'index.js')).href);
const port = Number(process.env.PORT);
const issuer = `http://127.0.0.1:${port}`;

// What a client may ask for as its resource: an audience, and what the tokens
// for it look like.
const resources = {
  'urn:sluice': { audience: 'sluice', accessTokenFormat: 'jwt', jwt: { sign: { alg: 'RS256' } } },
  'urn:sluice:brief': { audience: 'sluice', accessTokenFormat: 'jwt', accessTokenTTL: 5, jwt: { sign: { alg: 'RS256' } } },
  'urn:sluice:opaque': { audience: 'sluice', accessTokenFormat: 'opaque' },
  'urn:elsewhere': { audience: 'elsewhere', accessTokenFormat: 'jwt', jwt: { sign: { alg: 'RS256' } } },
  'urn:sluice:ps256': { audience: 'sluice', accessTokenFormat: 'jwt', jwt: { sign: { alg: 'PS256' } } },
};

// The groups of each client's tokens.
const groups = { etl: ['loaders'], analyst: ['readers'], stranger: [] };

const client = (id, more = {}) => ({
  client_id: id,
  client_secret: process.env.SECRET,
  grant_types: ['client_credentials'],
  redirect_uris: [],
  response_types: [],
  ...more,
});

// PyIceberg sends its credentials in the body, or by HTTP Basic: a client of
// oidc-provider does one of them.
const clients = [
  ...Object.keys(groups).map((id) => client(id, { token_endpoint_auth_method: 'client_secret_post' })),
  client('etl-basic', { token_endpoint_auth_method: 'client_secret_basic' }),
  client('sluice', { token_endpoint_auth_method: 'client_secret_basic' }),
];
groups['etl-basic'] = ['loaders'];

let keys = [];
let serve;

function newKey() {
  const { privateKey } = generateKeyPairSync('rsa', { modulusLength: 2048 });
  return { ...privateKey.export({ format: 'jwk' }), kid: `key-${Date.now()}-${keys.length}`, use: 'sig' };
}

// Opaque tokens are known to a Provider's adapter alone, which all share.
const kept = new Map();

class Adapter {
  constructor(model) {
    this.model = model;
  }

  async upsert(id, payload) {
    kept.set(`${this.model} ${id}`, payload);
  }

  async find(id) {
    return kept.get(`${this.model} ${id}`);
  }

  async destroy(id) {
    kept.delete(`${this.model} ${id}`);
  }

  async consume() {}

  async findByUid() {}

  async findByUserCode() {}

  async revokeByGrantId() {}
}

function open() {
  const provider = new Provider(issuer, {
    adapter: Adapter,
    clients,
    jwks: { keys },
    scopes: ['catalog'],
    cookies: { keys: ['not used: nobody signs in with a browser'] },
    ttl: { ClientCredentials: 600 },
    extraTokenClaims: (_, token) => ({ groups: groups[token.clientId] ?? [], clearance: 3 }),
    features: {
      devInteractions: { enabled: false },
      clientCredentials: { enabled: true },
      introspection: { enabled: true, allowedPolicy: (_, asking) => asking.clientId === 'sluice' },
      revocation: { enabled: true, allowedPolicy: (_, asking, token) => token.clientId === asking.clientId },
      resourceIndicators: {
        enabled: true,
        defaultResource: () => 'urn:sluice',
        useGrantedResource: () => true,
        getResourceServerInfo: (_, resource) => {
          if (!resources[resource]) throw new Error(`no resource ${resource}`);
          return { scope: 'catalog', ...resources[resource] };
        },
      },
    },
  });
  provider.on('server_error', (_, error) => console.error(error));
  serve = provider.callback();
}

keys = [newKey()];
open();
createServer((request, response) => {
  if (request.method === 'POST' && request.url === '/test/rotate') keys = [newKey(), ...keys];
  else if (request.method === 'POST' && request.url === '/test/forget') keys = keys.slice(0, 1);
  else {
    serve(request, response);
    return;
  }
  open();
  response.end(`${keys.length}\n`);
}).listen(port, '127.0.0.1', () => console.log(`ready at ${issuer}`));
